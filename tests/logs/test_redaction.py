"""Secrets are told by their form, ordinary text is left alone, and no text takes long."""

import ast
import base64
import random
import time
import tomllib
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import agentkit
from agentkit.logs import MASK, error_text, redact
from agentkit.logs.faults import cut_middle
from agentkit.testing import strategies

ROOT = Path(agentkit.__file__).parents[1]
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nabcd+/==\n-----END RSA PRIVATE KEY-----"
SECRET = "s3cr3t"

LEAKS = [
    ("Authorization: Bearer {}", "topsecretvalue"),
    ("authorization: bearer {}\r\nAccept: */*", "abc123def456"),
    ("{{'Authorization': 'Bearer {}', 'Accept': '*/*'}}", "x"),
    ("<CIMultiDict('Authorization': 'Bearer {}', 'Accept': '*/*')>", "topsecret"),
    ("[(b'Authorization', b'Basic {}'), (b'Accept', b'*/*')]", "dXNlcjpwYXNz"),
    ('{{"authorization": "{}"}}', "opaque"),
    ("x-api-key: {}", "0123abcd"),
    ("Cookie: {}\r\nAccept: */*", "session=abc; theme=dark"),
    ("{{'Set-Cookie': '{}'}}", "sid=42; Path=/"),
    ("failed with {} as the key", "sk-proj-Ab12Cd34Ef56Gh78"),
    ("failed with {}.", "sk-ant-api03-AbCdEf012345"),
    ("{}", "hf_" + "aB3" * 11),
    ("git clone failed: {}", "ghp_" + "aB3" * 12),
    ("{}", "github_pat_11ABCDEFG0" + "abcdef_" * 6),
    ("id {} ", "AKIAIOSFODNN7EXAMPLE"),
    ("id {} ", "ASIAIOSFODNN7EXAMPLE"),
    ("slack {}", "xoxb-2345678901-abcdefABCDEF"),
    ("maps?key={}&x=1", "AIza" + "SyA_-" * 7),
    ("jwt {}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmN"),
    ("read {} here", PEM),
    ("read {} here", repr(PEM)[1:-1]),
    ("cut {}", PEM.partition("-----END")[0]),
    ("repr 'line\\n{}'", "sk-Ab12Cd34Ef56Gh78"),
    ("next=%2F%3D{}", "sk-Ab12Cd34Ef56Gh78"),
    ("api_key={}", SECRET),
    ("api_key='{}', model='m'", "a b c"),
    ("apiKey: {}", SECRET),
    ('{{"password": "{}", "user": "ann"}}', 'hun\\"ter2'),
    ('{{\\"password\\": \\"{}\\", \\"user\\": \\"ann\\"}}', SECRET),
    ("password: {}", "correcthorse"),
    ("DB_PASSWORD={}", "hunter2"),
    ("db_pass={}", "hunter2"),
    ("AWS_SECRET_ACCESS_KEY={}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("client_secret={}&grant_type=x", "foo%2Bbar%2F1"),
    ("GET /v1/models?api_key={}&limit=1", "plainword"),
    ("https://bucket/o?X-Amz-Signature={}&b=1", "0123456789abcdef"),
    ("HF_TOKEN={}", "abcd1234efgh"),
    ("access_token: '{}'", "abcd1234efgh"),
    ("token={}", "abcdef0123456789abcdef01"),
    ("agentkit run --api-key {} x.yaml", "plainword"),
    ('token="see api_key={} there"', "plainword"),
    ("['run', '--token', '{}']", "plainword"),
    ("https://ann:{}@host/path", "pw"),
    ("https://ann:{}@host:80/path?x=1", "p@ss"),
    ("postgres://ann:{}@db:5432/x", "p%40ss"),
    ("https://{}@github.com/a/b", "0123456789abcdef0123"),
    ("Cookie: {}\r\nAccept: */*", 'sid="Zq8rT2mW5x"; theme="dark"'),
    ("{{'Cookie': '{}', 'Accept': '*/*'}}", 'a=b; sid="Zq8rT2mW5x"'),
    ('Authorization: Digest {}\r\nAccept: "x"', 'username="ann", response="6629fae49393a05397450978507c4ef1"'),
    ('{{"Authorization": "Basic {}", "Accept": "*/*"}}', "dXNlcjpwYXNzdw=="),
    ("url?authorization%3A%20Bearer%20{}", "Zq8rT2mW5xK9vB3n"),
    ("Ocp-Apim-Subscription-Key: {}", "Zq8rT2mW5xK9vB3n"),
    ("ENCRYPTION_KEY={}", "plainword"),
    ("HOME=/x\nDB_PASSWORD={}\nUSER=ann", "p(ss)w'rd,&;|<x>"),
    ("export API_KEY={}", "a[0]&b"),
    ("[(b'x-api-key', b'{}'), (b'accept', b'*/*')]", "Zq8rT2mW5xK9vB3n"),
    ('["password", "{}"]', "hunter2hunter2"),
]


@pytest.mark.parametrize(("text", "secret"), LEAKS)
def test_a_secret_is_hidden_and_what_is_around_it_stays(text: str, secret: str) -> None:
    said = redact(text.format(secret))
    assert secret not in said
    assert MASK in said
    before, _, after = text.format("\0").partition("\0")
    assert said.startswith(before.removesuffix("'").removesuffix('"'))
    assert said.endswith(after)
    assert redact(said) == said


@pytest.mark.parametrize("name", ["Cookie: ", "'Cookie': '", "Set-Cookie: ", "Authorization: Digest "])
def test_no_part_of_a_header_with_quotes_in_it_is_left(name: str) -> None:
    said = redact(f'{name}a=b; sid="Zq8rT2mW5x", nonce="K9vB3nL7pD"; Path=/')
    assert said == name + MASK


def test_no_private_key_of_several_that_were_cut_is_left() -> None:
    cut = PEM.partition("\n-----END")[0]
    said = redact(f"tried {cut} [...]\nand {cut} [...]\nand {cut}")
    assert said == f"tried {MASK}[...]\nand {MASK}[...]\nand {MASK}"


def test_a_key_in_the_place_of_a_name_is_hidden_too() -> None:
    said = redact("https://0123456789abcdef0123:x-oauth-basic@github.com/a/b")
    assert said == f"https://{MASK}:{MASK}@github.com/a/b"


ORDINARY = [
    "max_tokens=128, token_ids=[1, 2, 3], token='<|im_end|>', eos_token=</s>, pad_token: 0",
    "token = tokenizer.next()",
    "unexpected token: 'foo' at line 3",
    "def login(self, password: str, api_key: str | None = None) -> None:",
    "client = Client(api_key=os.environ['KEY'], password=get_password(), token=token)",
    "client = Client(api_key=api_key)",
    "the secret of a good loop; the key is patience; pass the token on",
    "tests pass: 3, author: Ann, authorized: yes",
    "Basic arithmetic and a Bearer of news, a basic understanding",
    "task-0123456789abcdef, risk-averse-behaviour-0123, sk-learn, ask-for-help-0123456789",
    "hf_renderer hf_chat_template_of_a_family",
    "git@github.com:ann/repo.git ssh://git@github.com/ann https://ann@host/x http://[::1]:80/x",
    "commit 6f1ed002ab5595859014ebf0951522d9d5b3c0a1",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "if x == 1: return {'key': 'value', 'keys': [1]}",
    "a?page=2&sort=key&order=asc",
    "fields = ['api_key', 'password', \"base_url\"], ('secret', 'v2')",
    'API_KEY=os.environ["KEY"]',
    '{"Accept": "a=", "Cookie": "", "Next": "b"}',
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


def test_random_data_stays() -> None:
    source = random.Random(7)
    for _ in range(40):
        data = source.randbytes(20_000)
        for text in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex()):
            assert redact(text) == text
    uuids = " ".join(str(uuid.UUID(bytes=source.randbytes(16), version=4)) for _ in range(500))
    assert redact(uuids) == uuids


def test_code_stays() -> None:
    lines = [line for path in (ROOT / "agentkit").rglob("*.py") for line in path.read_text().splitlines()]
    lines += Path(ast.__file__).read_text().splitlines() + Path(tomllib.__file__).read_text().splitlines()
    changed = [line for line in lines if redact(line) != line]
    assert len(lines) > 8000
    assert len(changed) < len(lines) / 1000, changed


FRAGMENTS = st.sampled_from(
    [text.format(secret) for text, secret in LEAKS] + ORDINARY + [MASK, '"', "'", "\\", "=", ": ", "@", "\n", " "]
)


@given(st.lists(FRAGMENTS | strategies.texts(), max_size=6).map("".join))
@example("api_key=[redacted]")
@example("https://a:[redacted]@b")
def test_redacting_twice_changes_no_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(strategies.texts(40), st.sampled_from(["sk-Ab12Cd34Ef56Gh78", "ghp_" + "aB3" * 12, PEM]), strategies.texts(40))
def test_a_key_is_found_in_any_text(before: str, key: str, after: str) -> None:
    said = redact(f"{before} {key} {after}")
    assert key not in said
    assert MASK in said


PIECES = [
    "sk-",
    "eyJ",
    "eyJaaaaaa.",
    "token=",
    'token="',
    "token=\"token='",
    "token:",
    "token:aaaa.token:",
    "://",
    "a:",
    "-----BEGIN PRIVATE KEY-----",
    "-----END PRIVATE KEY-----",
    "authorization:",
    "cookie: ",
    "Bearer ",
    "?key=",
    "--api-key ",
    'password=\\"',
    "password=a%20",
    "\\",
    "-",
    "pass",
    "=",
    "AKIA",
    "hf_",
    " ",
    "A" * 64 + "\n",
    "%3D",
    'cookie: a="b"',
    "A_PASSWORD=",
    "A_A_A_A_A_A_SECRE",
    "SECRET=x \n",
    "cookie: a='b';c=",
    "'token', '",
    "'token',\"",
    "auth:a!%aa",
]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("start", ["", "https://", 'password="', "-----BEGIN PRIVATE KEY-----\n"])
def test_no_text_takes_long(piece: str, start: str) -> None:
    """Linear takes some 0.1 s at most; quadratic would take from ten seconds on."""
    text = start + (piece * (60_000 // len(piece)))
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 1.0


def test_an_error_of_a_url_with_credentials() -> None:
    try:
        urllib.request.urlopen("nothing://ann:hunter2@host/x?api_key=plainword")
    except urllib.error.URLError as error:
        error.add_note("while opening nothing://ann:hunter2@host/x?api_key=plainword")
        said = error_text(error)
    assert "hunter2" not in said
    assert "plainword" not in said
    assert "nothing://ann:[redacted]@host/x?api_key=[redacted]" in said


def test_an_error_of_an_http_client_that_shows_its_request() -> None:
    aiohttp = pytest.importorskip("aiohttp")
    from multidict import CIMultiDict, CIMultiDictProxy
    from yarl import URL

    headers = CIMultiDictProxy(CIMultiDict({"Authorization": "Bearer plainword", "Accept": "*/*"}))
    url = URL("https://ann:hunter2@host/v1?api_key=plainword")
    request = aiohttp.RequestInfo(url, "POST", headers, url)
    error = aiohttp.ClientResponseError(request, (), status=401, message="no")
    for text in (repr(error), str(error), str(request)):
        said = redact(text)
        assert "plainword" not in said
        assert "hunter2" not in said
    assert "401" in redact(repr(error))


def test_an_environment_in_an_error() -> None:
    environ = {"PATH": "/usr/bin", "OPENAI_API_KEY": "plainword", "HF_TOKEN": "abcd1234efgh", "PGPASSWORD": "pw"}
    try:
        raise KeyError(f"LANG is not in {environ}")
    except KeyError as error:
        said = error_text(error)
    assert not any(secret in said for secret in ("plainword", "abcd1234efgh", "'pw'"))
    assert "/usr/bin" in said
    assert "test_an_environment_in_an_error" in said


def test_an_error_is_kept_within_bounds_and_keeps_its_end() -> None:
    try:
        raise ValueError("x " * 500_000 + "the end")
    except ValueError as error:
        said = error_text(error)
    assert len(said) < 70_000
    assert said.startswith("Traceback")
    assert said.rstrip().endswith("the end")
    assert "characters cut" in said


@given(st.integers(0, 300), st.integers(0, 40))
def test_cutting_never_shows_half_a_word(limit: int, filler: int) -> None:
    words = [f"word{n:04d}" for n in range(30)]
    text = " ".join(words) + " " * filler
    said = cut_middle(text, limit)
    if len(text) <= limit:
        assert said == text
    else:
        head, _, tail = said.partition("[... ")
        kept = head.split() + tail.partition("...]\n")[2].split()
        assert set(kept) <= set(words)
        assert len(said) <= limit + 60


@pytest.mark.parametrize("where", ["tool", "env", "reward", "loop", "model", "close"])
async def test_a_rollout_that_fails_with_a_key_keeps_it_out_of_its_errors(where: str, caplog) -> None:
    import agentkit as ak
    from agentkit.models import ScriptedModel
    from agentkit.testing import FakeTool, World

    key = "sk-proj-Ab12Cd34Ef56Gh78"

    async def fail(_: object = None, env: object = None) -> float:
        raise RuntimeError(f"401 for {key}")

    class Failing(ScriptedModel):
        async def sample_tokens(self, request, emit):
            await fail()

    call = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
    world = World(on_start=fail if where == "env" else None, on_close=fail if where == "close" else None)
    agent = ak.Agent(
        Failing([]) if where == "model" else ScriptedModel([call, "done"]),
        env=world,
        tools=[FakeTool("search", fail if where == "tool" else _ok)],
        reward=fail if where == "reward" else None,
        loop=fail if where == "loop" else ak.react,
        outcomes=ak.OutcomePolicy(retries=1),
    )
    async with ak.Pool(agent) as pool:
        (trajectory,) = await pool.run([ak.Task("t", "Find it.")])
        errors = [trajectory.error, *(attempt.error for attempt in trajectory.attempts), *pool.stuck]
        errors.append(trajectory.grade.error if trajectory.grade else None)
    told = [error for error in errors if error is not None]
    if where == "tool":  # what the policy read is a fact, and stays
        assert key in trajectory.turns[0].observations[0].content
    else:
        assert any("401 for [redacted]" in error for error in told), told
    assert not any(key in error for error in told)
    assert key not in caplog.text


async def _ok(*_: object) -> str:
    return "ok"
