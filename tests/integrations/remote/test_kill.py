"""Processes that are killed in the middle of it: the client's, and the server's."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from agentkit_remote import RemoteBackend, SandboxServer, ServerPolicy

from agentkit.errors import SandboxDead
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend, collect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

Processes = Callable[[str], list[int]]
KILLS = int(os.environ.get("AGENTKIT_KILLS", "3"))
CLIENT = """
import sys
import anyio
from agentkit.protocols import SandboxSpec
from agentkit_remote import RemoteBackend

async def main():
    backend = RemoteBackend(sys.argv[1])
    async def one():
        while True:
            async with await backend.start(SandboxSpec()) as sandbox:
                print("started", flush=True)
                await sandbox.run("(setsid sleep 77401 &); sleep 0.05")
                await sandbox.write("f", b"x" * 100_000)
                await sandbox.exec(["sleep", "77401"], timeout_s=0.2)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(one)

anyio.run(main)
"""


@contextmanager
def process(*command: str, **env: str) -> "Iterator[subprocess.Popen[str]]":
    started = subprocess.Popen(
        [sys.executable, *command], env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


async def eventually(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.05)


@pytest.mark.parametrize("collects", [False, True])
async def test_a_killed_client_leaves_nothing(
    bwrap: BwrapBackend,
    token: str,
    processes: Processes,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    collects: bool,
) -> None:
    monkeypatch.setenv("AGENTKIT_SANDBOX_TOKEN", token)
    chance = random.Random(21)
    policy = ServerPolicy(orphan_s=300.0 if collects else 0.6, heartbeat_s=0.2)
    async with (
        SandboxServer(bwrap, tokens=[token], policy=policy) as server,
        await RemoteBackend(server.url).start(SandboxSpec()) as mine,
    ):
        for _ in range(KILLS):
            with process("-c", CLIENT, server.url) as client:
                await eventually(lambda: server.sandboxes > 1)
                await anyio.sleep(chance.uniform(0.0, 0.6))
                client.kill()
            if collects:
                assert server.sandboxes > 1
                found = await collect(types=("remote",))
                assert (len(found.removed), found.failed) == (1, ())
            await eventually(lambda: server.sandboxes == 1)
            assert processes("sleep 77401") == []
            assert (await mine.run("echo mine")).text == "mine\n"
        await collect(types=("remote",))
        assert len(list(state.glob("remote-*.json"))) == 1, "that of the living"
    assert list(state.glob("*.json")) == []


def _line(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    return server.stdout.readline().strip()


async def test_a_killed_server_leaves_nothing_and_is_told_of(
    bwrap: BwrapBackend, token: str, processes: Processes, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(token)
    tokens.chmod(0o600)
    arguments = ["-m", "agentkit", "sandbox", "serve", "--port", "0", "--token-file", str(tokens)]
    with process(*arguments) as server:
        url = _line(server).rpartition(" ")[2]
        backend = RemoteBackend(url, token=token, connect_s=2.0, reconnect_s=1.0)
        sandbox = await backend.start(SandboxSpec())
        outcome: list[BaseException] = []

        async def run() -> None:
            try:
                await sandbox.run("(setsid sleep 77501 &); sleep 77501")
            except SandboxDead as error:
                outcome.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await eventually(lambda: len(processes("sleep 77501")) >= 2)
            server.kill()
        assert len(outcome) == 1
        await eventually(lambda: processes("sleep 77501") == [])
        await sandbox.close()


async def test_a_server_that_is_told_to_stop_closes_all(bwrap: BwrapBackend, token: str, processes: Processes) -> None:
    arguments = ["-m", "agentkit", "sandbox", "serve", "--port", "0", "--set", "max_starts=3"]
    with process(*arguments, AGENTKIT_SANDBOX_TOKEN=token) as server:
        assert token not in Path(f"/proc/{server.pid}/cmdline").read_text()
        said = _line(server)
        assert said.startswith("bwrap sandboxes at http://127.0.0.1:")
        backend = RemoteBackend(said.rpartition(" ")[2], token=token, reconnect_s=1.0)
        sandbox = await backend.start(SandboxSpec())
        await sandbox.run("setsid sleep 77601 & true")
        await eventually(lambda: len(processes("sleep 77601")) == 1)
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(server.wait) == 0
        assert time.monotonic() - began < 10
        assert _line(server) == "closing 1 sandboxes"
        assert processes("sleep 77601") == []
        await sandbox.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no token to recognise clients by"),
        (["--host", "0.0.0.0", "--anonymous"], "a token is needed"),
        (["--token-file", "/nonexistent"], "cannot be read"),
        (["--anonymous", "--type", "bwarp"], "did you mean 'bwrap'"),
        (["--anonymous", "--set", "max_stats=3"], "did you mean 'max_starts'"),
        (["--anonymous", "--set", "cwd=/elsewhere"], "up to the clients"),
        (["--anonymous", "--set", "nonsense"], "KEY=VALUE"),
        (["--anonymous", "--orphan-s", "-1"], "orphan_s"),
    ],
)
def test_a_server_that_cannot_be(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "agentkit", "sandbox", "serve", "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "agentkit", "sandbox", "serve", "--anonymous", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr
