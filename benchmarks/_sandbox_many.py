"""N sandboxes alive at once, ten commands each; and the same with bare bwrap shells, as little code as does it."""

import os
import time
from pathlib import Path

import anyio
from _report import row
from _sandbox_kinds import Kind

COMMAND = "ls / | wc -l"
COMMANDS = 10
STARTS = 16
BARE = (
    "--die-with-parent --unshare-ipc --unshare-pid --unshare-uts --unshare-net --ro-bind /usr /usr "
    "--symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --ro-bind /etc /etc "
    "--dev /dev --proc /proc --tmpfs /tmp "
    "--dir /work --chdir /work --clearenv --setenv PATH /usr/bin:/bin"
)
"""The least that isolates: no limits, no filter, no user of its own."""


async def many(kind: Kind, alive: int) -> float:
    """Seconds for all of it; prints where they went, the event loop's gaps, and what was left behind."""
    starts: list[float] = []
    gaps: list[float] = []
    failed = ran = 0
    everybody = anyio.Event()
    marks: dict[str, float] = {}
    fds, mounts = len(os.listdir("/proc/self/fd")), Path("/proc/self/mounts").read_text()

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await anyio.sleep(0.005)
            gaps.append(1000 * (time.perf_counter() - before - 0.005))

    async with kind.open() as backend:
        began = time.perf_counter()

        async def one() -> None:
            nonlocal failed, ran
            sandbox = await backend.start(kind.spec)
            starts.append(time.perf_counter() - began)
            if len(starts) == alive:
                marks["started"] = time.perf_counter()
                everybody.set()
            await everybody.wait()
            for _ in range(COMMANDS):
                failed += (await sandbox.run(COMMAND)).exit_code != 0
                ran += 1
            if ran == COMMANDS * alive:
                marks["ran"] = time.perf_counter()
            await sandbox.close()

        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            async with anyio.create_task_group() as group:
                for _ in range(alive):
                    group.start_soon(one)
            watching.cancel_scope.cancel()
        done = time.perf_counter()
    print(
        f"  {kind.name}: {alive} alive, {COMMANDS} commands each: {done - began:.1f} s (start "
        f"{marks['started'] - began:.1f}, commands {marks['ran'] - marks['started']:.1f}, rest of closing "
        f"{done - marks['ran']:.1f}), {failed} failed, longest gap of the loop {max(gaps):.0f} ms"
    )
    row(f"{kind.name}: gap of the event loop", gaps, "ms")
    new_fds = len(os.listdir("/proc/self/fd")) - fds
    changed = Path("/proc/self/mounts").read_text() != mounts
    print(f"  {kind.name}: left {_left()} child processes, {new_fds} descriptors, mounts changed: {changed}")
    return done - began


async def bare_bwrap(alive: int) -> float:
    """Seconds for `alive` shells under bwrap, started 16 at a time, the same commands in each."""
    arguments = BARE.split()
    permits = anyio.Semaphore(STARTS)
    everybody = anyio.Event()
    up = 0
    began = time.perf_counter()

    async def one() -> None:
        nonlocal up
        async with permits:
            process = await anyio.open_process(["bwrap", *arguments, "bash", "--noprofile", "--norc"])
            await say(process, b"true\n")
        up += 1
        if up == alive:
            everybody.set()
        await everybody.wait()
        for _ in range(COMMANDS):
            await say(process, f"{COMMAND}\n".encode())
        process.kill()
        await process.aclose()

    async def say(process: anyio.abc.Process, command: bytes) -> None:
        await process.stdin.send(command + b"echo; echo done $?\n")  # type: ignore[union-attr]
        said = b""
        while b"\ndone " not in said:
            said += await process.stdout.receive()  # type: ignore[union-attr]

    async with anyio.create_task_group() as group:
        for _ in range(alive):
            group.start_soon(one)
    seconds = time.perf_counter() - began
    print(f"  bare bwrap shells: {alive} alive, {COMMANDS} commands each: {seconds:.1f} s")
    return seconds


def _left() -> int:
    mine = str(os.getpid())
    count = 0
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        count += fields[1] == mine
    return count
