"""Ten thousand rollouts at once on one core: memory of an idle agent, deadline overshoot, loop lag, bytes a token.

Each rollout samples a short tool call after a random latency, calls a tool, and goes on until its own deadline; the
deadlines are spread. Real time; pin it to one core:

    taskset -c 1 .venv/bin/python benchmarks/scale.py
"""

import argparse
import gc
import random
import statistics
import subprocess
import sys
import time
import tracemalloc

import anyio
from _report import heading, row

from agentkit import Agent, Budget, Pool, Task
from agentkit.models import ScriptedModel
from agentkit.protocols import Finish, SpanKind, TokenChunk
from agentkit.testing import FakeTool
from agentkit.tokens import Ledger

CALL = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>'


class Distant(ScriptedModel):
    """A model as a busy server is: every answer takes a while."""

    def __init__(self, latency_s: float, seed: int) -> None:
        super().__init__([CALL])
        self._random = random.Random(seed)
        self._mean = latency_s
        control, encode = self.renderer.tokenizer.control, self.renderer.tokenizer.encode
        body = encode('\n{"name": "work", "arguments": {}}\n')
        ids = [control["<tool_call>"], *body, control["</tool_call>"], min(self.renderer.stop_ids)]
        self._chunk = TokenChunk(ids, [-0.5] * len(ids))
        self.turns = 0

    async def sample_tokens(self, request, emit) -> Finish:
        await anyio.sleep(self._random.uniform(0.2, 1.8) * self._mean)
        emit(self._chunk)
        self.turns += 1
        return Finish()


def resident_kib() -> int:
    """Memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


async def work(_: object) -> str:
    """A tool that takes 10 ms."""
    await anyio.sleep(0.01)
    return "done"


async def idle(agents: int) -> float:
    """KiB held by each rollout that waits for its first answer."""
    agent = Agent(Distant(3600, 0), tools=[FakeTool("work", work)], budget=Budget(generation_s=7200))
    async with Pool(agent, max_rollouts=agents) as pool:
        for i in range(200):
            pool.start(Task(f"warm{i}", "Work."))
        await anyio.sleep(0.5)
        gc.collect()
        before = resident_kib()
        for i in range(agents):
            pool.start(Task(str(i), "Work."))
        while len(anyio.get_running_tasks()) < 2 * agents:
            await anyio.sleep(0.2)
        gc.collect()
        return (resident_kib() - before) / agents


async def busy(agents: int, latency_s: float, shortest: float, longest: float, freeze: bool) -> None:
    """Run `agents` rollouts to deadlines spread over [shortest, longest] s, and report."""
    model = Distant(latency_s, 1)
    agent = Agent(model, tools=[FakeTool("work", work)], budget=Budget(max_turns=10**6, grace_s=5))
    lags: list[float] = []
    pauses: list[float] = []
    gc.callbacks.append(lambda phase, _: pauses.append(time.perf_counter() * (1 if phase == "stop" else -1)))
    overshoots: list[float] = []

    async def freeze_later() -> None:
        await anyio.sleep(15)  # by then every rollout is under way
        gc.collect()
        gc.freeze()

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await anyio.sleep(0.005)
            lags.append((time.perf_counter() - before - 0.005) * 1e3)

    spread = random.Random(2)
    tasks = (Task(str(i), "Work.", budget={"trajectory_s": spread.uniform(shortest, longest)}) for i in range(agents))
    begun, cpu = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as group:
        async with Pool(agent, max_rollouts=agents) as pool:
            gc.freeze()
            group.start_soon(watch)
            if freeze:
                group.start_soon(freeze_later)
            async for trajectory in pool.run(tasks):
                if trajectory.exit_reason != "trajectory_timeout":
                    raise SystemExit(f"{trajectory.exit_reason}: {trajectory.error}")
                limit = trajectory.task.budget["trajectory_s"]
                overshoots.append((trajectory.timings.total_s - limit) * 1e3)
        group.cancel_scope.cancel()
    seconds, used = time.perf_counter() - begun, time.process_time() - cpu
    print(f"  {agents} rollouts, {model.turns} turns in {seconds:.1f} s: {model.turns / seconds:.0f} turns/s,"
          f" {used / seconds:.0%} of a core")  # fmt: skip
    collected = [(stop + start) * 1e3 for start, stop in zip(pauses[::2], pauses[1::2], strict=False)]
    gc.callbacks.clear()
    print(f"  garbage collector: {len(collected)} times, {sum(collected):.0f} ms in all, most {max(collected):.0f} ms")
    for name, values in (("deadline overshoot", overshoots), ("event-loop lag", lags)):
        cuts = statistics.quantiles(values, n=100)
        print(f"  {name:<24} p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, most {max(values):.1f} ms")


def bytes_per_token() -> float:
    """Bytes held by a ledger of 128k tokens, per token."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ledger = Ledger()
    chain = ledger.open([1] * 1000)
    for turn in range(106):
        ledger.sample(chain, [5] * 400, [-0.5] * 400, turn=turn)
        ledger.append(chain, [6] * 800, SpanKind.OBSERVATION, turn=turn)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / ledger.length(chain)


def main() -> None:
    """Print the table; the idle agents of each loop are measured in a process of their own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--latency", type=float, default=15.0, help="mean seconds of an answer")
    parser.add_argument("--freeze", action="store_true", help="gc.freeze() once every rollout is under way")
    parser.add_argument("--idle", choices=["asyncio", "trio"])
    parser.add_argument("--busy", choices=["asyncio", "trio"], help="only this part")
    args = parser.parse_args()
    if args.idle:
        print(anyio.run(idle, args.agents, backend=args.idle))
        return
    if args.busy:
        anyio.run(busy, args.agents, args.latency, 25.0, 60.0, args.freeze, backend=args.busy)
        return
    heading("Ten thousand rollouts on one core")
    row("memory of a ledger, per token", [bytes_per_token()], "B")
    for backend in ("asyncio", "trio"):
        samples = [
            float(subprocess.check_output([sys.executable, __file__, "--idle", backend, "--agents", str(args.agents)]))
            for _ in range(3)
        ]
        row(f"{backend}: idle rollout", samples, "KiB")
    for backend in ("asyncio", "trio"):
        print(f"  {backend}")
        anyio.run(busy, args.agents, args.latency, 25.0, 60.0, args.freeze, backend=backend)


if __name__ == "__main__":
    main()
