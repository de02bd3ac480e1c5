"""CPU per turn and memory of `AgentKitLoop` beside verl's own `ToolAgentLoop`, on the same scripted conversation.

A turn is a call of about 400 tokens in Hermes format and about 800 tokens of a tool's output, in Qwen 3's vocabulary
and chat template; the last turn is a short answer. Both loops get the same tokenizer, tool and sampling parameters, and
a rollout server in the same process that has its answers ready, so that neither Ray nor a model counts; both must end
with the same row, token by token. They take turns, in an order that changes, in one process on one core.

- limit: each new text encoded once, each answer decoded once, ids, mask and log-probabilities added to arrays
- limit, fast: the same by `encode_batch_fast`, which leaves out where in the text each token stands
- constructing a loop (verl makes one for each trajectory) and `as_dict` (verl's V1 workers call it) are told apart

It wants verl, so the environment of `make test-verl`; started elsewhere it goes on there:

    .venv-verl/bin/python benchmarks/verl_loop.py
"""

import argparse
import asyncio
import ctypes
import gc
import importlib.util
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from _report import ROOT, heading, row

VERL = ROOT / ".venv-verl" / "bin" / "python"


def go_on_with_verl() -> None:
    """Starts this script once more where verl is installed, if it is not here; ends it where there is no such place."""
    if importlib.util.find_spec("verl") is not None:
        return
    if not VERL.exists() or Path(sys.prefix) == VERL.parents[1]:
        print("left out: it needs verl (make venv-verl)")
        raise SystemExit(0)
    os.execv(VERL, [str(VERL), *sys.argv])


go_on_with_verl()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from _verl_loops import Loop, Ours, Ran, Script, Theirs, conversations, limit  # noqa: E402  # it may not be here before

WAYS: tuple[type[Loop], ...] = (Theirs, Ours)
NAMES = {Theirs: "verl", Ours: "ours"}


def said(with_logprobs: bool) -> str:
    return "with logprobs" if with_logprobs else "without"


