"""Clients that are strangers, hostile, or too many; and a server that is none."""

import asyncio
import contextlib
import random
import resource
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from agentkit_remote import RemoteBackend, SandboxServer, ServerPolicy
from agentkit_remote.frames import SUBPROTOCOL, WINDOW_BYTES, Frame, Kind, decode, encode
from aiohttp import web

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import OutputCap, SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend, collect
from agentkit.sandbox.registry import Entry, Registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OTHER = "the-token-of-another-client"
SESSION = "0123456789abcdef" * 2


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def raw(
    server: SandboxServer, token: str, session: str = SESSION, **hello: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A connection by hand, after the HELLO."""
    async with (
        aiohttp.ClientSession(headers=_bearer(token)) as http,
        http.ws_connect(f"{server.url}/v1/connect", protocols=[SUBPROTOCOL]) as socket,
    ):
        body = {"version": 1, "session": session, "received": 0, "resume": False} | hello
        await socket.send_bytes(encode(Frame(Kind.HELLO, body=body)))
        yield socket


async def told(socket: aiohttp.ClientWebSocketResponse) -> Frame:
    """The next frame that is no PING or ACK."""
    async with asyncio.timeout(10):
        while True:
            frame = decode(await socket.receive_bytes())
            if frame.kind not in (Kind.PING, Kind.ACK):
                return frame


async def ended(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """Wait for the end of the connection; how it was closed."""
    async with asyncio.timeout(10):
        while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
    return socket.close_code


async def test_strangers_and_browsers_are_turned_away(server: SandboxServer, token: str) -> None:
    async with aiohttp.ClientSession() as http:
        for headers, status in (
            ({}, 401),
            (_bearer(OTHER), 401),
            ({"Authorization": f"Basic {token}"}, 401),
            (_bearer(token) | {"Origin": "http://evil.example"}, 403),
            (_bearer(token), 400),  # without the protocol's name
        ):
            async with http.get(f"{server.url}/v1/connect", headers=headers) as answer:
                assert answer.status == status
                assert token not in await answer.text()
            async with http.delete(f"{server.url}/v1/sessions/{SESSION}", headers=headers) as answer:
                assert answer.status == (404 if status == 400 else status)
        async with http.get(f"{server.url}/", headers=_bearer(token)) as answer:
            assert answer.status == 404


async def test_each_token_sees_its_own_sandboxes(bwrap: BwrapBackend, token: str) -> None:
    async with SandboxServer(bwrap, tokens=[token, OTHER]) as server:
        mine = RemoteBackend(server.url, token=token)
        async with await mine.start(SandboxSpec()) as sandbox:
            session = sandbox._link.session
            number = sandbox._number
            async with raw(server, OTHER, session, resume=True) as socket:
                assert (await told(socket)).body == {"error": "unknown"}
            async with raw(server, OTHER, session) as socket:
                assert (await told(socket)).kind is Kind.HELLO
                await socket.send_bytes(encode(Frame(Kind.OPEN, number + 7, body={"op": "alive", "sandbox": number})))
                assert (await told(socket)).body == {"ok": {"alive": False}}
                await socket.send_bytes(
                    encode(Frame(Kind.OPEN, number + 8, body={"op": "read", "sandbox": number, "path": "/etc/passwd"}))
                )
                result = await told(socket)
                assert result.body is not None
                assert result.body["error"]["type"] == "dead"
            async with (
                aiohttp.ClientSession(headers=_bearer(OTHER)) as http,
                http.delete(f"{server.url}/v1/sessions/{session}") as answer,
            ):
                assert answer.status in (204, 404)  # of its own session of that name
            assert (await sandbox.run("echo mine")).text == "mine\n"


CAP = {"head_bytes": 10, "tail_bytes": 10}
HOSTILE: list[tuple[str, list[bytes]]] = [
    ("no frame", [b"\xff"]),
    ("unknown kind", [bytes([99, 0, 0, 0, 1])]),
    ("a second hello", [encode(Frame(Kind.HELLO, body={}))]),
    ("a result", [encode(Frame(Kind.RESULT, 1, body={}))]),
    ("no request", [encode(Frame(Kind.DATA, 5, data=b"x"))]),
    ("acknowledged too much", [encode(Frame(Kind.ACK, number=10**6))]),
    ("a number twice", [encode(Frame(Kind.OPEN, 3, body={"op": "alive"}))] * 2),
    ("a lower number", [encode(Frame(Kind.OPEN, n, body={"op": "alive"})) for n in (9, 8)]),
    (
        "beyond its credit",
        [encode(Frame(Kind.OPEN, 3, body={"op": "exec", "sandbox": 2, "argv": ["sleep", "30"], "cap": CAP}))]
        + [encode(Frame(Kind.END, 3))]
        + [encode(Frame(Kind.DATA, 3, data=b"x" * 65_536))] * (WINDOW_BYTES // 65_536 + 1),
    ),
    ("too large", [b"\x01\0\0\0\x01" + b" " * (5 << 20)]),
]


@pytest.mark.parametrize(("what", "messages"), HOSTILE, ids=[what for what, _ in HOSTILE])
async def test_who_breaks_the_protocol_is_cut_off_and_loses_its_sandboxes(
    server: SandboxServer, token: str, what: str, messages: list[bytes]
) -> None:
    async with raw(server, token) as socket:
        assert (await told(socket)).kind is Kind.HELLO
        start = {"op": "start", "spec": {"cwd": "/work", "network": "none", "read_limit_bytes": 1}}
        await socket.send_bytes(encode(Frame(Kind.OPEN, 2, body=start)))
        assert "ok" in ((await told(socket)).body or {})
        assert server.sandboxes == 1
        with contextlib.suppress(ConnectionError):
            for message in messages:
                await socket.send_bytes(message)
        assert await ended(socket) in (1002, 1006, 1009)
    with anyio.fail_after(10):
        while server.sandboxes:
            await anyio.sleep(0.02)


@pytest.mark.parametrize("hello", [{"session": "short"}, {"session": "X" * 32}, {"version": 2}, {"received": -1}, {}])
async def test_a_wrong_hello_is_refused(server: SandboxServer, token: str, hello: dict[str, Any]) -> None:
    if not hello:
        hello = {"received": 5}  # of nothing that was sent
    async with raw(server, token, **hello) as socket:
        if hello == {"received": 5}:
            assert (await told(socket)).kind is Kind.HELLO
        assert await ended(socket) == 1002


async def test_arguments_that_are_none_fail_their_request_only(server: SandboxServer, token: str) -> None:
    chance = random.Random(2)
    values: list[Any] = [None, True, -1, 1.5, "x", [], {}, [[1]], {"a": 1}, "\0", 10**30]
    spec = {"cwd": "/work", "network": "none", "read_limit_bytes": 1}
    async with raw(server, token) as socket:
        await told(socket)
        await socket.send_bytes(encode(Frame(Kind.OPEN, 1, body={"op": "start", "spec": spec})))
        assert "ok" in ((await told(socket)).body or {})
        operations = ["start", "run", "exec", "read", "write", "upload", "download", "alive", "screen", "send", "fork"]
        for number in range(2, 200):
            body: dict[str, Any] = {"op": chance.choice([*operations, "close", "no such", 5]), "sandbox": 1}
            names = (
                "spec",
                "cap",
                "argv",
                "timeout_s",
                "path",
                "links",
                "of",
                "env",
                "live",
                "source",
                "sandbox",
                "op",
            )
            body[chance.choice(names)] = chance.choice(values)
            await socket.send_bytes(encode(Frame(Kind.OPEN, number, body=body)))
            await socket.send_bytes(encode(Frame(Kind.END, number)))
            answer = await told(socket)
            while answer.kind is not Kind.RESULT:
                answer = await told(socket)
            assert answer.request == number
            assert set(answer.body or {}) in ({"error"}, {"ok"})
            if "error" in (answer.body or {}):
                said = (answer.body or {})["error"]["message"]
                assert "the server failed" not in said, (body, said)


async def test_bounds_of_a_server(bwrap: BwrapBackend, token: str, tmp_path: Path) -> None:
    policy = ServerPolicy(
        max_sandboxes=2, max_sessions=2, body_limit_bytes=100_000, tree_limit_bytes=100_000, memory_limit_bytes=250_000
    )
    async with SandboxServer(bwrap, tokens=[token], policy=policy) as server:
        backend = RemoteBackend(server.url, token=token)
        spec = SandboxSpec(read_limit_bytes=100_000)
        with pytest.raises(ConfigError, match="read_limit_bytes"):
            await backend.start(SandboxSpec(read_limit_bytes=100_001))
        async with await backend.start(spec) as one, await backend.start(spec):
            with pytest.raises(SandboxError, match="2 sandboxes") as caught:
                await backend.start(spec)
            assert caught.value.retryable
            for refused in (
                one.write("f", b"x" * 100_001),
                one.run("x" * 100_001),
                one.exec(["cat"], stdin=b"x" * 100_001),
                one.exec(["true"], cap=OutputCap(100_000, 1)),
            ):
                with pytest.raises(SandboxError, match="100000") as too_much:
                    await refused
                assert not isinstance(too_much.value, SandboxDead)
            (tmp_path / "large").write_bytes(b"x" * 100_001)
            with pytest.raises(SandboxError, match="100000"):
                await one.upload(tmp_path / "large", "large")
            assert (await one.run("ls")).text == ""
            small = OutputCap(100, 100)
            busy = asyncio.ensure_future(one.exec(["sleep", "0.5"], stdin=b"x" * 90_000, cap=OutputCap(90_000, 0)))
            await anyio.sleep(0.2)
            with pytest.raises(SandboxError, match="250000") as too_many:
                await one.exec(["cat"], stdin=b"x" * 90_000, cap=small)
            assert too_many.value.retryable
            assert (await busy).exit_code == 0
            assert (await one.exec(["wc", "-c"], stdin=b"x" * 90_000, cap=small)).text.split() == ["90000"]
            second = RemoteBackend(server.url, token=token)
            third = RemoteBackend(server.url, token=token)
            async with second:
                with pytest.raises(SandboxError, match="2 sandboxes"):
                    await second.start(spec)
                with pytest.raises(SandboxError, match="no more clients") as full:
                    await third.start(spec)
                assert full.value.retryable
        async with await third.start(spec):
            pass


async def test_the_server_checks_what_a_client_only_hoped_for(server: SandboxServer, token: str) -> None:
    backend = RemoteBackend(server.url, token=token)
    assert backend.capabilities.image
    with pytest.raises(ConfigError, match="image"):
        await backend.start(SandboxSpec(image="debian"))
    assert not backend.capabilities.image
    with pytest.raises(ConfigError, match="read_only"):
        await backend.start(SandboxSpec(read_only=(("/etc", "/work/etc"),)))
    async with raw(server, token) as socket:
        await told(socket)
        spec = {"cwd": "/work", "network": "none", "read_limit_bytes": 1, "read_only": [["/etc", "/work/etc"]]}
        await socket.send_bytes(encode(Frame(Kind.OPEN, 1, body={"op": "start", "spec": spec})))
        answer = (await told(socket)).body or {}
        assert answer["error"]["type"] == "config"
        assert "read_only" in answer["error"]["message"]


async def test_endless_output_costs_no_memory_on_either_side(server: SandboxServer, remote: RemoteBackend) -> None:
    async with await remote.start(SandboxSpec()) as sandbox:
        await sandbox.exec(["sh", "-c", "yes | head -c 20000000"], on_output=len)  # what is kept for good is there now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seen = 0

        def slowly(data: bytes) -> None:
            nonlocal seen
            seen += len(data)

        result = await sandbox.exec(["yes"], timeout_s=2.0, on_output=slowly)
        assert result.timed_out
        assert result.total_bytes > 1_000_000
        assert seen > 1_000_000
        await sandbox.run("yes", timeout_s=1.0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 40_000, f"{grown} KiB"


async def test_a_program_waits_for_a_client_that_takes_nothing(server: SandboxServer, token: str) -> None:
    async with raw(server, token) as socket:
        await told(socket)
        spec = {"cwd": "/work", "network": "none", "read_limit_bytes": 1}
        await socket.send_bytes(encode(Frame(Kind.OPEN, 1, body={"op": "start", "spec": spec})))
        await told(socket)
        script = "i=0; while :; do i=$((i+1)); echo $i > count; printf '%065536d' 0; done"
        run = {"op": "exec", "sandbox": 1, "argv": ["bash", "-c", script], "live": True, "cap": CAP}
        await socket.send_bytes(encode(Frame(Kind.OPEN, 2, body=run | {"timeout_s": 20})))
        await socket.send_bytes(encode(Frame(Kind.END, 2)))
        received = 0
        with anyio.move_on_after(1.5):
            while True:
                received += len((await told(socket)).data)
        assert received == WINDOW_BYTES, "all it has credit for, and no more"
        look = {"op": "exec", "sandbox": 1, "argv": ["cat", "count"], "cap": CAP}
        await socket.send_bytes(encode(Frame(Kind.OPEN, 3, body=look)))
        await socket.send_bytes(encode(Frame(Kind.END, 3)))
        count = await told(socket)
        assert count.request == 3
        assert 4 <= int(count.data) < 40, "it does not run ahead"
        await socket.send_bytes(encode(Frame(Kind.CANCEL, 2)))
        frame = await told(socket)
        while frame.kind is not Kind.RESULT or frame.request != 2:
            frame = await told(socket)


async def test_tls(bwrap: BwrapBackend, token: str, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    async with SandboxServer(bwrap, tokens=[token], tls_cert=cert, tls_key=key) as server:
        assert server.url.startswith("https://")
        async with await RemoteBackend(server.url, token=token, tls_ca=cert).start(SandboxSpec()) as sandbox:
            assert (await sandbox.run("echo secret")).text == "secret\n"
        with pytest.raises(ConfigError, match="not trusted"):
            await RemoteBackend(server.url, token=token).start(SandboxSpec())
        plain = RemoteBackend(server.url.replace("https", "http"), token=token, connect_s=0.5)
        with pytest.raises((SandboxError, ConfigError)):
            await plain.start(SandboxSpec())
    with pytest.raises(ConfigError, match="tls_cert"):
        SandboxServer(bwrap, tokens=[token], tls_cert=tmp_path / "none", tls_key=key)
    with pytest.raises(ConfigError, match="together"):
        SandboxServer(bwrap, tokens=[token], tls_key=key)


async def test_what_a_dead_client_left_is_removed_by_its_entry(bwrap: BwrapBackend, token: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(token)
    tokens.chmod(0o600)
    async with SandboxServer(bwrap, tokens=[token]) as server:
        alive = RemoteBackend(server.url, token_file=tokens)
        async with await alive.start(SandboxSpec()) as kept:
            lost = RemoteBackend(server.url, token_file=tokens)
            await lost.start(SandboxSpec())
            entries = {entry.data["session"]: entry for entry in Registry().entries()}
            entry = entries[next(session for session in entries if session != kept._link.session)]
            dead = Entry(type="remote", name=f"{_dead(entry.owner)}-x", owner=_dead(entry.owner), data=entry.data)
            Registry()._write(dead)
            assert server.sandboxes == 2
            found = await collect(types=("remote",))
            assert (found.removed, found.failed) == ((f"remote {dead.name}",), ())
            assert server.sandboxes == 1
            assert (await kept.run("echo kept")).text == "kept\n"
            await RemoteBackend.remove(dead)  # again
            nobody = Entry(type="remote", name="x", owner="x", data={"url": server.url, "session": SESSION})
            with pytest.raises(SandboxError, match="token"):
                await RemoteBackend.remove(nobody)
    for _ in range(2):
        with pytest.raises(SandboxError, match="cannot be reached"):
            await RemoteBackend.remove(dead)
    (noted,) = [entry for entry in Registry().entries() if entry.name == dead.name]
    assert noted.data["orphan_s"] == "60"
    await RemoteBackend.remove(
        Registry().update(noted, unreachable_since=str(time.time() - 100))
    )  # it was closed there


def _dead(owner: str) -> str:
    boot, pid, started = owner.split(".")
    return f"{boot}.{pid}.{int(started) - 1}"


async def _pretend(messages: list[bytes]) -> AsyncIterator[str]:
    """A server that says these and nothing else."""

    async def connect(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=[SUBPROTOCOL], max_msg_size=10 << 20)
        await socket.prepare(request)
        await socket.receive()
        for message in messages:
            await socket.send_bytes(message)
        async for _ in socket:
            pass
        return socket

    application = web.Application()
    application.router.add_get("/v1/connect", connect)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


HELLO = {"version": 1, "received": 0, "heartbeat_s": 1, "orphan_s": 60}
CAPABLE = encode(Frame(Kind.HELLO, body=HELLO | {"capabilities": {"isolated": True, "networks": ["none"]}}))
STARTED = encode(Frame(Kind.RESULT, 1, body={"ok": {"name": "\x1b[31m"}}))


@pytest.mark.parametrize(
    "messages",
    [
        [b""],
        [b"\xff" * 10],
        [encode(Frame(Kind.PING))],
        [encode(Frame(Kind.HELLO, body={}))],
        [encode(Frame(Kind.HELLO, body={"error": "\x1b]0;" * 1000}))],
        [encode(Frame(Kind.HELLO, body=HELLO | {"received": 7, "capabilities": {"isolated": True}}))],
        [CAPABLE, encode(Frame(Kind.RESULT, 9, body={}))],
        [CAPABLE, encode(Frame(Kind.OPEN, 1, body={}))],
        [CAPABLE, b"\x06\0\0\0\x01" + b"[" * 1000],
        [
            CAPABLE,
            encode(Frame(Kind.RESULT, 1, body={"ok": 5})),
        ],
        [CAPABLE, b"\x02\0\0\0\x01" + b"x" * (5 << 20)],
    ],
)
async def test_a_server_that_is_none_fails_the_start(messages: list[bytes]) -> None:
    async for url in _pretend(messages):
        backend = RemoteBackend(url, connect_s=1.0)
        with anyio.fail_after(15), pytest.raises((SandboxError, ConfigError)) as caught:
            await backend.start(SandboxSpec())
        assert len(str(caught.value)) < 1000


async def test_a_server_that_sends_more_than_asked_for_is_stopped() -> None:
    flood = [encode(Frame(Kind.DATA, 2, data=b"x" * 65_536))] * 3
    got = asyncio.Event()

    async def connect(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=[SUBPROTOCOL])
        await socket.prepare(request)
        await socket.receive()
        await socket.send_bytes(CAPABLE)
        async for message in socket:
            frame = decode(message.data)
            if frame.kind is Kind.OPEN and frame.request == 1:
                await socket.send_bytes(STARTED)
            elif frame.kind is Kind.OPEN and frame.request == 2:
                for piece in flood:
                    await socket.send_bytes(piece)
            elif frame.kind is Kind.CANCEL:
                got.set()
                await socket.send_bytes(
                    encode(Frame(Kind.RESULT, 2, body={"error": {"type": "error", "message": "x"}}))
                )
            elif frame.kind is Kind.OPEN:
                await socket.send_bytes(encode(Frame(Kind.RESULT, frame.request, body={"ok": {}})))
        return socket

    application = web.Application()
    application.router.add_get("/v1/connect", connect)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        backend = RemoteBackend(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with await backend.start(SandboxSpec()) as sandbox:
            with pytest.raises(SandboxError, match="more than was asked for"):
                await sandbox.run("true", cap=OutputCap(1000, 1000))
            assert got.is_set()
    finally:
        await runner.cleanup()


async def test_a_failing_back_end_fails_one_request_and_tells_no_secrets(token: str) -> None:
    class Broken:
        async def start(self, spec: SandboxSpec, /) -> Any:
            raise LookupError("/home/me/secret")

    async with SandboxServer(Broken(), tokens=[token]) as server:
        backend = RemoteBackend(server.url, token=token)
        async with backend:
            for _ in range(2):
                with pytest.raises(SandboxError, match="the server failed: LookupError") as caught:
                    await backend.start(SandboxSpec())
                assert "secret" not in str(caught.value)
            assert server.sandboxes == 0


async def test_the_host_back_end_anonymously(tmp_path: Path) -> None:
    async with (
        SandboxServer(HostBackend(directory=tmp_path), anonymous=True) as server,
        await RemoteBackend(server.url).start(SandboxSpec()) as sandbox,
    ):
        assert (await sandbox.run("echo $PWD")).text.startswith(str(tmp_path))
    assert list(tmp_path.glob("agentkit-*")) == []
