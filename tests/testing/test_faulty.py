"""Each faulty part does what its plan says, at the time it says, and is otherwise the part that it wraps."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import anyio
import pytest

import agentkit as ak
from agentkit.errors import ConfigError
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.protocols import HasRenderer
from agentkit.testing import (
    FakeTool,
    FaultPlan,
    Witness,
    World,
    failing_model,
    faulty_agent,
    faulty_env,
    faulty_loop,
    faulty_model,
    faulty_reward,
    faulty_tool,
)

CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
BUDGET = ak.Budget(trajectory_s=100, generation_s=30, tool_s=10, reward_s=20, setup_s=40, grace_s=5)
ONCE = ak.OutcomePolicy(retries=0)
SAMPLED = "It is found, after a while, in the attic."


async def search(_: object) -> str:
    return "nothing"


def agent(**parts) -> ak.Agent:
    given = {"model": ScriptedModel([SAMPLED], chunk_tokens=2), "budget": BUDGET, "outcomes": ONCE} | parts
    return ak.Agent(given.pop("model"), **given)


async def run(made: ak.Agent) -> ak.Trajectory:
    return await made.run(ak.Task("t", "Find it."))


def sampled(trajectory: ak.Trajectory) -> str:
    return "".join(turn.action.text for turn in trajectory.turns)


@pytest.mark.parametrize(
    ("fault", "reason", "error", "parts"),
    [
        ("server_error", ak.ExitReason.MODEL_ERROR, "500", {"none"}),
        ("bad_request", ak.ExitReason.MODEL_ERROR, "400", {"none"}),
        ("partial_stream", ak.ExitReason.MODEL_ERROR, "lost in mid-stream", {"some"}),
        ("crash", ak.ExitReason.MODEL_ERROR, "RuntimeError: a bug", {"some"}),
        ("stall", ak.ExitReason.GENERATION_TIMEOUT, None, {"some", "none"}),
        ("slow", ak.ExitReason.FINISHED, None, {"all"}),
    ],
)
async def test_a_model_fails_as_planned(fault: str, reason: ak.ExitReason, error: str | None, parts: set[str]) -> None:
    model = faulty_model(ScriptedModel([SAMPLED], chunk_tokens=2), FaultPlan(seed=3, **{fault: 1.0}))
    trajectory = await run(agent(model=model))
    assert trajectory.exit_reason is reason
    assert (trajectory.error is None) == (error is None)
    assert error is None or error in trajectory.error
    said = sampled(trajectory)
    assert SAMPLED.startswith(said)
    assert ("all" if said == SAMPLED else "some" if said else "none") in parts
    if fault == "slow":
        assert 0 < trajectory.timings.total_s < 20
    if fault == "server_error":
        assert trajectory.timings.total_s == pytest.approx(0.5 + 1 + 2), "it is tried again, as a real one would be"


async def test_a_chunk_that_comes_twice_is_recorded_twice() -> None:
    model = faulty_model(ScriptedModel([SAMPLED], chunk_tokens=2), FaultPlan(duplicate_chunk=1.0))
    trajectory = await run(agent(model=model))
    plain = await run(agent())
    assert len(trajectory.chains[0]) == len(plain.chains[0]) + 2
    assert Witness().verify(trajectory) == []


async def test_a_chunk_that_comes_late_is_not_recorded() -> None:
    witness = Witness()
    script = ScriptedModel([CALL, CALL, SAMPLED])
    model = faulty_model(script, FaultPlan(late_chunk=1.0), witness=witness)
    tools = [FakeTool("search", search)]
    trajectory = await run(agent(model=model, tools=tools))
    plain = await run(agent(model=script, tools=tools))
    assert trajectory.chains == plain.chains
    assert witness.struck["late_chunk"] == 2
    assert witness.problems == []
    assert witness.verify(trajectory) == []


async def test_a_late_chunk_that_is_taken_is_a_problem() -> None:
    witness = Witness()
    model = faulty_model(ScriptedModel([CALL, SAMPLED]), FaultPlan(late_chunk=1.0), witness=witness)
    request = ak.protocols.TokenRequest("r", [1, 2], 2, 100, frozenset(), 1e9)
    for _ in range(2):
        await model.sample_tokens(request, lambda chunk: None)
    ((_, what),) = witness.problems
    assert "taken after its generation was over" in what


async def test_message_models_fail_too() -> None:
    inner = ScriptedMessageModel(["It is found, after a while, in the attic."], chunk_chars=4)
    model = faulty_model(inner, FaultPlan(seed=1, partial_stream=1.0))
    assert isinstance(model, ak.MessageModel)
    trajectory = await run(agent(model=model))
    assert trajectory.exit_reason is ak.ExitReason.MODEL_ERROR
    assert 0 < len(sampled(trajectory)) < 41


async def test_a_model_brings_its_renderer_if_it_has_one() -> None:
    class Bare:
        async def sample_tokens(self, request, emit):
            raise NotImplementedError

    assert isinstance(faulty_model(ScriptedModel([""]), FaultPlan()), HasRenderer)
    bare = faulty_model(Bare(), FaultPlan())
    assert isinstance(bare, ak.TokenModel)
    with pytest.raises(ConfigError, match="renderer is missing"):
        ak.Agent(bare)


@pytest.mark.parametrize("after", [0, 1, 3, 1000])
async def test_a_failing_model_fails_exactly_as_told(after: int) -> None:
    inner = ScriptedModel([SAMPLED], chunk_tokens=2)
    error = ak.ModelError("gone", retryable=True)
    model = failing_model(inner, error, after_chunks=after, times=2)
    trajectory = await run(agent(model=model))
    ids = list(trajectory.chains[0].ids)[trajectory.turns[0].start :] if trajectory.turns else []
    if after:
        assert trajectory.exit_reason is ak.ExitReason.MODEL_ERROR
        assert trajectory.error.rstrip().endswith("ModelError: gone")
        assert len(ids) == min(2 * after, len(inner.renderer.tokenizer.encode(SAMPLED)) + 1)
    else:
        assert trajectory.exit_reason is ak.ExitReason.FINISHED, "nothing was sampled, so it is asked again"
        assert trajectory.timings.total_s == pytest.approx(0.5 + 1)


async def test_a_failing_model_without_an_error_never_answers() -> None:
    model = failing_model(ScriptedMessageModel(["Hello."], chunk_chars=2), after_chunks=2, times=None)
    trajectory = await run(agent(model=model))
    assert trajectory.exit_reason is ak.ExitReason.GENERATION_TIMEOUT
    assert sampled(trajectory) == "Hell"
    assert trajectory.timings.total_s == pytest.approx(30)


async def test_a_model_that_packs_what_its_emit_raises_fails_all_the_same() -> None:
    class Packing(ScriptedModel):
        async def sample_tokens(self, request, emit):
            try:
                return await super().sample_tokens(request, emit)
            except Exception as error:
                raise ak.ModelError("unknown") from error

    model = failing_model(Packing([SAMPLED], chunk_tokens=2), ValueError("the one"), after_chunks=1)
    trajectory = await run(agent(model=model))
    assert "ValueError: the one" in trajectory.error


@runtime_checkable
class Searches(Protocol):
    async def search(self, room: str) -> str: ...


class Rooms:
    """Counts what becomes of it."""

    colour = "blue"

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def start(self, task: ak.Task) -> Sequence[ak.Message]:
        self.log.append("start")
        return [ak.user("Look around.")]

    async def search(self, room: str) -> str:
        self.log.append(f"search {room}")
        return "nothing"

    def plain(self) -> int:
        return 3

    async def close(self) -> None:
        self.log.append("close")


@ak.tool(name="search")
async def search_rooms(rooms: Searches) -> str:
    """Look."""
    return await rooms.search("hall")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("failed_start", ak.ExitReason.ENV_START_FAILED),
        ("hung_start", ak.ExitReason.ENV_START_FAILED),
        ("dead_sandbox", ak.ExitReason.ENV_DEAD),
        ("failed_close", ak.ExitReason.FINISHED),
        ("hung_close", ak.ExitReason.FINISHED),
    ],
)
async def test_an_env_fails_as_planned_and_is_closed(fault: str, reason: ak.ExitReason, seed: int) -> None:
    log: list[str] = []
    witness = Witness()
    env = faulty_env(lambda: Rooms(log), FaultPlan(seed=seed, **{fault: 1.0}), witness=witness)
    made = agent(model=ScriptedModel([CALL, SAMPLED]), env=env, tools=[search_rooms])
    async with ak.Pool(made) as pool:
        (trajectory,) = await pool.run([ak.Task("t", "Find it.")])
        assert len(pool.stuck) == ("close" in fault)
    assert trajectory.exit_reason is reason
    assert log[-1] == "close"
    assert log.count("close") == 1
    assert witness.open == {}
    assert witness.problems == []
    assert witness.struck[fault] == 1


async def test_some_faults_come_after_the_deed_and_some_before() -> None:
    logs = []
    for seed in range(12):
        log: list[str] = []
        env = faulty_env(lambda log=log: Rooms(log), FaultPlan(seed=seed, dead_sandbox=1.0))
        await run(agent(model=ScriptedModel([CALL, SAMPLED]), env=env, tools=[search_rooms]))
        logs.append("search hall" in log)
    assert set(logs) == {True, False}


async def test_an_env_answers_for_what_it_wraps() -> None:
    env = faulty_env(lambda: Rooms([]), FaultPlan())()
    assert isinstance(env, ak.Env)
    assert isinstance(env, Searches)
    assert not isinstance(env, ak.protocols.Steps)
    assert (env.colour, env.plain(), await env.search("hall")) == ("blue", 3, "nothing")
    with pytest.raises(AttributeError):
        _ = env.missing


async def test_a_step_of_an_env_dies_too() -> None:
    class Steps(Rooms):
        async def step(self, action: ak.Action) -> ak.Observation:
            return ak.Observation("go on", done=True)

    env = faulty_env(lambda: Steps([]), FaultPlan(dead_sandbox=1.0))
    assert isinstance(env(), ak.protocols.Steps)
    assert (await run(agent(env=env))).exit_reason is ak.ExitReason.ENV_DEAD


@pytest.mark.parametrize(
    ("fault", "status", "seconds"),
    [
        ("tool_error", ak.ObservationStatus.ERROR, 0),
        ("hung_tool", ak.ObservationStatus.TIMEOUT, 10),
        ("stubborn_tool", ak.ObservationStatus.TIMEOUT, 10),
        ("slow", ak.ObservationStatus.OK, None),
    ],
)
async def test_a_tool_fails_as_planned(fault: str, status: ak.ObservationStatus, seconds: float | None) -> None:
    plan = FaultPlan(seed=2, slow_s=8, **{fault: 1.0})
    tool = faulty_tool(FakeTool("search", search), plan)
    assert tool.spec.name == "search"
    trajectory = await run(agent(model=ScriptedModel([CALL, SAMPLED]), tools=[tool]))
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    assert trajectory.turns[0].observations[0].status is status
    assert trajectory.stuck == (("search",) if fault == "stubborn_tool" else ())
    if seconds is not None:
        assert seconds <= trajectory.turns[0].tool_s <= seconds + 5
    else:
        assert 0 < trajectory.turns[0].tool_s < 8


async def test_a_factory_of_tools_stays_one_and_a_sub_agent_stays_whole() -> None:
    made = []

    def factory() -> FakeTool:
        made.append(FakeTool("search", search))
        return made[-1]

    tool = faulty_tool(factory, FaultPlan(tool_error=1.0))
    helper = ak.SubAgent(agent(name="helper"), description="Helps.")
    assert faulty_tool(helper, FaultPlan(tool_error=1.0)) is helper
    composed = agent(model=ScriptedModel([CALL, SAMPLED]), tools=[tool])
    await run(composed)
    trajectory = await run(composed)
    assert len(made) == 3
    assert "the tool 'search' failed" in trajectory.turns[0].observations[0].content


class Judge:
    async def __call__(self, trajectory: ak.Trajectory, env: object) -> float:
        return 0.5


@pytest.mark.parametrize("reward", [Judge, Judge(), lambda trajectory, env: 0.5], ids=["class", "object", "plain"])
@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (None, ak.GradeStatus.OK),
        ("failed_reward", ak.GradeStatus.ERROR),
        ("hung_reward", ak.GradeStatus.TIMEOUT),
    ],
)
async def test_a_reward_fails_as_planned(reward, fault: str | None, status: ak.GradeStatus) -> None:
    plan = FaultPlan() if fault is None else FaultPlan(**{fault: 1.0})
    trajectory = await run(agent(reward=faulty_reward(reward, plan)))
    assert trajectory.grade.status is status
    assert trajectory.score == (0.5 if fault is None else None)


async def test_a_loop_crashes_before_or_after() -> None:
    turns = []
    for seed in range(12):
        trajectory = await run(agent(loop=faulty_loop(ak.react, FaultPlan(seed=seed, crash=1.0))))
        turns.append(len(trajectory.turns))
        ended = ak.ExitReason.FINISHED if trajectory.turns else ak.ExitReason.INTERNAL_ERROR
        assert trajectory.exit_reason is ended
    assert set(turns) == {0, 1}


async def test_a_whole_agent_without_faults_is_the_agent() -> None:
    whole = agent(
        model=ScriptedModel([CALL, SAMPLED]), env=World(), tools=[FakeTool("search", search)], reward=Judge, name="n"
    )
    wrapped = faulty_agent(whole, FaultPlan(seed=9))
    assert wrapped.name == "n"
    first, second = await run(whole), await run(wrapped)
    assert first.chains == second.chains
    assert (first.exit_reason, first.score) == (second.exit_reason, second.score)
    assert faulty_agent(agent(), FaultPlan()).env is None


async def test_tools_that_run_side_by_side_meet_the_same_faults_in_any_order() -> None:
    both = CALL + "\n" + CALL
    seen = set()
    for nap in (0.1, 0.3):

        async def slowly(_: object, nap: float = nap) -> str:
            await anyio.sleep(nap)
            return "ok"

        tool = faulty_tool(FakeTool("search", slowly, parallel=True), FaultPlan(seed=5, tool_error=0.5, slow=0.5))
        trajectory = await run(agent(model=ScriptedModel([both, SAMPLED]), tools=[tool]))
        seen.add(tuple(o.status for o in trajectory.turns[0].observations))
    assert len(seen) == 1