async def cpu(script: Script, folder: Path, repeat: int, *, with_logprobs: bool) -> None:
    """Print what single trajectories cost."""
    count = len(script.said)
    loops = [way(script, folder, with_logprobs=with_logprobs) for way in WAYS]
    ran: dict[str, list[Ran]] = {NAMES[way]: [] for way in WAYS}
    handed: dict[str, list[float]] = {NAMES[way]: [] for way in WAYS}
    limits: dict[bool, list[float]] = {False: [], True: []}
    for loop in loops:
        loop.check((await loop.session()).output)  # also the warm-up
    for number in range(repeat):
        for loop in loops if number % 2 else loops[::-1]:
            gc.collect()
            one = await loop.session()
            started = time.process_time()
            one.output.as_dict()
            handed[NAMES[type(loop)]].append(time.process_time() - started)
            ran[NAMES[type(loop)]].append(one)
        for fast in (False, True):
            gc.collect()
            limits[fast].append(sum(limit(script, with_logprobs=with_logprobs, fast=fast)))
    print(f"\n{count} turns, {len(script.ids):,} tokens, {said(with_logprobs)}")
    for fast, name in ((False, "limit"), (True, "limit, fast")):
        row(name, [total / count * 1e3 for total in limits[fast]], "ms a turn")
    for name, runs in ran.items():
        row(name, [one.session / count * 1e3 for one in runs], "ms a turn")
    row("ours / limit (target: 1.3)", _ratios([one.session for one in ran["ours"]], limits[False]), "times")
    row("verl / ours", _ratios([one.session for one in ran["verl"]], [one.session for one in ran["ours"]]), "times")
    totals = {
        name: [one.construct + one.session + more for one, more in zip(ran[name], handed[name], strict=True)]
        for name in ran
    }
    row("verl / ours, constructing and as_dict too", _ratios(totals["verl"], totals["ours"]), "times")
    for name, runs in ran.items():
        row(f"{name}: constructing", [one.construct * 1e3 for one in runs], "ms")
        row(f"{name}: until the first request", [one.begin * 1e3 for one in runs], "ms")
        row(f"{name}: after the last request", [one.end * 1e3 for one in runs], "ms")
        row(f"{name}: as_dict", [more * 1e3 for more in handed[name]], "ms")
    some = min(10, (count - 1) // 2)
    if some >= 2:
        for name, runs in ran.items():
            ends = [(statistics.mean(one.turns[:some]), statistics.mean(one.turns[-some:])) for one in runs]
            row(f"{name}: first {some} turns", [first * 1e3 for first, _ in ends], "ms a turn")
            row(f"{name}: last {some} turns", [last * 1e3 for _, last in ends], "ms a turn")
            row(f"{name}: last / first (target: 1.05)", [last / first for first, last in ends], "times")


async def concurrent(script: Script, folder: Path, sessions: int, repeat: int, *, with_logprobs: bool) -> None:
    """Print what many trajectories at once cost."""
    count = len(script.said)
    loops = [way(script, folder, with_logprobs=with_logprobs) for way in WAYS]
    spent: dict[str, list[float]] = {NAMES[way]: [] for way in WAYS}
    for number in range(repeat + 1):
        for loop in loops if number % 2 else loops[::-1]:
            gc.collect()
            started = time.process_time()
            done = await asyncio.gather(*(loop.session() for _ in range(sessions)))
            used = time.process_time() - started
            loop.check(done[-1].output)
            if number:  # the first is the warm-up
                spent[NAMES[type(loop)]].append(used / sessions / count * 1e3)
    print(f"\n{sessions} trajectories of {count} turns at once, {said(with_logprobs)}, constructing included")
    for name, values in spent.items():
        row(name, values, "ms a turn")
    row("verl / ours", _ratios(spent["verl"], spent["ours"]), "times")


def memory(script: Script, folder: Path, held: int, *, with_logprobs: bool) -> None:
    """Print what outputs weigh that a worker holds until its batch is there. Each way has a process of its own."""
    print(f"\noutputs of {len(script.said)} turns, {len(script.ids):,} tokens, {said(with_logprobs)}")
    weights: dict[str, tuple[float, float]] = {}
    context = multiprocessing.get_context("fork")
    for way in WAYS:
        ours, theirs = context.Pipe()
        process = context.Process(target=_weigh, args=(way, script, folder, held, with_logprobs, theirs))
        process.start()
        theirs.close()
        weights[NAMES[way]] = allocated, resident = ours.recv()
        process.join()
        print(
            f"  {NAMES[way]:<44} {allocated / 1024:,.0f} KiB ({allocated / len(script.ids):.1f} B a token) allocated, "
            f"{resident:,.0f} KiB more resident for each of {held} held"
        )
    (theirs_allocated, theirs_resident), (ours_allocated, ours_resident) = weights["verl"], weights["ours"]
    print(
        f"  {'verl / ours (target: 5)':<44} {theirs_allocated / ours_allocated:.2f} times allocated, "
        f"{theirs_resident / max(ours_resident, 1e-9):.2f} times resident"
    )


def _weigh(way: type[Loop], script: Script, folder: Path, held: int, with_logprobs: bool, answer: object) -> None:
    async def main() -> tuple[float, float]:
        loop = way(script, folder, with_logprobs=with_logprobs, fresh=True)
        keep = [(await loop.session()).output for _ in range(held)]  # memory that was free before is taken by these
        before = _resident()
        keep += [(await loop.session()).output for _ in range(held)]
        resident = (_resident() - before) / held
        gc.collect()
        tracemalloc.start()
        base = tracemalloc.get_traced_memory()[0]
        one = (await loop.session()).output
        gc.collect()
        allocated = tracemalloc.get_traced_memory()[0] - base
        tracemalloc.stop()
        loop.check(one)
        await _close()
        return allocated, resident

    answer.send(asyncio.run(main()))  # type: ignore[attr-defined]


def _resident() -> float:
    """KiB in memory or swapped out, once what is free was given back."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmSwap")))


def _ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


async def _close() -> None:
    from agentkit_verl import close_workers

    await close_workers()


@contextmanager
def on_one_core() -> Iterator[None]:
    """Pinned to the last core that this process may use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(scripts: Mapping[int, Script], given: argparse.Namespace) -> None:
    """Print the tables."""

    async def main(folder: Path) -> None:
        for count in given.turns:
            repeat = max(given.repeat, min(4 * given.repeat, 120 // count))
            for with_logprobs in (False, True):
                await cpu(scripts[count], folder, repeat, with_logprobs=with_logprobs)
        for with_logprobs in (False, True):
            await concurrent(scripts[given.each], folder, given.sessions, given.repeat, with_logprobs=with_logprobs)
        await _close()

    with tempfile.TemporaryDirectory() as folder:
        for count in given.memory:  # first, while there is no thread in this process that a fork would lack
            for with_logprobs in (False, True):
                memory(scripts[count], Path(folder), given.held, with_logprobs=with_logprobs)
        gc.collect()
        gc.freeze()  # so that to collect before each sample does not walk through torch
        asyncio.run(main(Path(folder)))


def main() -> None:
    """Print the tables."""
    logging.disable(logging.WARNING)  # the template rewrites history, which both loops keep as it was sampled
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[2, 20, 100], help="lengths of trajectories")
    parser.add_argument("--sampled", type=int, default=400, help="tokens sampled a turn")
    parser.add_argument("--observed", type=int, default=800, help="tokens observed a turn")
    parser.add_argument(
        "--repeat", type=int, default=5, help="rounds, each way once in each; more where they are short"
    )
    parser.add_argument("--sessions", type=int, default=100, help="trajectories at once")
    parser.add_argument("--each", type=int, default=20, help="turns of those")
    parser.add_argument(
        "--memory", type=int, nargs="*", default=[20, 100], help="lengths of trajectories that are held"
    )
    parser.add_argument("--held", type=int, default=10, help="outputs held")
    given = parser.parse_args()
    with on_one_core():
        heading("CPU of agent loops for verl, Qwen 3, no Ray, no model")
        lengths = sorted({*given.turns, given.each, *given.memory})
        measure(conversations(lengths, sampled=given.sampled, observed=given.observed), given)


if __name__ == "__main__":
    main()
