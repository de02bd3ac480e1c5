"""What the page on agents shows."""

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.models import ScriptedModel


async def first() -> tuple[ak.Agent, ak.Trajectory]:
    # --8<-- [start:first]
    agent = ak.Agent(ScriptedModel(["Hello."]))
    trajectory = await agent.run("Say hello.")
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    assert trajectory.turns[0].action.content == "Hello."
    # --8<-- [end:first]
    return agent, trajectory


# --8<-- [start:tool]
@ak.tool(parallel=True, timeout_s=20)
async def read_file(path: str, files: ak.Files, context: ak.ToolContext) -> str:
    """Content of a file.

    Args:
        path: Where it is.
        files: Come from the env; the policy is not told.
        context: Comes from the rollout; nor of this.
    """
    return (await files.read(path)).decode()


assert list(read_file.spec.parameters["properties"]) == ["path"]
# --8<-- [end:tool]


# --8<-- [start:brevity]
async def brevity(trajectory: ak.Trajectory, env: object) -> ak.Score:
    length = len(trajectory.turns[-1].action.content)
    return ak.Score(1 / length, metrics={"length": length})


# --8<-- [end:brevity]


async def reward() -> None:
    # --8<-- [start:reward]
    graded = await ak.Agent(ScriptedModel(["Hello."]), reward=brevity).run("Say hello.")
    assert graded.score == 1 / 6  # the number alone, None where there is none
    assert graded.grade.score.metrics == {"length": 6}
    # --8<-- [end:reward]


# --8<-- [start:react]
async def react(rollout: ak.Rollout) -> None:
    async for action in rollout:  # samples until an end is reached
        await rollout.act(action)


# --8<-- [end:react]


async def children(agent: ak.Agent) -> None:
    # --8<-- [start:children]
    async def two_at_once(rollout: ak.Rollout) -> None:
        helpers = [rollout.start_child(agent, f"Say hello to {name}.") for name in ("Lima", "Oslo")]
        answers = [(await helper.result()).turns[-1].action.content for helper in helpers]
        rollout.observe(f"They said: {answers}")
        await rollout.sample()

    lead = ak.Agent(ScriptedModel(["Twice hello."]), loop=two_at_once)
    parent = await lead.run("Have both greeted.")
    assert [child.turns[-1].action.content for child in parent.children] == ["Hello.", "Hello."]
    # --8<-- [end:children]


def trajectories(trajectory: ak.Trajectory) -> None:
    # --8<-- [start:trajectories]
    turn, chain = trajectory.turns[0], trajectory.chains[0]
    assert len(chain.ids) == len(chain.response_mask) == len(chain.logprobs)
    assert sum(chain.response_mask) == turn.stop - turn.start
    assert trajectory.grade is None  # this agent has no reward
    # --8<-- [end:trajectories]


async def journal(agent: ak.Agent, folder: Path) -> None:
    # --8<-- [start:journal]
    async with Journal.open(folder, writer="inline") as journal, ak.Pool(agent, sink=journal) as pool:
        await pool.run([ak.Task("hello", "Say hello.")])
    with JournalReader.open(folder) as reader:
        assert [str(trajectory.key) for trajectory in reader.trajectories()] == ["hello#0"]
    # --8<-- [end:journal]


async def main() -> None:
    agent, trajectory = await first()
    await reward()
    await children(agent)
    trajectories(trajectory)
    looped = await ak.Agent(ScriptedModel(["Hello."]), loop=react).run("Say hello.")
    assert looped.exit_reason is ak.ExitReason.FINISHED
    with TemporaryDirectory() as folder:
        await journal(agent, Path(folder))


if __name__ == "__main__":
    anyio.run(main)
