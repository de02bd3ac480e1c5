"""The spawner at awkward moments."""

import contextlib
import os
import signal
import socket
from pathlib import Path

import anyio
import pytest

from agentkit.protocols import SandboxSpec
from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox import BwrapBackend
from agentkit.sandbox.cgroups import enforced, find_hierarchies
from agentkit.sandbox.leaks import PREFIX
from agentkit.sandbox.spawner import hold_spawner, request

pytestmark = pytest.mark.slow


async def test_what_is_ended_as_soon_as_it_is_there_ends() -> None:
    spawner = hold_spawner()
    try:
        for _ in range(20):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, theirs:
                nested = await request(spawner.main, "nest", None, {0: theirs.fileno()})
                nested.end()  # it has forked, and may not have come further
                with anyio.fail_after(3.0):
                    await nested.gone()
                nested.close()
    finally:
        await spawner.release()


@pytest.fixture
def limited(bwrap: BwrapBackend) -> BwrapBackend:
    if "processes" not in enforced(find_hierarchies()):
        pytest.skip("no control groups can be made here")
    return bwrap


def _waiting(spawner: int) -> list[int]:
    """The children of the spawner that are still the spawner's program: they wait to become another."""
    own = Path(f"/proc/{spawner}/cmdline").read_bytes()
    pids = Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if Path(f"/proc/{pid}/cmdline").read_bytes() == own:
                found.append(int(pid))
    return found


def _sockets(pid: int) -> int:
    found = 0
    with contextlib.suppress(FileNotFoundError):  # it is closing the others, or has ended
        for fd in os.listdir(f"/proc/{pid}/fd"):
            found += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
        return found
    return 0


async def test_one_waits_in_the_groups_to_start_the_next_program(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(processes=30))) as sandbox:
        seen: set[int] = set()
        for number in range(4):
            assert (await sandbox.exec(["sh", "-c", f"echo {number}; exit {number}"])).exit_code == number
            with anyio.fail_after(10.0):
                while len(waiting := _waiting(sandbox._place.spawner.pid)) != 1 or _sockets(waiting[0]) != 1:  # type: ignore[attr-defined]
                    await anyio.sleep(0.01)
            seen.update(waiting)
        assert len(seen) == 4  # each is good for one


async def test_when_who_waits_is_killed_the_next_program_starts_all_the_same(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(processes=30))) as sandbox:
        for pause in (0.0, 0.1):
            for pid in _waiting(sandbox._place.spawner.pid):  # type: ignore[attr-defined]
                os.kill(pid, signal.SIGKILL)
            await anyio.sleep(pause)
            groups = (await sandbox.exec(["cat", "/proc/self/cgroup"], timeout_s=5.0)).text
            assert groups
            assert "/.." not in groups, "it is outside of the groups that its sandbox takes for the root"


async def test_who_waits_is_who_starts_the_next_program(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(processes=30))) as sandbox:
        (waiting,) = _waiting(sandbox._place.spawner.pid)  # type: ignore[attr-defined]
        done = anyio.Event()

        async def program() -> None:
            assert (await sandbox.exec(["cat", "/proc/self/cgroup"])).text.count("/..") == 0
            done.set()

        started = True
        async with anyio.create_task_group() as tasks:
            os.kill(waiting, signal.SIGSTOP)
            tasks.start_soon(program)
            await anyio.sleep(0.5)
            started = done.is_set()
            os.kill(waiting, signal.SIGCONT)
        assert not started


async def test_who_waits_ends_with_its_sandbox(limited: BwrapBackend) -> None:
    async with limited:
        async with await limited.start(SandboxSpec(limits=Limits(processes=30))) as sandbox:
            spawner = sandbox._place.spawner.pid  # type: ignore[attr-defined]
            groups = [one.directory / f"{PREFIX}{sandbox.name}" for one in find_hierarchies()]
            assert any(group.exists() for group in groups)
        with anyio.fail_after(10.0):
            while any(group.exists() for group in groups) or _waiting(spawner):
                await anyio.sleep(0.01)


async def test_a_program_that_cannot_start_is_told_so_by_who_waits(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(processes=30))) as sandbox:
        for _ in range(2):
            assert (await sandbox.exec(["/nonexistent"])).exit_code == 127
            many = await sandbox.exec(["cat"], stdin=b"x" * 300_000)
            assert many.total_bytes == 300_000
            assert (await sandbox.exec(["ls", "/proc/self/fd"])).text == "0\n1\n2\n3\n"
