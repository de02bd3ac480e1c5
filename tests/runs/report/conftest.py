"""Facts to report on, and a small real run with faults."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

import agentkit as ak
from agentkit.errors import ModelError
from agentkit.journal import Journal
from agentkit.models import ScriptedModel
from agentkit.protocols import EmitTokens, ExitReason, Finish, Outcome, RolloutKey, TokenRequest
from agentkit.runs import RunFolder, RunInfo, Sitting, SittingEnd
from agentkit.runs.report import RolloutFacts
from agentkit.testing import World, virtual_asyncio

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b]0;owned\x07\ud800"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _facts(task: str = "a", index: int = 0, score: float | None = None, **more: Any) -> RolloutFacts:
    plain: dict[str, Any] = {
        "exit_reason": ExitReason.FINISHED,
        "blame": None,
        "grade": None if score is None else "ok",
        "outcome": Outcome.TRAIN,
        "replaces": None,
        "retries": 0,
        "turns": 2,
        "format_error_turns": 0,
        "tokens": 100,
        "sampled": 10,
        "queued_s": 0.0,
        "setup_s": 1.0,
        "generation_s": 2.0,
        "tool_s": 3.0,
        "reward_s": 0.5,
        "total_s": 7.0,
        "sampling_s": 2.0,
    }
    return RolloutFacts(key=RolloutKey(task, index), score=score, **{**plain, **more})


@pytest.fixture(scope="session")
def facts() -> Callable[..., RolloutFacts]:
    """`facts(task, index, score, **more)`: what is known of one rollout."""
    return _facts


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 7 tasks of 9, four rollouts each, with tools, faults, retries and replacements; left before its end."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    sitting = Sitting(NOON, NOON + timedelta(seconds=100), SittingEnd.CANCELLED)
    RunFolder.create(folder, RunInfo(name=f"demo {HOSTILE}", created=NOON, group_size=4, tasks=9, sittings=(sitting,)))
    backend, options = virtual_asyncio()
    anyio.run(_rollouts, folder, backend=backend, backend_options=options)
    return folder


async def _rollouts(folder: Path) -> None:
    dice = Random(7)

    @ak.tool
    async def look(n: int) -> str:
        """Look."""
        await anyio.sleep(1000 if dice.random() < 0.05 else dice.random())
        if dice.random() < 0.1:
            raise ak.ToolError("nothing there")
        return "x" * n

    def say(_prompt: str) -> str:
        roll = dice.random()
        if roll < 0.1:
            return '<tool_call>\n{"name": "look", "argu'
        name = HOSTILE.replace("\ud800", "") if roll < 0.15 else "look"
        if roll < 0.7:
            return f'<tool_call>\n{{"name": {ak_json(name)}, "arguments": {{"n": 3}}}}\n</tool_call>'
        return "done"

    async def judge(trajectory: ak.Trajectory, env: object) -> float:
        del env
        await anyio.sleep(2)
        if dice.random() < 0.1:
            raise RuntimeError("the grader broke")
        return float(dice.random() < trajectory.task.data["rate"])  # type: ignore[operator]

    class Policy(ScriptedModel):
        async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
            if dice.random() < 0.15:
                raise ModelError("the server is gone")
            return await super().sample_tokens(request, emit)

    async def start(task: ak.Task) -> None:
        await anyio.sleep(1)
        if dice.random() < 0.1:
            raise RuntimeError("no image")

    outcomes = ak.OutcomePolicy(retries=1, exhausted=Outcome.REPLACE, replacements=1)
    agent = ak.Agent(
        Policy(say, token_s=0.01),
        env=World(on_start=start, messages=[ak.user("go")]),
        tools=[look],
        reward=judge,
        budget=ak.Budget(tool_s=5, max_turns=6),
        outcomes=outcomes,
    )
    tasks = [ak.Task(HOSTILE if n == 0 else f"t{n}", "go", {"rate": n / 6}) for n in range(7)]
    async with (
        Journal.open(folder, writer="inline") as journal,
        ak.Pool(agent, max_rollouts=4, max_starts=2, group_size=4, sink=journal) as pool,
    ):
        ended = 0
        async for _ in pool.run(tasks):
            ended += 1
            if ended == 24:
                break
        await journal.begin(RolloutKey("t7", 0))


def ak_json(text: str) -> str:
    """`text` as JSON."""
    import json

    return json.dumps(text)
