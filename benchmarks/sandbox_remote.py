"""Sandboxes of a server on loopback, its process apart, beside the same back end used directly.

python benchmarks/sandbox_remote.py [--alive 100,1000] [--kind bwrap]
"""

import argparse
import os
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from _report import heading, row
from agentkit_remote import RemoteBackend

from agentkit.protocols import OutputCap, SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend

KINDS: dict[str, Any] = {"bwrap": BwrapBackend, "host": HostBackend}


@contextmanager
def serving(kind: str) -> Iterator[tuple[str, str, int]]:
    """A server in a process of its own: its address, the token, and its pid."""
    token = secrets.token_urlsafe()
    command = [sys.executable, "-m", "agentkit", "sandbox", "serve", "--type", kind, "--port", "0"]
    environment = os.environ | {"AGENTKIT_SANDBOX_TOKEN": token}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1], token, server.pid
        finally:
            server.terminate()
            server.wait(60)


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _fds(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def _one(name: str, backend: Any) -> None:
    starts: list[float] = []
    commands: list[float] = []
    programs: list[float] = []
    closes: list[float] = []
    async with backend:
        for number in range(32):
            began = time.perf_counter()
            sandbox = await backend.start(SandboxSpec())
            up = time.perf_counter()
            await sandbox.close()
            if number >= 2:  # two to warm up
                starts.append(1000 * (up - began))
                closes.append(1000 * (time.perf_counter() - up))
        sandbox = await backend.start(SandboxSpec())
        for into, count, call in (
            (commands, 300, lambda: sandbox.run("true")),
            (programs, 60, lambda: sandbox.exec(["true"])),
        ):
            for _ in range(count):
                began = time.perf_counter()
                await call()
                into.append(1000 * (time.perf_counter() - began))
        size = 50_000_000
        rates: list[float] = []
        for _ in range(5):
            seen = 0

            def take(data: bytes) -> None:
                nonlocal seen
                seen += len(data)

            began = time.perf_counter()
            await sandbox.exec(["head", "-c", str(size), "/dev/zero"], cap=OutputCap(100, 100), on_output=take)
            rates.append(size / 2**20 / (time.perf_counter() - began))
            assert seen == size
        blob = secrets.token_bytes(8 << 20)
        moves: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            await sandbox.write("blob", blob)
            assert await sandbox.read("blob") == blob
            moves.append(1000 * (time.perf_counter() - began))
        await sandbox.close()
    row(f"{name}: start", starts, "ms")
    row(f"{name}: a command in the session", commands, "ms")
    row(f"{name}: a program on its own", programs, "ms")
    row(f"{name}: close", closes, "ms")
    row(f"{name}: output streamed", rates, "MiB/s")
    row(f"{name}: 8 MiB written and read", moves, "ms")


async def _many(name: str, backend: Any, alive: int, pid: int | None) -> None:
    starts: list[float] = []
    commands: list[float] = []
    gaps: list[float] = []
    marks: dict[str, float] = {}
    everybody = anyio.Event()
    server_mb, most_mb, most_fds = (_rss_mb(pid) if pid else 0.0), 0.0, 0
    ours_mb = _rss_mb(os.getpid())

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await anyio.sleep(0.005)
            gaps.append(1000 * (time.perf_counter() - before - 0.005))

    async def one() -> None:
        nonlocal most_mb, most_fds
        began = time.perf_counter()
        sandbox = await backend.start(SandboxSpec())
        starts.append(1000 * (time.perf_counter() - began))
        if len(starts) == alive:
            marks["started"] = time.perf_counter()
            if pid:
                most_mb, most_fds = _rss_mb(pid), _fds(pid)
            everybody.set()
        await everybody.wait()
        for _ in range(10):
            began = time.perf_counter()
            result = await sandbox.run("ls / | wc -l")
            commands.append(1000 * (time.perf_counter() - began))
            assert result.exit_code == 0
        if len(commands) == 10 * alive:
            marks["ran"] = time.perf_counter()
        await sandbox.close()

    began = time.perf_counter()
    async with anyio.create_task_group() as watching:
        watching.start_soon(watch)
        async with backend, anyio.create_task_group() as group:
            for _ in range(alive):
                group.start_soon(one)
        watching.cancel_scope.cancel()
    ended = time.perf_counter()
    parts = (marks["started"] - began, marks["ran"] - marks["started"], ended - marks["ran"])
    shown = " / ".join(f"{part:.1f}" for part in parts)
    print(f"  {name}, {alive} alive: {ended - began:.1f} s (started / ran 10 commands each / closed: {shown} s)")
    row(f"{name}, {alive} alive: start", starts, "ms")
    row(f"{name}, {alive} alive: a command", commands, "ms")
    print(f"  {name}, {alive} alive: longest gap of this process's loop {max(gaps):.0f} ms")
    print(f"  {name}, {alive} alive: this process grew by {_rss_mb(os.getpid()) - ours_mb:.1f} MiB")
    if pid:
        print(f"  {name}, {alive} alive: server grew by {most_mb - server_mb:.1f} MiB and had {most_fds} descriptors")


async def _main(arguments: argparse.Namespace) -> None:
    heading(f"sandboxes of a server on loopback, {arguments.kind}")
    await _one("direct", KINDS[arguments.kind]())
    with serving(arguments.kind) as (url, token, pid):
        await _one("remote", RemoteBackend(url, token=token))
        for alive in map(int, filter(None, arguments.alive.split(","))):
            await _many("direct", KINDS[arguments.kind](), alive, None)
            await _many("remote", RemoteBackend(url, token=token), alive, pid)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alive", default="100")
    parser.add_argument("--kind", choices=KINDS, default="bwrap")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    anyio.run(_main, arguments, backend="asyncio")


if __name__ == "__main__":
    main()
