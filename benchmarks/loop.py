"""CPU per turn of the production loop, with a free model and a free tool, beside a bare loop with the same appends.

A turn samples 400 tokens (a tool call), calls a tool and appends about 800 tokens of its output. "Beyond tokenising"
is the CPU of the turn less that of encoding each new text once and decoding each sampled turn once, measured in the
same run. Pin it to one core:

    taskset -c 1 .venv/bin/python benchmarks/loop.py
"""

import argparse
import gc
import statistics
import time
from array import array
from collections.abc import Callable
from itertools import pairwise

import anyio
from _report import heading, row
from anyio.lowlevel import checkpoint

from agentkit import Agent, Budget, Observation, Pool, Task
from agentkit.parsing import HermesParser
from agentkit.protocols import Finish, TokenChunk
from agentkit.testing import FakeTool
from agentkit.tokens import byte_chatml

RENDERER = byte_chatml()
STOP = min(RENDERER.stop_ids)


def texts(turns: int) -> tuple[list[list[int]], str]:
    """Sampled ids of each turn, about 400 tokens, and a tool output of about 800."""
    source = " ".join(f"value_{i} = compute(alpha={i}, beta={i * 7 % 101})" for i in range(400))
    body = source[:1400]
    call = '<tool_call>\n{"name": "work", "arguments": {"text": "' + body + '"}}\n</tool_call>'
    ids = _ids(call)
    while len(ids) > 400:
        body = body[: -max(1, len(ids) - 400)]
        ids = _ids('<tool_call>\n{"name": "work", "arguments": {"text": "' + body + '"}}\n</tool_call>')
    output = source[1400 : 1400 + 2400]
    while len(RENDERER.tokenizer.encode(output)) > 800:
        output = output[:-20]
    return [ids] * turns, output


def _ids(text: str) -> list[int]:
    control = RENDERER.tokenizer.control
    head, _, tail = text.partition("<tool_call>")
    middle, _, end = tail.partition("</tool_call>")
    encode = RENDERER.tokenizer.encode
    return [
        *encode(head), control["<tool_call>"], *encode(middle), control["</tool_call>"], *encode(end), STOP
    ]  # fmt: skip


class Free:
    """A model that has its tokens ready: one chunk a turn, one checkpoint."""

    renderer = RENDERER
    parser = HermesParser()

    def __init__(self, script: list[list[int]], answer: list[int], marks: list[float] | None = None) -> None:
        self._script = [(ids, [-0.5] * len(ids)) for ids in script]
        self._answer = (answer, [-0.5] * len(answer))
        self._marks = marks
        self._turns: dict[str, int] = {}

    async def sample_tokens(self, request, emit) -> Finish:
        if self._marks is not None:
            self._marks.append(time.process_time())
        turn = self._turns.get(request.request_id, 0)
        self._turns[request.request_id] = turn + 1
        await checkpoint()
        ids, logprobs = self._script[turn] if turn < len(self._script) else self._answer
        emit(TokenChunk(ids, logprobs))
        return Finish()


def agent(script: list[list[int]], output: str, marks: list[float] | None = None) -> Agent:
    """The agent measured."""
    observation = Observation(output)

    async def work(_: object) -> Observation:
        await checkpoint()
        return observation

    tool = FakeTool("work", work)
    object.__setattr__(tool.spec, "parameters", {"type": "object", "properties": {"text": {"type": "string"}}})
    budget = Budget(max_turns=10_000, max_tokens=10**9)
    return Agent(Free(script, [*RENDERER.tokenizer.encode("done"), STOP], marks), tools=[tool], budget=budget)


def cpu(function: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    gc.collect()
    started = time.process_time()
    function()
    return time.process_time() - started


def run(backend: str, agents: int, turns: int, marks: list[float] | None = None) -> None:
    """Run `agents` rollouts of `turns` tool turns at once."""
    script, output = texts(turns)
    measured = agent(script, output, marks)

    async def main() -> None:
        async with Pool(measured, max_rollouts=agents) as pool:
            async for trajectory in pool.run(Task(str(i), "Work.") for i in range(agents)):
                if trajectory.exit_reason != "finished" or len(trajectory.turns) != turns + 1:
                    raise SystemExit(f"{trajectory.exit_reason}: {trajectory.error}")

    anyio.run(main, backend=backend)


def tokenising() -> float:
    """CPU of encoding a turn's new text once and decoding its sampled ids once."""
    (ids,), output = texts(1)
    encode, decode = RENDERER.tokenizer.encode, RENDERER.tokenizer.decode

    def once() -> None:
        for _ in range(200):
            encode(output)
            decode(ids)

    once()
    return cpu(once) / 200


def bare(backend: str, agents: int, turns: int) -> None:
    """The same appends and awaits with nothing around them: two scopes and two checkpoints a turn."""
    (ids,), output = texts(1)
    observed = list(RENDERER.tokenizer.encode(output))
    logprobs = [-0.5] * len(ids)

    async def one() -> None:
        chain, mask, scores = array("i"), bytearray(), array("f")
        for _ in range(turns):
            with anyio.move_on_after(60):
                await checkpoint()
            chain.extend(array("i", ids))
            mask.extend(b"\1" * len(ids))
            scores.extend(array("f", logprobs))
            with anyio.move_on_after(60):
                await checkpoint()
            chain.extend(array("i", observed))
            mask.extend(bytes(len(observed)))
            scores.extend(array("f", bytes(4 * len(observed))))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(agents):
                group.start_soon(one)

    anyio.run(main, backend=backend)


def slope(run_one: Callable[[str, int, int], None], backend: str, agents: int, low: int, high: int) -> float:
    """Seconds per turn, start-up taken out."""
    first = cpu(lambda: run_one(backend, agents, low))
    second = cpu(lambda: run_one(backend, agents, high))
    return (second - first) / agents / (high - low)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    heading("CPU per turn, zero-latency model and tool, journal off")
    (ids,), output = texts(1)
    print(f"  {len(ids)} sampled and {len(RENDERER.tokenizer.encode(output))} observed tokens a turn")
    row("tokenising the turn's new text once", [tokenising() * 1e6 for _ in range(repeat)], "µs")
    for backend in ("asyncio", "trio"):
        for agents, low, high in ((1, 20, 220), (1000, 2, 6)):
            pairs = []
            for _ in range(repeat if agents == 1 else 3):
                token = tokenising()
                whole = slope(run, backend, agents, low, high)
                pairs.append((whole * 1e6, (whole - token) * 1e6, slope(bare, backend, agents, low, high) * 1e6))
            for name, column in (("whole turn", 0), ("beyond tokenising", 1), ("bare loop, same appends", 2)):
                row(f"{backend}, {agents} agents: {name}", [pair[column] for pair in pairs], "µs")
    firsts, lasts = [], []
    for _ in range(repeat):
        marks: list[float] = []
        run("asyncio", 1, 200, marks)
        spans = [(b - a) * 1e6 for a, b in pairwise(marks)]
        firsts.append(statistics.median(spans[1:21]))
        lasts.append(statistics.median(spans[-20:]))
    row("turns 2 to 21", firsts, "µs")
    row("turns 181 to 200", lasts, "µs")


if __name__ == "__main__":
    main()
