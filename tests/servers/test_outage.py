"""The server is killed in mid-run: what waits for it goes on, what does not is told apart and can be resumed."""

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from agentkit_openai import CompletionsModel

import agentkit as ak
from agentkit.journal import Journal
from agentkit.parsing import HermesParser
from agentkit.tokens import TemplateRenderer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(420)]

TASKS = [ak.Task(f"t{n}", f"hi {n}") for n in range(24)]
REPEAT = (ak.ExitReason.CANCELLED, ak.ExitReason.MODEL_ERROR)


def agent(model: CompletionsModel, *, retries: int) -> ak.Agent:
    return ak.Agent(
        model,
        params={"logit_bias": {"0": -100, "2": -100}},  # a turn ends where there is no room left
        budget=ak.Budget(max_turns=1, max_tokens=500),
        outcomes=ak.OutcomePolicy(retries=retries),
        model_retries=0,
    )


async def test_a_killed_server_costs_only_time(vllm_server: Any, renderer: TemplateRenderer, tmp_path: Path):
    def client(retries: int) -> CompletionsModel:
        return CompletionsModel(vllm_server.url, "tiny", renderer=renderer, parser=HermesParser(), retries=retries)

    patient: list[ak.Trajectory] = []
    hasty: list[ak.Trajectory] = []

    async def keep_trying(model: CompletionsModel, started: anyio.Event) -> None:
        async with ak.Pool(agent(model, retries=3), max_rollouts=8) as pool:
            async for trajectory in pool.run(TASKS):
                patient.append(trajectory)
                started.set()

    async def give_up(model: CompletionsModel, started: anyio.Event) -> None:
        async with (
            Journal.open(tmp_path, repeat=REPEAT) as journal,
            ak.Pool(agent(model, retries=0), max_rollouts=8, sink=journal) as pool,
        ):
            async for trajectory in pool.run(TASKS):
                hasty.append(trajectory)
                started.set()

    async with client(40) as waiting, client(0) as quitting, anyio.create_task_group() as group:
        first, second = anyio.Event(), anyio.Event()
        group.start_soon(keep_trying, waiting, first)
        group.start_soon(give_up, quitting, second)
        await first.wait()
        await second.wait()
        await anyio.sleep(0.5)  # into the next generations
        await anyio.to_thread.run_sync(vllm_server.kill)
        assert len(patient) < len(TASKS) > len(hasty)
        await anyio.to_thread.run_sync(vllm_server.start)
        await anyio.to_thread.run_sync(vllm_server.wait)

    assert {each.exit_reason for each in patient} == {ak.ExitReason.TURN_LIMIT}
    assert len(patient) == len(TASKS)
    cut = [each for each in patient if each.attempts]  # generations that the crash cut in two: rolled out anew
    assert cut
    assert {attempt.exit_reason for each in cut for attempt in each.attempts} == {ak.ExitReason.MODEL_ERROR}

    failed = [each for each in hasty if each.exit_reason is ak.ExitReason.MODEL_ERROR]
    assert failed
    assert len(failed) < len(hasty) == len(TASKS)
    assert {each.blame for each in failed} == {ak.Blame.INFRASTRUCTURE}
    assert any(any(each.chains[0].response_mask) for each in failed)  # what was sampled before the crash is kept

    async with client(2) as model, Journal.open(tmp_path, repeat=REPEAT) as journal:
        async with ak.Pool(agent(model, retries=0), max_rollouts=8, sink=journal) as pool:
            resumed = await pool.run(TASKS)
        assert {each.task_id for each in resumed} == {each.task_id for each in failed}
        sealed = [journal.reader.trajectory(task.id, 0) for task in TASKS]
    assert {each.exit_reason for each in sealed if each is not None} == {ak.ExitReason.TURN_LIMIT}
    assert None not in sealed
