import logging
from pathlib import Path

import anyio
import pytest
from agentkit_remote import RemoteBackend, SandboxServer, ServerPolicy
from agentkit_remote.auth import Tokens, is_loopback, read_tokens, token_of
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.protocols import Allow, Capabilities, Limits, SandboxSpec
from agentkit.sandbox import HostBackend, sandbox_from

ONE, OTHER = "first-token-0123456789", "other-token-0123456789"


def test_each_token_is_a_client_of_its_own() -> None:
    tokens = Tokens([ONE, OTHER])
    one, other = tokens.whose(f"Bearer {ONE}"), tokens.whose(f"bearer {OTHER}")
    assert one is not None
    assert other is not None
    assert one != other
    assert ONE not in one
    for header in (None, "", ONE, f"Basic {ONE}", "Bearer", "Bearer ", f"Bearer {ONE}x", f"Bearer {ONE[:-1]}"):
        assert tokens.whose(header) is None


@given(st.text())
def test_no_other_header_is_a_client(header: str) -> None:
    assert Tokens([ONE]).whose(header) is None


@pytest.mark.parametrize(
    "token", ["", "short", "has a blank in it, so", "ünprintable-in-ascii", "line\nline-line-line"]
)
def test_a_token_that_guards_nothing_is_refused_and_not_shown(token: str) -> None:
    for make in (
        lambda: Tokens([token]),
        lambda: RemoteBackend("http://h", token=token),
        lambda: SandboxServer(HostBackend(), tokens=[token]),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert not token or token not in str(caught.value)


def test_tokens_come_from_files_that_nobody_else_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who\n{ONE}\n\n  {OTHER}\n")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(path)
    path.chmod(0o600)
    assert read_tokens(path) == [ONE, OTHER]
    assert token_of(None, path) == ONE
    SandboxServer(HostBackend(), token_file=str(path))
    RemoteBackend("http://127.0.0.1:1", token_file=str(path), tls_ca=str(path))
    monkeypatch.setenv("AGENTKIT_SANDBOX_TOKEN", OTHER)
    assert token_of(None, None) == OTHER
    assert token_of(ONE, None) == ONE
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="no token"):
        read_tokens(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path / "missing")


def test_strangers_are_not_served() -> None:
    backend = HostBackend()
    for host in ("0.0.0.0", "::", "", "10.0.0.1", "example.org"):
        with pytest.raises(ConfigError, match="token is needed"):
            SandboxServer(backend, host=host, anonymous=True)
    with pytest.raises(ConfigError, match="no token"):
        SandboxServer(backend)
    SandboxServer(backend, anonymous=True)
    SandboxServer(backend, host="0.0.0.0", tokens=[ONE])
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")] == [True] * 5


@pytest.mark.parametrize(
    "url",
    ["", "host:1", "ftp://h", "http://", "http://h:x", "http://h/path", "http://h?q=1", "http://me:hunter2hunter2@h"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url") as caught:
        RemoteBackend(url)
    assert "hunter2" not in str(caught.value)


def test_the_token_is_in_no_repr_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        backend = RemoteBackend("http://elsewhere.example:80", token=ONE)
        server = SandboxServer(HostBackend(), host="0.0.0.0", tokens=[ONE])
    assert "unencrypted" in caplog.text
    for text in (repr(backend), repr(backend._address), repr(server), str(vars(server)), caplog.text):
        assert ONE not in text


ALL = Capabilities(
    isolated=True,
    image=True,
    rootfs=True,
    read_only=True,
    networks=frozenset({"none", "host", "allow"}),
    limits=frozenset({"cpus"}),
)


class Everything:
    capabilities = ALL

    async def start(self, spec: SandboxSpec, /) -> object:
        raise NotImplementedError


def test_clients_name_no_directory_of_the_server_that_is_not_shared(tmp_path: Path) -> None:
    shared, secret = tmp_path / "lent", tmp_path / "lent-not"
    (shared / "in").mkdir(parents=True)
    secret.mkdir()
    (shared / "out").symlink_to(secret)
    policy = ServerPolicy(share=(str(shared),))
    for path in (shared, shared / "in"):
        policy.check(SandboxSpec(read_only=((str(path), "/x"),)), Everything())  # type: ignore[arg-type]
        policy.check(SandboxSpec(rootfs=str(path)), Everything())  # type: ignore[arg-type]
    for text in (str(secret), "/", f"{shared}/../lent-not", f"{shared}/out", "in", "", f"{shared}\0", str(tmp_path)):
        with pytest.raises(ConfigError, match="read_only"):
            policy.check(SandboxSpec(read_only=((text, "/x"),)), Everything())  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="rootfs"):
            policy.check(SandboxSpec(rootfs=text), Everything())  # type: ignore[arg-type]
    nothing = ServerPolicy()
    assert not nothing.narrow(ALL).rootfs
    assert not nothing.narrow(ALL).read_only
    with pytest.raises(ConfigError, match="read_only"):
        nothing.check(SandboxSpec(read_only=(("/etc", "/x"),)), HostBackend())


def test_a_server_may_keep_its_network_to_itself() -> None:
    policy = ServerPolicy(networks=frozenset({"none"}))
    assert policy.narrow(ALL).networks == {"none"}
    policy.check(SandboxSpec(limits=Limits(cpus=1)), Everything())  # type: ignore[arg-type]
    for spec in (SandboxSpec(network="host"), SandboxSpec(network=Allow(("a.org",)))):
        with pytest.raises(ConfigError, match="network"):
            policy.check(spec, Everything())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"orphan_s": 0}, {"heartbeat_s": float("nan")}, {"max_requests": -1}, {"share": ("a",)}]
)
def test_a_policy_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        ServerPolicy(**change)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_it_cannot_run_on_is_said() -> None:
    async def start() -> None:
        await RemoteBackend("http://127.0.0.1:9", token=ONE).start(SandboxSpec())

    async def listen() -> None:
        async with SandboxServer(HostBackend(), tokens=[ONE]):
            pass

    for use in (start, listen):
        with pytest.raises(ConfigError, match="asyncio"):
            anyio.run(use, backend="trio")


def test_it_comes_from_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "tokens").touch(mode=0o600)
    (tmp_path / "tokens").write_text(ONE)
    config = {"type": "remote", "url": "wss://elsewhere.example", "token_file": str(tmp_path / "tokens")}
    made = sandbox_from(config | {"image": "debian:12", "reconnect_s": 5})
    assert repr(made.backend) == "RemoteBackend('https://elsewhere.example')"
    assert made.spec.image == "debian:12"
    with pytest.raises(ConfigError, match=r"sandbox\.url"):
        sandbox_from({"type": "remote"})
    with pytest.raises(ConfigError, match="token") as caught:
        sandbox_from({"type": "remote", "url": "http://h", "token": "hunter2"})
    assert "hunter2" not in str(caught.value)
