"""The engine dies in mid-run; what was sampled is kept, and the model can be entered again."""

import os
import signal
from pathlib import Path

import anyio
import pytest
from agentkit_vllm import VLLMModel
from attrs import define, field

import agentkit as ak
from agentkit.protocols import EmitTokens, Finish, TokenChunk, TokenRequest

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # vLLM and torch warn at import
]


def engine_processes() -> list[int]:
    """Children of this process that are vLLM's."""
    me = os.getpid()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                name = (folder / "cmdline").read_text()
            except OSError:
                continue
            if int(parent) == me and state != "Z" and "EngineCore" in name:
                found.append(int(folder.name))
    return found


@define
class Watched:
    """The model, and which requests have sampled something."""

    model: VLLMModel
    started: set[str] = field(factory=set)

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens) -> Finish:
        def noted(chunk: TokenChunk) -> None:
            emit(chunk)
            self.started.add(request.request_id)

        return await self.model.sample_tokens(request, noted)


async def test_a_dead_engine_ends_rollouts_and_a_new_one_goes_on(model: VLLMModel):
    watched = Watched(model)
    agent = ak.Agent(
        watched,
        renderer=model.renderer,
        parser=model.parser,
        params={"ignore_eos": True, "min_tokens": 1900},
        outcomes=ak.OutcomePolicy(retries=0),
    )
    (core,) = engine_processes()
    async with ak.Pool(agent) as pool:
        actors = [pool.start(ak.Task(f"t{n}", "hi")) for n in range(8)]
        while len(watched.started) < 8:
            await anyio.sleep(0.01)
        os.kill(core, signal.SIGKILL)
        with anyio.fail_after(30):
            trajectories = [await actor.result() for actor in actors]
        after = await pool.start(ak.Task("after", "hi")).result()
    assert {trajectory.exit_reason for trajectory in (*trajectories, after)} == {ak.ExitReason.MODEL_ERROR}
    assert {trajectory.blame for trajectory in (*trajectories, after)} == {ak.Blame.INFRASTRUCTURE}
    errors = [trajectory.error or "" for trajectory in (*trajectories, after)]
    assert [error for error in errors if "engine is dead" not in error] == []
    assert all(sum(trajectory.chains[0].response_mask) > 0 for trajectory in trajectories)

    await model.__aexit__(None, None, None)  # the fixture holds it; a user would leave the block
    assert engine_processes() == []
    await model.__aenter__()
    trajectory = await ak.Agent(model, budget=ak.Budget(max_turns=1)).run("hi")
    assert trajectory.turns
    assert trajectory.exit_reason is not ak.ExitReason.MODEL_ERROR
