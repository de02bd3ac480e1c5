"""Sandboxes of every back end that runs here: start, command, close, many alive at once, flooding output, late ends.

python benchmarks/sandbox.py [--kinds bwrap,host,...] [--alive 50,200,1000] [--parts one,many,output,ends] [--loop trio]

Beside them, in the same run: plain processes, bare bwrap shells without any of ours, and SWE-ReX 1.4.0 as it comes.
"""

import argparse
import gc
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from _report import heading, row
from _sandbox_kinds import KINDS, Kind, kinds_here
from _sandbox_many import bare_bwrap, many
from _sandbox_peers import PEERS

PARTS = ("one", "many", "output", "ends")


async def _timed(into: list[float], call: Callable[[], Awaitable[object]]) -> object:
    began = time.perf_counter()
    result = await call()
    into.append(1000 * (time.perf_counter() - began))
    return result


async def _plain() -> None:
    one_shot: list[float] = []
    for _ in range(60):
        await _timed(one_shot, lambda: anyio.run_process(["bash", "-c", "true"]))
    row("plain: bash -c true, a process each", one_shot, "ms")
    kept: list[float] = []
    async with await anyio.open_process(["bash"]) as shell:
        for _ in range(500):
            began = time.perf_counter()
            await shell.stdin.send(b"true; echo $?\n")  # type: ignore[union-attr]
            await shell.stdout.receive()  # type: ignore[union-attr]
            kept.append(1000 * (time.perf_counter() - began))
    row("plain: a command in one bash", kept, "ms")


async def _one(kind: Kind) -> None:
    starts: list[float] = []
    closes: list[float] = []
    commands: list[float] = []
    programs: list[float] = []
    async with kind.open() as backend:
        for number in range(kind.starts + 2):
            before = [] if number < 2 else starts  # two to warm up
            sandbox = await _timed(before, lambda: backend.start(kind.spec))
            await _timed([] if number < 2 else closes, sandbox.close)  # type: ignore[attr-defined]
            if kind.between_s:
                await anyio.sleep(kind.between_s)
        sandbox = await backend.start(kind.spec)
        for _ in range(kind.commands):
            await _timed(commands, lambda: sandbox.run("true"))
        for _ in range(min(60, kind.commands)):
            await _timed(programs, lambda: sandbox.exec(["true"]))
        await sandbox.close()
    row(f"{kind.name}: start", starts, "ms")
    row(f"{kind.name}: a command in the session", commands, "ms")
    row(f"{kind.name}: a program on its own", programs, "ms")
    row(f"{kind.name}: close", closes, "ms")


async def _peers() -> None:
    for name, measure in PEERS.items():
        try:
            found = await measure()
        except Exception as error:  # whatever a peer dies of, the rest is still worth knowing
            print(f"  {name}: not measured: {type(error).__name__}: {error}")
            continue
        for what, samples in found.items():
            row(f"{name}: {what}", samples, "ms")


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


async def _output(kind: Kind) -> None:
    async with kind.open() as backend:
        sandbox = await backend.start(kind.spec)
        await sandbox.run("yes", timeout_s=0.3)
        gc.collect()
        before, most = _resident_mb(), 0.0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, _resident_mb())
                await anyio.sleep(0.02)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            result = await sandbox.run("yes", timeout_s=3.0)
            group.cancel_scope.cancel()
        await sandbox.close()
    print(f"  {kind.name}: yes for 3 s: {result.total_bytes / 2**20:,.0f} MiB came, {most - before:.2f} MiB more held")


async def _ends(kind: Kind) -> None:
    """How long after its limit a command is gone, with all it started: the result comes no earlier than that."""
    polite: list[float] = []
    stubborn: list[float] = []
    cancelled: list[float] = []
    async with kind.open() as backend:
        sandbox = await backend.start(kind.spec)
        for _ in range(15):
            result = await sandbox.run("sleep 60", timeout_s=0.1)
            polite.append(1000 * (result.duration_s - 0.1))
            await sandbox.run("true")
        for _ in range(8):
            result = await sandbox.run("trap '' INT TERM HUP TSTP; while :; do sleep 60; done", timeout_s=0.1)
            stubborn.append(1000 * (result.duration_s - 0.1))
            await sandbox.run("true")
        for _ in range(15):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(sandbox.run, "trap '' INT TERM; sleep 60")
                    await anyio.sleep(0.1)
                    began = time.perf_counter()
                    group.cancel_scope.cancel()
            assert not scope.cancelled_caught
            cancelled.append(1000 * (time.perf_counter() - began))
        await sandbox.close()
    row(f"{kind.name}: polite command gone after its limit", polite, "ms")
    row(f"{kind.name}: stubborn command gone after its limit", stubborn, "ms")
    row(f"{kind.name}: gone after its scope was cancelled", cancelled, "ms")


async def _main(arguments: argparse.Namespace) -> None:
    heading(f"sandboxes, {arguments.loop}")
    kinds = kinds_here(arguments.kinds.split(",") if arguments.kinds else KINDS)
    parts = arguments.parts.split(",")
    if "one" in parts:
        await _plain()
        for kind in kinds:
            await _one(kind)
        if arguments.loop == "asyncio" and not arguments.kinds:
            await _peers()
    if "many" in parts:
        for alive in map(int, arguments.alive.split(",")):
            for kind in kinds:
                if kind.most_alive < alive:
                    continue
                bare: list[float] = []
                ours: list[float] = []
                for _ in range(arguments.rounds if kind.name == "bwrap" else 1):
                    if kind.name == "bwrap":
                        bare.append(await bare_bwrap(alive))
                    ours.append(await many(kind, alive))
                if bare:
                    times = statistics.median(ours) / statistics.median(bare)
                    print(f"  {alive} alive: ours / bare bwrap shells (target: 1.2)  {times:.2f} times")
    if "output" in parts:
        for kind in kinds:
            await _output(kind)
    if "ends" in parts:
        for kind in kinds:
            await _ends(kind)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", help=f"of {', '.join(KINDS)} (default: all that run here, and the peers)")
    parser.add_argument("--alive", default="50,200,1000")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=1, help="of bwrap and bare bwrap in turn, medians compared")
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    anyio.run(_main, arguments, backend=arguments.loop)


if __name__ == "__main__":
    main()
