"""Sandboxes: start, command and a thousand at once, beside plain subprocesses in the same run.

python benchmarks/sandbox.py [--alive 1000] [--backend bwrap] [--loop asyncio]
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import anyio

from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend


def _spread(name: str, seconds: list[float]) -> None:
    ms = sorted(1000 * value for value in seconds)
    p95 = ms[int(0.95 * (len(ms) - 1))]
    print(f"{name:<44} p50 {statistics.median(ms):8.3f}  p95 {p95:8.3f}  max {ms[-1]:8.3f} ms  n={len(ms)}")


def _machine() -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    cpus = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"python {platform.python_version()}, {platform.system()} {platform.release()}, {cpus} cpus, load {load:.1f}")
    print(f"commit {commit.strip()}, {sys.argv[1:]}")


async def _plain() -> None:
    one_shot: list[float] = []
    for _ in range(60):
        began = time.perf_counter()
        await anyio.run_process(["bash", "-c", "true"])
        one_shot.append(time.perf_counter() - began)
    _spread("plain: bash -c true, one process each", one_shot)
    kept: list[float] = []
    async with await anyio.open_process(["bash"]) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        for _ in range(500):
            began = time.perf_counter()
            await shell.stdin.send(b"true; echo $?\n")
            await shell.stdout.receive()
            kept.append(time.perf_counter() - began)
    _spread("plain: a command in one bash", kept)


async def _one(backend: BwrapBackend | HostBackend) -> None:
    starts: list[float] = []
    closes: list[float] = []
    for _ in range(60):
        began = time.perf_counter()
        sandbox = await backend.start(SandboxSpec())
        up = time.perf_counter()
        await sandbox.close()
        starts.append(up - began)
        closes.append(time.perf_counter() - up)
    _spread("sandbox: start", starts)
    _spread("sandbox: close", closes)
    sandbox = await backend.start(SandboxSpec())
    commands: list[float] = []
    programs: list[float] = []
    for _ in range(500):
        began = time.perf_counter()
        await sandbox.run("true")
        commands.append(time.perf_counter() - began)
    for _ in range(60):
        began = time.perf_counter()
        await sandbox.exec(["true"])
        programs.append(time.perf_counter() - began)
    await sandbox.close()
    _spread("sandbox: a command in the session", commands)
    _spread("sandbox: a program on its own", programs)


async def _many(backend: BwrapBackend | HostBackend, alive: int) -> None:
    starts: list[float] = []
    commands: list[float] = []
    gaps: list[float] = []
    failed = 0
    everybody = anyio.Event()
    marks: dict[str, float] = {}
    began = time.perf_counter()

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await anyio.sleep(0.005)
            gaps.append(time.perf_counter() - before - 0.005)

    async def one() -> None:
        nonlocal failed
        start = time.perf_counter()
        sandbox = await backend.start(SandboxSpec())
        starts.append(time.perf_counter() - start)
        if len(starts) == alive:
            marks["started"] = time.perf_counter()
            everybody.set()
        await everybody.wait()
        for _ in range(10):
            start = time.perf_counter()
            result = await sandbox.run("ls / | wc -l")
            commands.append(time.perf_counter() - start)
            failed += result.exit_code != 0
        if len(commands) == 10 * alive:
            marks["ran"] = time.perf_counter()
        await sandbox.close()

    async with anyio.create_task_group() as watching:
        watching.start_soon(watch)
        async with anyio.create_task_group() as group:
            for _ in range(alive):
                group.start_soon(one)
        watching.cancel_scope.cancel()
    done = time.perf_counter()
    _spread(f"{alive} at once: start, turn waited for", starts)
    _spread(f"{alive} at once: ls / | wc -l", commands)
    print(
        f"{alive} alive, 10 commands each: {done - began:.1f} s (start {marks['started'] - began:.1f}, commands "
        f"{marks['ran'] - marks['started']:.1f}, rest of closing {done - marks['ran']:.1f}), {failed} failed"
    )
    _spread("event loop: gap", gaps)


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


async def _main(arguments: argparse.Namespace) -> None:
    _machine()
    await _plain()
    backend = BwrapBackend() if arguments.backend == "bwrap" else HostBackend()
    fds = len(os.listdir("/proc/self/fd"))
    mounts = Path("/proc/self/mounts").read_text()
    async with backend:
        await _one(backend)
        await _many(backend, arguments.alive)
    new_fds = len(os.listdir("/proc/self/fd")) - fds
    new_mounts = Path("/proc/self/mounts").read_text() != mounts
    print(f"left: {_left()} child processes, {new_fds} descriptors, mounts changed: {new_mounts}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alive", type=int, default=1000)
    parser.add_argument("--backend", choices=["bwrap", "host"], default="bwrap")
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    arguments = parser.parse_args()
    anyio.run(_main, arguments, backend=arguments.loop)


if __name__ == "__main__":
    main()
