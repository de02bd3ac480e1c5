"""The agent of a task: asked for once a group, and the same for whatever happens to its rollouts."""

import pytest

from agentkit import Agent, ConfigError, ExitReason, ModelError, Outcome, OutcomePolicy, Pool, Task
from agentkit.models import ScriptedModel
from agentkit.testing import MemorySink


class Says(ScriptedModel):
    """Says one text; fails instead where told to, and counts its requests."""

    def __init__(self, text: str, *, failures: int = 0) -> None:
        super().__init__([text])
        self.failures = failures
        self.requests = 0

    async def sample_tokens(self, request, emit):
        self.requests += 1
        if self.requests <= self.failures:
            raise ModelError("not now", retryable=False)
        return await super().sample_tokens(request, emit)


def said(trajectory) -> str:
    return trajectory.turns[-1].action.content


async def test_each_task_has_the_agent_that_was_chosen_for_it_asked_for_once() -> None:
    asked = []
    agents = {"a": Agent(Says("alpha")), "b": Agent(Says("beta"))}

    def agent_of(task: Task) -> Agent:
        asked.append(task.id)
        return agents[task.id]

    async with Pool(Agent(Says("nobody")), group_size=3, agent_of=agent_of) as pool:
        trajectories = await pool.run([Task("a", "Go."), Task("b", "Go.")])
    assert sorted((t.task_id, said(t)) for t in trajectories) == [("a", "alpha")] * 3 + [("b", "beta")] * 3
    assert sorted(asked) == ["a", "b"]


async def test_a_started_rollout_has_the_agent_of_its_task() -> None:
    async with Pool(Agent(Says("nobody")), agent_of=lambda task: Agent(Says(f"for {task.id}"))) as pool:
        assert said(await pool.start(Task("x", "Go.")).result()) == "for x"


async def test_retries_keep_the_agent() -> None:
    models = []

    def agent_of(task: Task) -> Agent:
        models.append(Says("at last", failures=1))
        return Agent(models[-1], outcomes=OutcomePolicy(retries=1))

    async with Pool(Agent(Says("nobody")), agent_of=agent_of) as pool:
        (trajectory,) = await pool.run([Task("x", "Go.")])
    assert [model.requests for model in models] == [2]
    assert (trajectory.key.attempt, said(trajectory)) == (1, "at last")


async def test_replacements_have_the_agent_of_the_group_and_its_outcome_policy() -> None:
    asked = []

    def agent_of(task: Task) -> Agent:
        asked.append(task.id)
        exits = {ExitReason.FINISHED: Outcome.REPLACE}
        return Agent(Says("again"), outcomes=OutcomePolicy(exits=exits, replacements=2))

    base = Agent(Says("nobody"), outcomes=OutcomePolicy(replacements=0))
    async with Pool(base, agent_of=agent_of) as pool:
        trajectories = await pool.run([Task("x", "Go.")])
    assert sorted(t.key.index for t in trajectories) == [0, 1, 2]
    assert {said(t) for t in trajectories} == {"again"}
    assert asked == ["x"]


async def test_a_resumed_group_is_completed_by_the_agent_of_its_task() -> None:
    class Left(MemorySink):
        def sealed(self):
            return {("x", 0), ("done", 0), ("done", 1)}

        def next_attempt(self, task_id, index):
            return 0

    asked = []

    def agent_of(task: Task) -> Agent:
        asked.append(task.id)
        return Agent(Says(f"for {task.id}"))

    async with Pool(Agent(Says("nobody")), group_size=2, sink=Left(), agent_of=agent_of) as pool:
        trajectories = await pool.run([Task("done", "Go."), Task("x", "Go.")])
    assert [(t.task_id, t.key.index, said(t)) for t in trajectories] == [("x", 1, "for x")]
    assert asked.count("x") == 1


async def test_what_is_no_agent_is_the_callers_error_and_what_runs_goes_on() -> None:
    agent = Agent(Says("fine"))
    sink = MemorySink()
    async with Pool(agent, sink=sink, agent_of=lambda task: agent if task.id == "a" else None) as pool:  # type: ignore[arg-type,return-value]
        with pytest.raises(ConfigError, match=r"pool\.agent_of must return an Agent for task 'b', found None"):
            await pool.run([Task("a", "Go."), Task("b", "Go."), Task("c", "Go.")])
        with pytest.raises(ConfigError, match="must return an Agent for task 'b'"):
            pool.start(Task("b", "Go."))
    assert [t.task_id for t in sink.trajectories] == ["a"]


async def test_an_async_agent_of_is_refused_at_once() -> None:
    async def agent_of(task: Task) -> Agent:
        return Agent(Says("never"))

    with pytest.raises(ConfigError, match="that is not async"):
        Pool(Agent(Says("x")), agent_of=agent_of)  # type: ignore[arg-type]
