"""Connections break; what was asked is done once, and what was running goes on."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentkit_remote import RemoteBackend, SandboxServer, ServerPolicy

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import Sandbox, SandboxSpec
from agentkit.sandbox import BwrapBackend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MakeProxy = Callable[[str], Awaitable[Any]]
Processes = Callable[[str], list[int]]


async def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.02)


async def test_everything_holds_while_connections_break(
    server: SandboxServer, make_proxy: MakeProxy, token: str, tmp_path: Path
) -> None:
    proxy = await make_proxy(server.url)
    backend = RemoteBackend(proxy.url, token=token)
    chance = random.Random(11)
    blob = chance.randbytes(700_000)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "blob").write_bytes(blob)

    async def breaking() -> None:
        while True:
            await anyio.sleep(chance.uniform(0.0, 0.12))
            proxy.break_all()

    async def one(number: int) -> None:
        sandbox = await backend.start(SandboxSpec(env={"N": str(number)}))
        async with sandbox:
            for turn in range(6):
                result = await sandbox.run(f"echo {turn} >> log; echo $N-{turn}; sleep 0.03")
                assert (result.text, result.exit_code) == (f"{number}-{turn}\n", 0)
            assert (await sandbox.run("cat log")).text == "".join(f"{turn}\n" for turn in range(6)), "each ran once"
            await sandbox.write("blob", blob)
            assert await sandbox.read("blob") == blob
            pieces = bytearray()
            printed = await sandbox.exec(["sh", "-c", "seq 40000; echo end"], on_output=pieces.extend)
            assert printed.total_bytes == len(pieces)
            assert bytes(pieces) == "".join(f"{line}\n" for line in range(1, 40_001)).encode() + b"end\n"
            await sandbox.upload(tmp_path / "tree", "up")
            await sandbox.download("up", tmp_path / f"down{number}")
            assert (tmp_path / f"down{number}" / "blob").read_bytes() == blob
            limited = await sandbox.run("echo part; sleep 30", timeout_s=0.3)
            assert (limited.timed_out, limited.text) == (True, "part\n")

    async with anyio.create_task_group() as breaker:
        breaker.start_soon(breaking)
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(one, number)
        breaker.cancel_scope.cancel()
    assert proxy.connections > 5, "or nothing was tested"
    assert server.sandboxes == 0


async def test_a_start_is_not_made_twice_and_a_command_goes_on(
    server: SandboxServer, make_proxy: MakeProxy, token: str
) -> None:
    proxy = await make_proxy(server.url)
    backend = RemoteBackend(proxy.url, token=token)
    started: list[Sandbox] = []

    async def start() -> None:
        started.append(await backend.start(SandboxSpec()))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(start)
        for _ in range(20):
            await anyio.sleep(0.01)
            proxy.break_all()
    assert server.sandboxes == 10
    for sandbox in started[1:]:
        await sandbox.close()
    assert server.sandboxes == 1

    async def cut() -> None:
        await anyio.sleep(0.1)
        proxy.refuses = True
        proxy.break_all()
        await anyio.sleep(0.8)
        proxy.refuses = False

    async with anyio.create_task_group() as group:
        group.start_soon(cut)
        result = await started[0].run("sleep 0.4; echo done; date +%s.%N > when")
    assert (result.text, result.exit_code) == ("done\n", 0)
    assert result.duration_s < 0.8, "it did not wait for us"
    await started[0].close()


async def test_a_cancelled_command_is_killed_and_the_sandbox_goes_on(
    remote: RemoteBackend, processes: Processes
) -> None:
    async with await remote.start(SandboxSpec()) as sandbox:
        for ask in (lambda: sandbox.run("sleep 77101"), lambda: sandbox.exec(["sleep", "77101"])):
            with anyio.move_on_after(0.3) as scope:
                await ask()
            late = anyio.current_time() - scope.deadline
            assert scope.cancelled_caught
            assert processes("sleep 77101") == []
            assert late < 0.5, late  # 0.01 on an idle machine
        task = asyncio.ensure_future(sandbox.run("sleep 77102"))  # natively, as Ray and others do
        await anyio.sleep(0.3)
        assert processes("sleep 77102") != []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes("sleep 77102") == []
        assert (await sandbox.run("echo on")).text == "on\n"


async def test_cancelled_while_the_server_cannot_hear_it_is_killed_later(
    server: SandboxServer, make_proxy: MakeProxy, token: str, processes: Processes
) -> None:
    proxy = await make_proxy(server.url)
    backend = RemoteBackend(proxy.url, token=token)
    async with backend, await backend.start(SandboxSpec()) as sandbox:
        with anyio.move_on_after(0.5) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(sandbox.run, "sleep 77201")
                await anyio.sleep(0.3)
                group.start_soon(backend.start, SandboxSpec())
                await anyio.sleep(0.002)
                proxy.refuses = True
                proxy.break_all()
                await anyio.sleep(30)
        assert anyio.current_time() - scope.deadline < 0.5
        assert processes("sleep 77201") != [], "nobody could say so yet"
        proxy.refuses = False
        await eventually(lambda: processes("sleep 77201") == [])
        await eventually(lambda: server.sandboxes == 1)
        assert (await sandbox.run("echo on")).text == "on\n"


async def test_starts_cancelled_at_any_moment_leave_nothing(server: SandboxServer, remote: RemoteBackend) -> None:
    chance = random.Random(5)
    async with remote:
        for _ in range(25):
            with anyio.move_on_after(chance.uniform(0.0, 0.06)):
                sandbox = await remote.start(SandboxSpec())
                try:
                    while True:
                        await sandbox.run("true")
                        await sandbox.write("f", b"x" * 10_000)
                finally:
                    await sandbox.close()
        await eventually(lambda: server.sandboxes == 0)


async def test_a_silent_server_is_noticed_and_come_back_to(
    bwrap: BwrapBackend, make_proxy: MakeProxy, token: str
) -> None:
    policy = ServerPolicy(heartbeat_s=0.2, orphan_s=20)
    async with SandboxServer(bwrap, tokens=[token], policy=policy) as server:
        proxy = await make_proxy(server.url)
        backend = RemoteBackend(proxy.url, token=token)
        async with await backend.start(SandboxSpec()) as sandbox:
            await anyio.sleep(1.0)
            assert proxy.connections == 1, "heartbeats keep an idle connection"
            proxy.stall(stalls=True)
            await eventually(lambda: proxy.connections > 1)
            proxy.stall(stalls=False)
            assert (await sandbox.run("echo on")).text == "on\n"


async def test_a_client_that_is_gone_loses_its_sandboxes(
    bwrap: BwrapBackend, make_proxy: MakeProxy, token: str, processes: Processes
) -> None:
    policy = ServerPolicy(heartbeat_s=0.2, orphan_s=1.0)
    async with SandboxServer(bwrap, tokens=[token], policy=policy) as server:
        proxy = await make_proxy(server.url)
        backend = RemoteBackend(proxy.url, token=token)
        sandbox = await backend.start(SandboxSpec())
        running = asyncio.ensure_future(sandbox.run("sleep 77301"))
        await anyio.sleep(0.3)
        proxy.stall(stalls=True)
        proxy.refuses = True
        began = anyio.current_time()
        await eventually(lambda: server.sandboxes == 0)
        assert anyio.current_time() - began > 0.7, "it is waited for"
        assert processes("sleep 77301") == []
        proxy.break_all()
        proxy.stall(stalls=False)
        proxy.refuses = False
        with pytest.raises(SandboxDead, match="did not hear of us"):
            await running
        assert not await sandbox.alive()
        with pytest.raises(SandboxDead):
            await sandbox.read("x")
        await sandbox.close()
        async with await backend.start(SandboxSpec()) as fresh:  # the back end is as good as new
            assert (await fresh.run("echo new")).text == "new\n"


async def test_a_sandbox_ends_at_its_lifetime_also_while_its_client_is_away(
    server: SandboxServer, make_proxy: MakeProxy, token: str
) -> None:
    proxy = await make_proxy(server.url)
    backend = RemoteBackend(proxy.url, token=token)
    sandbox = await backend.start(SandboxSpec(lifetime_s=0.8))
    proxy.refuses = True
    proxy.break_all()
    await eventually(lambda: server.sandboxes == 0)
    proxy.refuses = False
    with pytest.raises(SandboxDead):
        await sandbox.run("true")
    await sandbox.close()


async def test_no_server(token: str, state: Path) -> None:
    backend = RemoteBackend("http://127.0.0.1:9", token=token, connect_s=0.5)
    assert "cannot be reached" in (backend.available() or "")
    with pytest.raises(SandboxError, match="did not answer") as caught:
        await backend.start(SandboxSpec())
    assert caught.value.retryable
    assert not isinstance(caught.value, SandboxDead)
    assert list(state.glob("*.json")) == []


async def test_a_server_that_went_away_for_good(bwrap: BwrapBackend, token: str, state: Path) -> None:
    async with SandboxServer(bwrap, tokens=[token]) as server:
        backend = RemoteBackend(server.url, token=token, connect_s=0.5, reconnect_s=0.5)
        assert backend.available() is None
        sandbox = await backend.start(SandboxSpec())
        assert len(list(state.glob("remote-*.json"))) == 1
        assert token not in next(state.glob("*.json")).read_text()
        running = asyncio.ensure_future(sandbox.run("sleep 30"))
        await anyio.sleep(0.2)
    with pytest.raises(SandboxDead):
        await running
    with pytest.raises(SandboxDead):
        await sandbox.run("true")
    await sandbox.close()
    assert list(state.glob("*.json")) == []
    with pytest.raises(SandboxError) as caught:
        await backend.start(SandboxSpec())
    assert caught.value.retryable


async def test_a_server_that_was_restarted(bwrap: BwrapBackend, token: str) -> None:
    async with SandboxServer(bwrap, tokens=[token]) as server:
        port = int(server.url.rpartition(":")[2])
        backend = RemoteBackend(server.url, token=token)
        sandbox = await backend.start(SandboxSpec())
    async with SandboxServer(bwrap, tokens=[token], port=port):
        with pytest.raises(SandboxDead, match="restarted"):
            await sandbox.run("true")
        await sandbox.close()
        async with await backend.start(SandboxSpec()) as fresh:
            assert (await fresh.run("echo new")).text == "new\n"


@pytest.mark.parametrize("wrong", ["another-token-of-someone", None])
async def test_a_wrong_token_is_said_at_once(server: SandboxServer, token: str, wrong: str | None) -> None:
    backend = RemoteBackend(server.url, token=wrong, connect_s=30)
    began = time.monotonic()
    with pytest.raises(ConfigError, match="does not know this token") as caught:
        await backend.start(SandboxSpec())
    assert time.monotonic() - began < 10
    assert "another-token" not in str(caught.value)


async def test_nothing_of_a_connection_is_left(server: SandboxServer, remote: RemoteBackend, state: Path) -> None:
    await (await remote.start(SandboxSpec())).close()
    before = (len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()))
    for _ in range(5):
        async with await remote.start(SandboxSpec()) as sandbox:
            await sandbox.run("true")
    await eventually(lambda: len(asyncio.all_tasks()) <= before[1])
    assert len(os.listdir("/proc/self/fd")) <= before[0] + 2
    assert list(state.glob("*.json")) == []
    await eventually(lambda: server._sessions == {})


async def test_a_hundred_at_once(server: SandboxServer, remote: RemoteBackend) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    texts: list[str] = []
    most = 0
    here = 0
    everybody = anyio.Event()

    async def one(number: int) -> None:
        nonlocal here, most
        async with await remote.start(SandboxSpec(env={"N": str(number)})) as sandbox:
            here += 1
            if here == 100:
                most = server.sandboxes
                everybody.set()
            await everybody.wait()
            await sandbox.run("echo $N > mine")
            texts.append((await sandbox.run("cat mine; ls")).text)

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(one, number)
    assert sorted(texts) == sorted(f"{number}\nmine\n" for number in range(100))
    assert most == 100
    await eventually(lambda: server.sandboxes == 0)
    assert len(os.listdir("/proc/self/fd")) <= fds + 8
