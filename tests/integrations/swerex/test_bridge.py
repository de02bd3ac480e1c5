"""What carries a sandbox over a server: lost answers, hostile answers, clocks that differ, servers that stay."""

import asyncio
import base64
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from agentkit_swerex import SwerexBackend, SwerexSandbox
from agentkit_swerex.bridge import Bridge
from agentkit_swerex.clock import KEPT, NEVER, Clock
from agentkit_swerex.rex import Rex
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.sandbox.config import sandbox_from
from agentkit.sandbox.spawner import Program, StartFailed
from agentkit.testing.sandboxes import Traces

TOKEN = "token-of-the-test"


@pytest.fixture
def server() -> Iterator["Stock"]:
    """A stock `swerex-remote`, as somebody else may have started it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    code = "from swerex.server import main; main()"
    argv = [sys.executable, "-c", code, "--host", "127.0.0.1", "--port", str(port), "--auth-token", TOKEN]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        yield Stock(process.pid, port)
        process.kill()


class Stock:
    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def backend(self, **changes: Any) -> SwerexBackend:
        given = {"type": "remote", "host": "http://127.0.0.1", "port": self.port, "auth_token": TOKEN, **changes}
        return SwerexBackend(deployment=given)

    async def answers(self) -> bool:
        async with Rex(f"http://127.0.0.1:{self.port}", TOKEN) as rex:
            return await rex.is_alive(timeout_s=5.0)


@asynccontextmanager
async def started(backend: SwerexBackend, tmp_path: os.PathLike[str], **spec: Any) -> AsyncIterator[SwerexSandbox]:
    async with await backend.start(SandboxSpec(cwd=str(tmp_path), **spec)) as sandbox:
        yield sandbox


@pytest.mark.slow
async def test_a_server_of_somebody_else_stays_as_it_was(server: Stock, tmp_path: Any) -> None:
    mark = f"{random.randrange(10**8, 10**9)}"
    traces = Traces(mark)
    backend = server.backend()
    async with started(backend, tmp_path / "a") as one, started(backend, tmp_path / "b") as other:
        await one.run(f"(setsid sleep {mark} &); sleep {mark} & echo a > file")
        await other.run("cd /; export A=1")
        assert (await one.run("cat file; echo $A")).text == "a\n\n"
        assert (await other.run("pwd; echo $A")).text == "/\n1\n"
    with anyio.fail_after(20.0):
        while [line for line in traces.left() if "swerex" not in line]:  # the guest clears up as it leaves
            await anyio.sleep(0.05)
    assert await server.answers()


@pytest.mark.slow
async def test_a_wrong_token_is_said_so(server: Stock, tmp_path: Any) -> None:
    with pytest.raises(SandboxError) as caught:
        async with started(server.backend(auth_token="wrong-one"), tmp_path):
            pass
    assert "wrong-one" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_answers_lost_on_the_way_are_asked_for_again(server: Stock, tmp_path: Any) -> None:
    """Through a proxy that breaks connections at any moment, every command runs once and says all it said."""
    chance = random.Random(5)
    broken = 0

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, breaks: float) -> None:
        nonlocal broken
        try:
            while data := await reader.read(65536):
                if started_up and chance.random() < breaks:
                    broken += 1
                    data = data[: chance.randrange(len(data))]
                    writer.write(data)
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection("127.0.0.1", server.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, here, breaks=0.05), pass_on(there, writer, breaks=0.1))

    started_up = False
    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxy:
        backend = server.backend(port=proxy.sockets[0].getsockname()[1])
        async with started(backend, tmp_path) as sandbox:
            started_up = True
            for number in range(20):
                result = await sandbox.run(f"echo {number} >> log; echo {number}")
                assert (result.text, result.exit_code) == (f"{number}\n", 0)
            blob = random.Random(1).randbytes(300_000)
            await sandbox.write("blob", blob)
            assert await sandbox.read("blob") == blob
            started_up = False
    assert broken > 0
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(20)]


@pytest.mark.slow
async def test_a_server_that_is_gone_or_stuck_is_dead(
    server: Stock, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkit_swerex.bridge.PATIENCE_S", 0.5)
    monkeypatch.setattr("agentkit_swerex.bridge.GRACE_S", 0.5)
    monkeypatch.setattr("agentkit_swerex.sandbox.LEAVE_S", 1.0)
    began = time.monotonic()
    async with started(server.backend(), tmp_path) as sandbox:
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(SandboxDead):
            await sandbox.run("echo on", timeout_s=0.2)
        assert not await sandbox.alive()
    os.kill(server.pid, signal.SIGCONT)
    async with started(server.backend(), tmp_path) as sandbox:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(SandboxDead, match="no answer"):
            await sandbox.exec(["true"])
    assert time.monotonic() - began < 40.0


@pytest.mark.slow
async def test_what_nobody_asks_for_ends_by_itself(
    server: Stock, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkit_swerex.sandbox.ORPHAN_S", 3.0)
    mark = f"{random.randrange(10**8, 10**9)}"
    traces = Traces(mark)
    async with started(server.backend(), tmp_path) as sandbox:
        await sandbox.run(f"(setsid sleep {mark} &)")
        assert any(mark in line for line in traces.left())
        with anyio.fail_after(20.0):
            while any(mark in line for line in traces.left()):
                await anyio.sleep(0.1)
        with pytest.raises(SandboxDead, match="killed"):
            await sandbox.run("true")


@pytest.mark.slow
async def test_a_command_that_kills_the_guest_ends_the_sandbox(tmp_path: Any) -> None:
    async with await SwerexBackend().start(SandboxSpec()) as sandbox:
        script = (
            'for p in /proc/[0-9]*; do grep -qs _guest.py "$p/cmdline" && grep -qs "$0" "$p/cmdline" '
            '&& kill -9 "${p#/proc/}"; done'
        )
        with anyio.fail_after(30.0), pytest.raises(SandboxDead):
            await sandbox.exec(["bash", "-c", script, sandbox.name], timeout_s=20.0)
        assert not await sandbox.alive()


@pytest.mark.slow
async def test_while_a_command_runs_others_do(tmp_path: Any) -> None:
    """The server does one thing at a time; what runs in the sandbox does not wait for that."""
    async with await SwerexBackend().start(SandboxSpec()) as sandbox:
        async with anyio.create_task_group() as group:
            group.start_soon(sandbox.run, "sleep 20")
            await anyio.sleep(0.5)
            began = time.monotonic()
            assert (await sandbox.exec(["echo", "on"])).text == "on\n"
            assert await sandbox.alive()
            assert time.monotonic() - began < 5.0
            group.cancel_scope.cancel()
        assert (await sandbox.run("echo on")).text == "on\n"


@pytest.mark.slow
async def test_a_flood_that_is_cancelled_keeps_what_was_exported() -> None:
    async with await SwerexBackend().start(SandboxSpec()) as sandbox:
        await sandbox.run("cd /usr; export KEPT=1")
        with anyio.move_on_after(0.3):
            await sandbox.run("yes")
        assert (await sandbox.run("pwd; echo $KEPT")).text == "/usr\n1\n"


@pytest.mark.slow
async def test_the_token_is_on_no_command_line(tmp_path: Any) -> None:
    async with await SwerexBackend().start(SandboxSpec()) as sandbox:
        token = sandbox._launched.address.token
        lines = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; env"])
        assert token.encode() not in lines.output
        assert token not in repr(sandbox._launched.address)


def test_another_event_loop_is_refused() -> None:
    async def start() -> None:
        with pytest.raises(ConfigError, match="asyncio"):
            await SwerexBackend().start(SandboxSpec())

    anyio.run(start, backend="trio")


@pytest.mark.parametrize(
    ("deployment", "match"),
    [
        ("podmann", "deployment.type must be one of"),
        ({"image": "x"}, "deployment.type must be one of"),
        ({"type": "local", "image": "x"}, "takes no options"),
        ({"type": "docker", "imge": "x"}, "deployment.imge"),
        ({"type": "docker", "image": 5}, "deployment.image"),
        ({"type": "remote", "auth_token": {"it": "is-secret"}}, "deployment.auth_token"),
    ],
)
def test_a_wrong_configuration_is_said_before_anything_starts(deployment: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        SwerexBackend(deployment=deployment)
    assert "is-secret" not in str(caught.value)


@pytest.mark.slow
async def test_the_end_of_a_killed_program_does_not_wait_for_a_reader() -> None:
    bridge = Bridge(None, "test", "/nowhere", 1, None)  # type: ignore[arg-type]  # nothing is sent
    near, far = os.pipe()
    task = asyncio.ensure_future(bridge.spawn(Program(("yes",), {}), {1: far}))
    await asyncio.sleep(0)
    bridge._take({"events": [["said", 1, {"pid": 7}]]}, 0)
    process = await task
    flood = base64.b64encode(b"y" * 300_000).decode()  # more than the pipe holds
    bridge._take({"events": [["out", 1, 1, flood], ["said", 1, {"exit": 137}]]}, 0)
    with anyio.move_on_after(0.5):
        await process.gone()
    assert not process.ended
    process.kill()
    with anyio.fail_after(10.0):
        await process.gone()
    assert process.exit_code == 137
    assert bridge._held == 0
    process.close()
    for fd in (near, far):
        os.close(fd)
    await asyncio.sleep(0.01)


async def test_output_that_nobody_waits_for_takes_no_room() -> None:
    """An answer may be on its way when its program is let go; what it says must not count as unread for good."""
    bridge = Bridge(None, "test", "/nowhere", 1, None)  # type: ignore[arg-type]  # nothing is sent
    near, far = os.pipe()
    task = asyncio.ensure_future(bridge.spawn(Program(("yes",), {}), {1: far}))
    await asyncio.sleep(0)
    bridge._take({"events": [["said", 1, {"pid": 7}]]}, 0)
    (await task).close()
    os.close(near)
    await asyncio.sleep(0.01)
    for _ in range(3):
        bridge._take({"events": [["out", 1, 1, "eHh4"]]}, 0)
    assert bridge._held == 0
    os.close(far)


def test_a_mapping_as_of_a_yaml_file_is_a_back_end() -> None:
    arguments = ["-v", "/data:/data:ro"]
    deployment = {"type": "docker", "image": "x", "docker_args": arguments, "startup_timeout": 30, "pull": "never"}
    config = sandbox_from({"type": "swerex", "network": "host", "deployment": deployment, "max_starts": 4})
    assert isinstance(config.backend, SwerexBackend)
    assert config.spec.network == "host"
    with pytest.raises(ConfigError, match="network of swerex sandboxes can be host here"):
        sandbox_from({"type": "swerex", "deployment": deployment})
    assert isinstance(sandbox_from({"type": "swerex"}).backend, SwerexBackend)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
verbs = st.sampled_from(["said", "out", "file", "eof", "lost", "spawn"])
events = st.tuples(verbs | json_values, st.integers(0, 3) | json_values, json_values, json_values).map(list)
said = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("pid", "exit", "signalled", "error", "stage", "errno"), json_values)
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "events": st.lists(events | json_values | said.map(lambda one: ["said", 1, one]), max_size=5)
                | json_values
            },
            optional={"owed": json_values, "at": json_values},
        ),
        max_size=4,
    )
)
@example([{"events": [["out", 1, 1, "no base64!"], ["file", 1, 1, "="], ["out", 1, 1, "\u00e9"]]}])
@example([{"events": [["said", 1, {"pid": 7}], ["said", 1, {"exit": 0}], ["lost", 1], ["out", 1, 1, ""]]}])
@example([{"events": [["said", [], {"pid": 7}], ["eof", {}, 1]], "owed": {"x": 1, "1": {}}, "at": "now"}])
def test_no_answer_of_a_guest_breaks_the_bridge(replies: list[dict[str, Any]]) -> None:
    """Commands in a sandbox can write the guest's answers for it."""

    async def run() -> None:
        near, far = os.pipe()
        bridge = Bridge(None, "test", "/nowhere", 1, None)  # type: ignore[arg-type]  # nothing is sent
        task = asyncio.ensure_future(bridge.spawn(Program(("true",), {}), {1: far}))
        await asyncio.sleep(0)
        try:
            for reply in replies:
                bridge._take(reply, 0)
                await asyncio.sleep(0)
        finally:
            bridge._fail("the end")
            os.close(far)
            os.close(near)
            with suppress(SandboxDead, StartFailed):
                (await task).close()

    asyncio.run(run())


@given(
    st.integers(-(10**9), 10**9), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=100), st.data()
)
def test_a_moment_there_parts_what_was_before_from_what_came_of_it(
    offset: int, steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """The oracle: clocks `offset` apart; requests leave in order and take some time."""
    clock = Clock()
    now = 1000
    sent: list[tuple[int, int]] = []
    for pause, delay in steps:
        left = now + pause
        now = left + delay
        sent.append((left, now + offset))
        clock.note(left, now + offset)
    if not sent:
        assert clock.there(17) == 17
        return
    moment = data.draw(st.integers(sent[-KEPT:][0][0], sent[-1][0]))
    there = clock.there(moment)
    assert there >= moment + offset  # what had started before it, starts before it there
    carried = next(arrived for left, arrived in sent[-KEPT:] if left >= moment)
    assert there <= carried  # what the next request causes, comes after it
    assert clock.there(NEVER) == NEVER
