"""What the journal costs: CPU and latency per turn appended, and bytes per token, beside one JSON line per turn.

`python benchmarks/journal.py`; about a minute. A turn is 400 sampled and 800 observed tokens with 1.6 kB of text; ids
and log-probabilities are random, which is the worst case for compression.
"""

import json
import math
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token

sys.path.insert(0, str(Path(__file__).parent))

from _report import heading, row

from agentkit.journal import Journal
from agentkit.protocols import (
    Action,
    Chain,
    ChainDelta,
    Observation,
    RolloutKey,
    Span,
    SpanKind,
    Turn,
)

SAMPLED, OBSERVED = 400, 800
TOKENS = SAMPLED + OBSERVED
Write = Callable[[RolloutKey, Turn, ChainDelta], Awaitable[None]]


def piece(dice: random.Random) -> Chain:
    """The tokens of a turn: ids by a power law, log-probabilities as a policy's."""
    ids = [min(151_000, int(20 * math.exp(dice.random() * 9))) for _ in range(TOKENS)]
    logprobs = [-dice.expovariate(2.0) for _ in range(SAMPLED)] + [0.0] * OBSERVED
    spans = (Span(0, SAMPLED, SpanKind.SAMPLED, 0, 3), Span(SAMPLED, TOKENS, SpanKind.OBSERVATION, 0))
    return Chain.of(ids, [1] * SAMPLED + [0] * OBSERVED, logprobs, spans)


def turn_of(number: int, words: str) -> Turn:
    """A turn with text of the usual size."""
    action = Action(words[:800], words[:700])
    return Turn(number, action, (Observation(words[800:], call_id="1"),), 0, 0, SAMPLED)


async def measure(rollouts: int, turns: int, pause_s: float, write: Write) -> tuple[float, float, list[float]]:
    """(CPU, wall) in µs per turn, and the latency of each append in µs; a turn follows a pause of up to `pause_s`."""
    dice = random.Random(1)
    pieces = [piece(dice) for _ in range(50)]
    texts = ["".join(dice.choices("etaoin shrdlu\n", k=1600)) for _ in range(50)]
    latencies: list[float] = []
    pauses = random.Random(2)

    async def roll(index: int) -> None:
        key = RolloutKey("task", index)
        for number in range(turns):
            delta = ChainDelta(0, number * TOKENS, pieces[(index + number) % len(pieces)])
            turn = turn_of(number, texts[(index + number) % len(texts)])
            if pause_s:
                await anyio.sleep(pauses.uniform(0.0, pause_s))
            started = time.perf_counter()
            await write(key, turn, delta)
            latencies.append(1e6 * (time.perf_counter() - started))

    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    async with anyio.create_task_group() as group:
        for index in range(rollouts):
            group.start_soon(roll, index)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e6 * cpu / (rollouts * turns), 1e6 * wall / (rollouts * turns), latencies


async def of_journal(folder: str, rollouts: int, turns: int, pause_s: float) -> tuple[float, float, list[float], int]:
    """The journal: `measure`, and the bytes of its file."""
    path = Path(folder) / "journal.sqlite"
    async with Journal.open(path) as journal:
        for index in range(rollouts):
            await journal.begin(RolloutKey("task", index))

        async def write(key: RolloutKey, turn: Turn, delta: ChainDelta) -> None:
            await journal.append(key, turn, [delta])

        result = await measure(rollouts, turns, pause_s, write)
    return *result, path.stat().st_size


async def of_lines(folder: str, rollouts: int, turns: int, pause_s: float) -> tuple[float, float, list[float], int]:
    """One JSON line per turn, flushed to the operating system, which is as durable against kill -9."""
    path = Path(folder) / "turns.jsonl"
    with path.open("w") as file:

        async def write(key: RolloutKey, turn: Turn, delta: ChainDelta) -> None:
            tokens, logprobs = list(delta.piece.ids), list(delta.piece.logprobs)
            record = {"key": str(key), "turn": turn.index, "text": turn.action.text, "content": turn.action.content}
            more = {"observation": turn.observations[0].content, "ids": tokens, "logprobs": logprobs}
            file.write(json.dumps({**record, **more, "mask": list(delta.piece.response_mask)}) + "\n")
            file.flush()
            await anyio.lowlevel.checkpoint()

        result = await measure(rollouts, turns, pause_s, write)
    return *result, path.stat().st_size


async def wake_cost(batch: int) -> tuple[float, float]:
    """µs per wake-up of a batch by a foreign thread: (without waiting, `anyio.from_thread.run_sync`)."""
    token, rounds = current_token(), 300
    native = getattr(token.native_token, "call_soon_threadsafe", None) or token.native_token.run_sync_soon  # type: ignore[attr-defined]

    async def time_of(call: Callable[[Callable[[], None]], object]) -> float:
        spent = 0.0
        for _ in range(rounds):
            events = [anyio.Event() for _ in range(batch)]

            def wake(events: list[anyio.Event] = events) -> None:
                for event in events:
                    event.set()

            def work(wake: Callable[[], None] = wake) -> None:
                nonlocal spent
                started = time.perf_counter()
                call(wake)
                spent += time.perf_counter() - started

            async with anyio.create_task_group() as group:
                for event in events:
                    group.start_soon(event.wait)
                await anyio.to_thread.run_sync(work)
        return 1e6 * spent / rounds

    return await time_of(native), await time_of(lambda wake: from_thread.run_sync(wake, token=token))


def main() -> None:
    """Print all of it."""
    heading(f"journal: turns of {SAMPLED} + {OBSERVED} tokens")
    for name, run in (("journal, thread", of_journal), ("one JSON line a turn", of_lines)):
        for rollouts, turns, pause_s in ((1, 300, 0.0), (256, 6, 0.0), (256, 6, 2.0)):
            cpus, walls, medians, tails, sizes = [], [], [], [], []
            for _ in range(3):
                with tempfile.TemporaryDirectory() as folder:
                    cpu, wall, latencies, size = anyio.run(run, folder, rollouts, turns, pause_s)
                cpus.append(cpu)
                walls.append(wall)
                medians.append(sorted(latencies)[len(latencies) // 2])
                tails.append(sorted(latencies)[len(latencies) * 99 // 100])
                sizes.append(size / (rollouts * turns * TOKENS))
            pace = f"a turn every 0 to {pause_s:.0f} s" if pause_s else "as fast as they can"
            print(f" {name}, {rollouts} rollouts, {pace}")
            row("CPU per turn", cpus, "us")
            row("wall per turn", walls, "us")
            row("latency of an append, median", medians, "us")
            row("latency of an append, 99 %", tails, "us")
            row("bytes per token on disk, text included", sizes, "B")
    for backend in ("asyncio", "trio"):
        costs = [anyio.run(wake_cost, 64, backend=backend) for _ in range(3)]
        print(f" waking 64 waiters from a thread, {backend}: time the thread spends")
        row("the loop's own call, not waiting", [own for own, _ in costs], "us")
        row("anyio.from_thread.run_sync", [waiting for _, waiting in costs], "us")


if __name__ == "__main__":
    main()
