"""Known values are hidden however they were encoded, and nothing else is."""

import base64
import json
import pickle
from urllib.parse import quote, quote_plus, urlencode

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.logs import MASK, RedactingSink, Redactor, environment_secrets
from agentkit.logs.sink import without_secrets
from agentkit.models import ScriptedModel
from agentkit.testing import FakeTool, MemorySink, strategies

SECRET = 'corr/ect+horse "Ünï\\'


def test_a_value_is_hidden_in_every_form() -> None:
    redactor = Redactor([SECRET])
    data = SECRET.encode()
    forms = [
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        quote(SECRET, safe="").lower().replace("%c3%9cn", "%c3%9cn"),
        urlencode({"q": SECRET}).partition("=")[2],
        urlencode({"next": urlencode({"q": SECRET})}).partition("%3D")[2],
        quote(quote(SECRET)),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(SECRET))[3:-3],
        repr(SECRET)[1:-1],
        repr(data)[2:-1],
        data.hex(),
    ]
    for form in forms:
        assert redactor(f"x{form}y") == f"x{MASK}y", form


@given(st.binary(max_size=8), st.text(min_size=12), st.binary(max_size=8))
def test_a_value_is_hidden_in_base64_wherever_it_stood(before: bytes, secret: str, after: bytes) -> None:
    assume(len(set(secret)) > 3)
    data = secret.encode("utf-8", "surrogatepass")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        said = Redactor([secret])(encode(before + data + after).decode())
        assert MASK in said
        # at most a few characters at the seams, which also stand for what was around it, are left
        assert len(said) - len(MASK) <= (len(before) + len(after)) * 4 / 3 + 12


@given(st.text(min_size=9, max_size=30), strategies.texts(30), strategies.texts(30))
def test_a_value_is_never_left(secret: str, before: str, after: str) -> None:
    assume(secret not in MASK and secret not in f"{before}{MASK}{after}")
    said = Redactor([secret])(before + secret + after)
    assert secret not in said


def test_short_values_are_words_and_shorter_ones_are_nothing() -> None:
    redactor = Redactor(["pass1", "abc", "", "redacted"])
    assert redactor("pass1, xpass1x abc redacted") == f"{MASK}, xpass1x abc redacted"


def test_a_longer_value_goes_first() -> None:
    assert Redactor(["longsecret", "longsecret-and-more"])("longsecret-and-more") == MASK


def test_it_shows_nothing_of_what_it_knows() -> None:
    redactor = Redactor([SECRET, "anothersecret"])
    assert repr(redactor) == "Redactor()"
    again = pickle.loads(pickle.dumps(redactor))
    assert again == redactor
    assert again(SECRET) == MASK
    assert Redactor("onesecret")("onesecret") == MASK, "a string is one secret"


def test_patterns_are_hidden_as_well() -> None:
    assert Redactor(["longsecret"])("longsecret api_key=x") == f"{MASK} api_key={MASK}"


def test_secrets_of_an_environment() -> None:
    environ = {
        "OPENAI_API_KEY": "a1",
        "HF_TOKEN": "b2",
        "DB_PASSWORD": "c3",
        "AWS_SECRET_ACCESS_KEY": "d4",
        "PATH": "/bin",
        "KEYBOARD": "de",
        "TOKENIZERS_PARALLELISM": "false",
        "EMPTY_TOKEN": "",
    }
    assert environment_secrets(environ) == {"a1", "b2", "c3", "d4"}


@given(strategies.trajectories())
def test_nothing_but_errors_is_changed_in_a_trajectory(trajectory) -> None:
    marked = without_secrets(trajectory, lambda text: f"<{text}>")
    for old, new in zip(trajectory.walk(), marked.walk(), strict=True):
        assert new.error == (None if old.error is None else f"<{old.error}>")
        assert new.stuck == tuple(f"<{name}>" for name in old.stuck)
        assert [a.error for a in new.attempts] == [None if a.error is None else f"<{a.error}>" for a in old.attempts]
        if old.grade is not None:
            assert new.grade.error == (None if old.grade.error is None else f"<{old.grade.error}>")
            assert new.grade.score is old.grade.score
        same = {"error", "stuck", "attempts", "grade", "children"}
        for field in attrs.fields(type(old)):
            if field.name not in same:
                assert getattr(new, field.name) is getattr(old, field.name)


async def test_known_values_do_not_reach_the_journal_in_errors(tmp_path) -> None:
    secret = "plain horse battery"

    async def fail(_: object, env: object = None) -> float:
        raise RuntimeError(f"cannot log in with {secret}")

    call = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
    agent = ak.Agent(ScriptedModel([call, "done"]), tools=[FakeTool("search", fail)], reward=fail)
    task = ak.Task("t", "Find it.")
    async with Journal.open(tmp_path, writer="inline") as journal:
        sink = RedactingSink(journal, Redactor([secret]))
        async with ak.Pool(agent, sink=sink) as pool:
            await pool.run([task])
        async with ak.Pool(agent, sink=sink) as pool:
            assert await pool.run([task]) == [], "what is sealed is known through it"
        assert sink.next_attempt("t", 0) == 1
    with JournalReader.open(tmp_path) as reader:
        (trajectory,) = reader.trajectories()
    assert trajectory.grade.error == f"RuntimeError: cannot log in with {MASK}"
    assert secret in trajectory.turns[0].observations[0].content, "what the policy read is exact"


async def test_a_sink_that_cannot_resume_is_none_that_can() -> None:
    sink = RedactingSink(MemorySink(), Redactor())
    assert ("t", 0) not in sink.sealed()
    assert sink.next_attempt("t", 0) == 0


@pytest.mark.parametrize("secret", ["x" * 9, "a.b*c[d](e)"])
def test_a_value_is_no_pattern(secret: str) -> None:
    assert Redactor([secret])(f"-{secret}-") == f"-{MASK}-"
