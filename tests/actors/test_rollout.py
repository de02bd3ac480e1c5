"""How rollouts end and what they record, on the default loop and on others."""

from collections.abc import Sequence

import anyio
import pytest

from agentkit import (
    Agent,
    Blame,
    Budget,
    ConfigError,
    ExitReason,
    Message,
    ModelError,
    Observation,
    OutcomePolicy,
    Pool,
    SandboxDead,
    Task,
    ToolCall,
    ToolError,
    assistant,
    chat,
    user,
)
from agentkit.errors import ContextOverflow, RolloutEnded
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.protocols import Finish, FinishReason, GradeStatus, ObservationStatus, SpanKind
from agentkit.testing import FakeTool, MemorySink, World, swallow_cancellation
from agentkit.tools import finish

ONCE = OutcomePolicy(retries=0)


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


async def ok(_: object = None) -> str:
    return "ok"


WORK = FakeTool("work", ok)


async def test_an_action_without_a_call_finishes() -> None:
    trajectory = await Agent(ScriptedModel(["Hello."])).run("Hi.")
    assert (trajectory.exit_reason, trajectory.blame) == (ExitReason.FINISHED, None)
    assert trajectory.turns[0].action.content == "Hello."
    assert trajectory.prompt == (user("Hi."),)


async def test_finishing_on_the_last_allowed_turn_is_finished() -> None:
    agent = Agent(ScriptedModel([call("work"), "done"]), tools=[WORK], budget=Budget(max_turns=2))
    assert (await agent.run("Go.")).exit_reason is ExitReason.FINISHED
    agent = Agent(ScriptedModel([call("work")] * 3), tools=[WORK], budget=Budget(max_turns=2))
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.TURN_LIMIT, 2)


async def test_a_finish_tool_ends_the_rollout_and_skips_the_calls_after_it() -> None:
    script = [call("work") + "\n" + call("finish", '{"answer": "42"}') + "\n" + call("work")]
    trajectory = await Agent(ScriptedModel(script), tools=[WORK, finish]).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    statuses = [observation.status for observation in trajectory.turns[0].observations]
    assert statuses == [ObservationStatus.OK, ObservationStatus.OK, ObservationStatus.SKIPPED]


async def test_calls_and_observations_match_one_to_one_in_order() -> None:
    async def slow(_: object) -> str:
        await anyio.sleep(5)
        return "slow"

    tools = [FakeTool("slow", slow, parallel=True), FakeTool("quick", ok, parallel=True), WORK]
    calls = [call("slow"), call("quick"), call("missing"), "<tool_call>\n{oops}\n</tool_call>", call("work")]
    started = anyio.current_time()
    trajectory = await Agent(ScriptedModel(["\n".join(calls), "done"]), tools=tools).run("Go.")
    turn = trajectory.turns[0]
    assert [o.call_id for o in turn.observations] == [a.id for a in turn.action.attempts]
    assert len({a.id for t in trajectory.turns for a in t.action.attempts}) == 5
    assert [o.content for o in turn.observations][:2] == ["slow", "ok"]
    assert "no tool 'missing'; the tools are: quick, slow, work" in turn.observations[2].content
    assert turn.observations[3].status is ObservationStatus.FORMAT_ERROR
    assert turn.observations[4].content == "ok"
    assert anyio.current_time() - started == pytest.approx(5)


async def test_parallel_calls_run_side_by_side_and_others_in_order() -> None:
    log: list[str] = []

    def body(name: str):
        async def run(_: object) -> str:
            log.append(f"+{name}")
            await anyio.sleep(1)
            log.append(f"-{name}")
            return name

        return run

    tools = [FakeTool("p", body("p"), parallel=True), FakeTool("s", body("s"))]
    script = ["\n".join(map(call, ["p", "p", "s", "s", "p"])), "done"]
    await Agent(ScriptedModel(script), tools=tools).run("Go.")
    assert log == ["+p", "+p", "-p", "-p", "+s", "-s", "+s", "-s", "+p", "-p"]


async def test_consecutive_format_errors_end_the_rollout_and_a_clean_turn_resets_them() -> None:
    bad = "<tool_call>\n{not json}\n</tool_call>"
    agent = Agent(ScriptedModel([bad, bad, call("work"), bad, bad, bad, "never"]), tools=[WORK])
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, trajectory.blame) == (ExitReason.FORMAT_ERRORS, Blame.POLICY)
    assert len(trajectory.turns) == 6
    assert sum(trajectory.chains[0].response_mask) == sum(t.stop - t.start for t in trajectory.turns)


async def test_tool_timeouts_are_forgiven_so_often() -> None:
    agent = Agent(
        ScriptedModel([call("work")] * 9),
        tools=[FakeTool("work", lambda _: anyio.sleep(100))],
        budget=Budget(tool_s=1, max_tool_timeouts=2),
    )
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.TOOL_TIMEOUTS, 3)


async def test_a_call_cut_by_the_length_limit_never_runs() -> None:
    tool = FakeTool("work", ok)

    class Cut(ScriptedModel):
        async def sample_tokens(self, request, emit):
            await super().sample_tokens(request, emit)
            return Finish(FinishReason.LENGTH)

    agent = Agent(Cut([call("work")[:-14], "An answer that was cut"]), tools=[tool], budget=Budget(max_format_errors=2))
    trajectory = await agent.run("Go.")
    assert tool.calls == 0
    assert trajectory.exit_reason is ExitReason.FORMAT_ERRORS
    assert [o.status for t in trajectory.turns for o in t.observations] == [ObservationStatus.FORMAT_ERROR] * 2


@pytest.mark.parametrize(
    ("error", "reason", "observed"),
    [
        (SandboxDead("gone"), ExitReason.ENV_DEAD, "The environment is gone: gone"),
        (ToolError("no such file"), ExitReason.FINISHED, "Error: no such file"),
        (KeyError("k"), ExitReason.FINISHED, "Error: KeyError: 'k'"),
    ],
)
async def test_a_tools_fault_is_an_observation_unless_the_world_is_gone(error, reason, observed) -> None:
    async def fail(_: object) -> str:
        raise error

    agent = Agent(ScriptedModel([call("work"), "done"]), tools=[FakeTool("work", fail)], outcomes=ONCE)
    trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is reason
    assert trajectory.turns[0].observations[0].content == observed


async def test_a_dead_env_cuts_the_calls_beside_it() -> None:
    async def die(_: object) -> str:
        await anyio.sleep(1)
        raise SandboxDead("gone")

    tools = [FakeTool("die", die, parallel=True), FakeTool("wait", lambda _: anyio.sleep(60), parallel=True)]
    agent = Agent(ScriptedModel([call("wait") + "\n" + call("die")]), tools=tools, outcomes=ONCE)
    started = anyio.current_time()
    trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is ExitReason.ENV_DEAD
    assert [o.status for o in trajectory.turns[0].observations] == ["skipped", "error"]
    assert "Cut short" in trajectory.turns[0].observations[0].content
    assert anyio.current_time() - started == pytest.approx(1)


async def test_a_call_that_will_not_end_does_not_hold_a_rollout_whose_env_is_dead() -> None:
    async def die(_: object) -> str:
        await anyio.sleep(1)
        raise SandboxDead("gone")

    async def stay(_: object) -> str:
        await swallow_cancellation()
        return "never"

    tools = [FakeTool("die", die, parallel=True), FakeTool("stay", stay, parallel=True)]
    agent = Agent(
        ScriptedModel([call("stay") + "\n" + call("die")]), tools=tools, outcomes=ONCE, budget=Budget(grace_s=5)
    )
    started = anyio.current_time()
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, trajectory.stuck) == (ExitReason.ENV_DEAD, ("stay",))
    assert [o.status for o in trajectory.turns[0].observations] == ["skipped", "error"]
    assert anyio.current_time() - started <= 1 + 5


async def test_a_dead_env_skips_the_other_calls_and_has_no_score() -> None:
    async def die(_: object) -> str:
        raise SandboxDead("gone")

    async def score(trajectory, env) -> float:
        raise AssertionError("never asked")

    script = [call("die") + "\n" + call("work")]
    agent = Agent(ScriptedModel(script), tools=[FakeTool("die", die), WORK], reward=score, outcomes=ONCE)
    trajectory = await agent.run("Go.")
    assert [o.status for o in trajectory.turns[0].observations] == ["error", "skipped"]
    assert (trajectory.grade.status, trajectory.score, trajectory.grade.blame) == (
        GradeStatus.ERROR,
        None,
        Blame.ENVIRONMENT,
    )
    assert trajectory.outcome == "drop"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ContextOverflow("full"), ExitReason.TOKEN_LIMIT),
        (ModelError("refused"), ExitReason.MODEL_ERROR),
        (ZeroDivisionError("oops"), ExitReason.MODEL_ERROR),
        (ConfigError("wrong"), ExitReason.INTERNAL_ERROR),
    ],
)
async def test_what_a_model_raises_ends_its_rollout(error, reason) -> None:
    class Failing(ScriptedModel):
        async def sample_tokens(self, request, emit):
            raise error

    trajectory = await Agent(Failing(["x"]), outcomes=ONCE).run("Go.")
    assert trajectory.exit_reason is reason
    assert type(error).__name__ in trajectory.error
    assert trajectory.turns == ()


async def test_a_setting_that_a_model_refuses_is_not_tried_again() -> None:
    class Refusing(ScriptedModel):
        async def sample_tokens(self, request, emit):
            raise ConfigError("params['max_tokens'] is set by the budget")

    trajectory = await Agent(Refusing(["x"])).run("Go.")
    assert (trajectory.exit_reason, trajectory.outcome) == (ExitReason.INTERNAL_ERROR, "drop")
    assert trajectory.attempts == ()


async def test_a_retryable_model_error_is_retried_unless_something_was_sampled() -> None:
    class Flaky(ScriptedModel):
        fails = 2

        async def sample_tokens(self, request, emit):
            if self.fails:
                self.fails -= 1
                raise ModelError("busy", retryable=True)
            return await super().sample_tokens(request, emit)

    trajectory = await Agent(Flaky(["Hello."]), outcomes=ONCE).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.turns[0].generation_s == pytest.approx(0.5 + 1.0)

    class Torn(ScriptedModel):
        asked = 0

        async def sample_tokens(self, request, emit):
            self.asked += 1
            await super().sample_tokens(request, emit)
            raise ModelError("connection lost", retryable=True)

    torn = Torn(["Hello."])
    trajectory = await Agent(torn, outcomes=ONCE).run("Go.")
    assert (trajectory.exit_reason, torn.asked) == (ExitReason.MODEL_ERROR, 1)
    assert sum(trajectory.chains[0].response_mask) == 5, "what was streamed is kept, and never sampled twice"


async def test_an_env_that_fails_to_start_is_retried_in_a_fresh_one() -> None:
    starts = []

    async def start(task: Task) -> None:
        starts.append(anyio.current_time())
        if len(starts) < 3:
            raise OSError("no room")

    world, sink = World(on_start=start), MemorySink()
    agent = Agent(ScriptedModel(["done"]), env=world, outcomes=OutcomePolicy(backoff_s=2))
    async with Pool(agent, sink=sink) as pool:
        (trajectory,) = await pool.run([Task("t", "Go.")])
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert [a.exit_reason for a in trajectory.attempts] == [ExitReason.ENV_START_FAILED] * 2
    assert "no room" in trajectory.attempts[0].error
    assert starts == [0, 2, 6]
    assert (world.made, world.closed) == (3, 3)
    assert [key.attempt for key in sink.begun] == [0, 1, 2]
    assert trajectory.key.attempt == 2
    assert len(sink.trajectories) == 1


async def test_an_env_that_never_starts_ends_as_such_and_is_dropped() -> None:
    async def start(task: Task) -> None:
        await anyio.sleep(100)

    world = World(on_start=start)
    agent = Agent(ScriptedModel(["done"]), env=world, budget=Budget(setup_s=5), outcomes=OutcomePolicy(retries=1))
    trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is ExitReason.ENV_START_FAILED
    assert "took longer than 5 s" in trajectory.error
    assert trajectory.outcome == "drop"
    assert not world.open


async def test_an_env_may_answer_actions_itself() -> None:
    class Counting:
        async def start(self, task: Task) -> Sequence[Message]:
            self.n = task.data["n"]
            return [user(f"Count to {self.n}.")]

        async def step(self, action) -> Observation:
            return Observation("go on", done=action.text.endswith(str(self.n)))

        async def close(self) -> None:
            pass

    trajectory = await Agent(ScriptedModel(["1", "2", "3", "4"]), env=Counting).run(Task("t", data={"n": 3}))
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert len(trajectory.turns) == 3
    assert trajectory.prompt == (user("Count to 3."),)


async def test_an_exception_in_a_loop_is_an_exit_reason_with_its_traceback() -> None:
    async def broken(rollout) -> None:
        await rollout.sample()
        raise LookupError("mine")

    trajectory = await Agent(ScriptedModel(["x"]), loop=broken).run("Go.")
    assert (trajectory.exit_reason, trajectory.blame) == (ExitReason.INTERNAL_ERROR, Blame.INFRASTRUCTURE)
    assert "in broken" in trajectory.error
    assert "LookupError: mine" in trajectory.error
    assert len(trajectory.turns) == 1


async def test_the_same_agent_runs_at_message_level_without_tokens() -> None:
    script = [assistant("", ToolCall("abc", "work", {})), "done"]
    trajectory = await Agent(ScriptedMessageModel(script), tools=[WORK]).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.chains == ()
    assert trajectory.turns[0].observations[0].call_id == "abc"


async def test_a_message_level_deadline_keeps_the_text_so_far() -> None:
    model = ScriptedMessageModel(["word " * 100], chunk_chars=5, chunk_s=1.0)
    trajectory = await Agent(model, budget=Budget(generation_s=10.5)).run("Go.")
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    assert trajectory.turns[0].action.text.startswith("word word")


async def test_a_chain_tells_where_each_token_came_from() -> None:
    trajectory = await Agent(ScriptedModel([call("work"), "done"], policy_version=7), tools=[WORK]).run("Go.")
    (chain,) = trajectory.chains
    kinds = [(span.kind, span.turn, span.policy_version) for span in chain.spans]
    assert kinds == [
        (SpanKind.PROMPT, -1, None),
        (SpanKind.SAMPLED, 0, 7),
        (SpanKind.OBSERVATION, 0, None),
        (SpanKind.SAMPLED, 1, 7),
    ]
    assert trajectory.policy_versions() == (7, 7)
    assert chain.spans[1].start == trajectory.turns[0].start


async def test_a_rewritten_history_starts_a_new_chain() -> None:
    async def compacting(rollout) -> None:
        async for action in rollout:
            await rollout.act(action)
            if rollout.turns == 2 and not rollout.ended:
                rollout.rewrite([user("So far: two turns. Go on.")])

    trajectory = await Agent(ScriptedModel([call("work")] * 3 + ["done"]), tools=[WORK], loop=compacting).run("Go.")
    assert [turn.chain for turn in trajectory.turns] == [0, 0, 1, 1]
    assert sum(sum(c.response_mask) for c in trajectory.chains) == sum(t.stop - t.start for t in trajectory.turns)


async def test_sampling_twice_with_nothing_new_says_so() -> None:
    async def careless(rollout) -> None:
        await rollout.sample()
        await rollout.sample()

    trajectory = await Agent(ScriptedModel(["a", "b"]), loop=careless).run("Go.")
    assert trajectory.exit_reason is ExitReason.INTERNAL_ERROR
    assert "nothing new to answer" in trajectory.error


async def test_a_chat_takes_user_messages_from_the_mailbox() -> None:
    agent = Agent(ScriptedModel(["Hi.", call("work"), "Worked.", "Bye."]), tools=[WORK], loop=chat)
    async with Pool(agent) as pool:
        actor = pool.start("Hello.")
        assert (await actor.ask("Please work.")).content in ("Hi.", "Worked.")
        assert (await actor.ask("Thanks.")).content in ("Worked.", "Bye.")
        actor.hang_up()
        trajectory = await actor.result()
    assert trajectory.exit_reason is ExitReason.FINISHED


async def test_the_budget_of_a_task_overrides_the_agents() -> None:
    agent = Agent(ScriptedModel([call("work")] * 9), tools=[WORK])
    trajectory = await agent.run(Task("t", "Go.", budget={"max_turns": 2}))
    assert len(trajectory.turns) == 2
    with pytest.raises(ConfigError, match="did you mean 'max_turns'"):
        Task("t", "Go.", budget={"max_turn": 2})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": object()}, "agent.model must have sample_tokens or sample_message"),
        ({"tools": [WORK, WORK]}, "several tools of one name: 'work'"),
        ({"tools": [print, len]}, r"agent.tools\[0\] (is no tool|made NoneType)"),
        ({"env": World()()}, "agent.env must be a class or a function"),
        ({"budget": 3}, "agent.budget"),
    ],
)
def test_parts_that_do_not_fit_are_one_clear_error(change, message, capsys) -> None:
    with pytest.raises(ConfigError, match=message):
        Agent(**({"model": ScriptedModel(["x"])} | change))


def test_a_tool_says_what_it_needs_of_the_env() -> None:
    from agentkit.tools import execute_bash

    class Bare:
        async def start(self, task): ...
        async def close(self): ...

    with pytest.raises(ConfigError, match=r"execute_bash.*Shell.*Bare"):
        Agent(ScriptedModel(["x"]), env=Bare, tools=[execute_bash])


async def test_parts_of_a_score_must_fit_the_trajectory() -> None:
    from agentkit import Score

    def with_parts(**parts):
        async def score(trajectory, env) -> Score:
            return Score(1.0, **parts)

        return Agent(ScriptedModel([call("work"), "done"]), tools=[WORK], reward=score)

    good = await with_parts(turns=(0.5, 1.0)).run("Go.")
    assert good.grade.score.turns == (0.5, 1.0)
    bad = await with_parts(turns=(0.5,)).run("Go.")
    assert (bad.grade.status, bad.grade.blame, bad.score) == (GradeStatus.ERROR, Blame.GRADER, None)
    assert "1 parts for 2 turns" in bad.grade.error
    wild = await with_parts(tokens={3: (1.0,)}).run("Go.")
    assert "chain 3, expected None" in wild.grade.error


async def test_a_reward_sees_the_task_and_the_open_env() -> None:
    world = World()

    async def score(trajectory, env) -> float:
        assert env in world.open
        return float(trajectory.task.data["answer"] == trajectory.turns[-1].action.content)

    agent = Agent(ScriptedModel(["42"]), env=world, reward=score)
    assert (await agent.run(Task("t", "What?", data={"answer": "42"}))).score == 1.0
    assert not world.open


async def test_a_reward_may_be_a_plain_function() -> None:
    trajectory = await Agent(ScriptedModel(["x"]), reward=lambda trajectory, env: 0.5).run("Go.")
    assert trajectory.score == 0.5


async def test_a_model_that_returns_nothing_is_a_model_error() -> None:
    class Forgetful(ScriptedModel):
        async def sample_tokens(self, request, emit):
            await super().sample_tokens(request, emit)

    trajectory = await Agent(Forgetful(["x"]), outcomes=ONCE).run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert "Forgetful.sample_tokens must return a Finish, found None" in trajectory.error


async def test_an_env_that_returns_the_wrong_thing_is_to_blame() -> None:
    class Wordy:
        async def start(self, task):
            return task.data["start"]

        async def step(self, action):
            return "go on"

        async def close(self) -> None: ...

    agent = Agent(ScriptedModel(["x"]), env=Wordy, outcomes=ONCE)
    trajectory = await agent.run(Task("t", "Go.", data={"start": "Hello."}))
    assert (trajectory.exit_reason, trajectory.blame) == (ExitReason.ENV_START_FAILED, Blame.ENVIRONMENT)
    assert "Wordy.start must return a sequence of messages or None, found 'Hello.'" in trajectory.error
    trajectory = await agent.run(Task("t", "Go.", data={"start": None}))
    assert trajectory.exit_reason is ExitReason.ENV_DEAD
    assert "Wordy.step must return an Observation, found 'go on'" in trajectory.error


async def test_a_stubborn_tool_is_ended_at_its_own_limit_after_a_long_generation() -> None:
    from agentkit.testing import hide_behind_a_shield

    agent = Agent(
        ScriptedModel([call("work"), "done"], first_token_s=200),
        tools=[FakeTool("work", lambda _: hide_behind_a_shield())],
        budget=Budget(tool_s=20, grace_s=5),
    )
    trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.turns[0].tool_s == pytest.approx(25)


class _Sync:
    def start(self, task): ...

    async def close(self): ...


class _Endless:
    async def start(self, task): ...


def _plain_loop(rollout): ...


async def _undecorated() -> str:
    return "x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": _Sync}, "_Sync.start must be async"),
        ({"env": _Endless}, "_Endless has no close"),
        ({"loop": _plain_loop}, "agent.loop must be an async function, found <function _plain_loop"),
        ({"tools": [_undecorated]}, r"agent.tools\[0\] is no tool.*decorate a function"),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused_when_the_agent_is_composed(change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Agent(ScriptedModel(["x"]), **change)


def test_messages_of_a_task_may_be_mappings() -> None:
    task = Task("t", [{"role": "system", "content": "Be brief."}, user("Hi.")])
    assert task.messages == (Message("system", "Be brief."), user("Hi."))
    with pytest.raises(ConfigError, match=r"task.messages\[1\] must be a Message or a mapping"):
        Task("t", [user("Hi."), {"role": "robot", "content": "x"}])


async def test_a_rollout_has_one_loop() -> None:
    async def torn(rollout) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(rollout.sample)
            await anyio.sleep(1)
            with pytest.raises(ConfigError, match="sample was called while sample is under way"):
                await rollout.sample()

    trajectory = await Agent(ScriptedModel(["a", "b"], first_token_s=5), loop=torn).run("Go.")
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.FINISHED, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ScriptedModel}, "found <class .*ScriptedModel.>: make one of it"),
        ({"tools": WORK}, "agent.tools must be a list of tools, found the tool 'work'"),
        ({"loop": None}, "agent.loop must be an async function, found None"),
        ({"reward": ok}, "agent.reward is called with .trajectory, env., but ok takes fewer arguments"),
    ],
)
def test_a_slip_is_named_when_the_agent_is_composed(change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Agent(**({"model": ScriptedModel(["x"])} | change))


async def test_a_misconfigured_env_is_not_tried_again() -> None:
    async def start(task: Task) -> None:
        raise ConfigError("bubblewrap is not installed")

    world = World(on_start=start)
    trajectory = await Agent(ScriptedModel(["x"]), env=world).run("Go.")
    assert (trajectory.exit_reason, world.made) == (ExitReason.INTERNAL_ERROR, 1)
    assert "bubblewrap is not installed" in trajectory.error


async def test_nothing_to_answer_is_said_so() -> None:
    trajectory = await Agent(ScriptedModel(["x"])).run(Task("t"))
    assert "the task has no messages, and no env made any" in trajectory.error


async def test_pushing_something_else_than_a_chunk_is_a_model_error() -> None:
    class Odd(ScriptedModel):
        async def sample_tokens(self, request, emit):
            emit(([1], [-0.5]))

    trajectory = await Agent(Odd(["x"]), outcomes=ONCE).run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert "emit takes a TokenChunk, found" in trajectory.error


async def test_one_model_serves_the_same_task_again() -> None:
    agent = Agent(ScriptedModel([call("work"), "done"]), tools=[WORK])
    for _ in range(3):
        trajectory = await agent.run("Go.")
        assert (trajectory.exit_reason, trajectory.attempts) == (ExitReason.FINISHED, ())


async def test_a_call_cut_by_the_deadline_is_told_from_one_that_never_began() -> None:
    slow = FakeTool("slow", lambda _: anyio.sleep(100))
    agent = Agent(ScriptedModel([call("slow") + "\n" + call("slow")]), tools=[slow], budget=Budget(trajectory_s=5))
    trajectory = await agent.run("Go.")
    assert [o.content for o in trajectory.turns[0].observations] == [
        "Cut short: the rollout ended while this call was under way.",
        "Not run: the turn had already ended.",
    ]


async def test_nothing_is_said_after_the_end() -> None:
    refused = []

    async def late(rollout) -> None:
        await rollout.act(await rollout.sample())
        try:
            rollout.observe("One more thing.")
        except RolloutEnded as error:
            refused.append(str(error))

    trajectory = await Agent(ScriptedModel(["done"]), loop=late).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert refused == ["the rollout has ended: finished"]


async def test_a_model_that_ends_its_own_generation_is_at_fault() -> None:
    class Posing(ScriptedModel):
        async def sample_tokens(self, request, emit):
            raise RolloutEnded("enough")

    trajectory = await Agent(Posing(["x"]), outcomes=ONCE).run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert "the model pushed into a generation that was over" in trajectory.error


async def test_a_loop_may_give_a_generation_and_a_call_less_time() -> None:
    cut = []

    async def hasty(rollout) -> None:
        with anyio.move_on_after(1) as first:
            await rollout.sample()
        rollout.observe("Hurry.")
        action = await rollout.sample()
        with anyio.move_on_after(1) as second:
            await rollout.act(action)
        cut.append((first.cancelled_caught, second.cancelled_caught))

    slow = FakeTool("slow", lambda _: anyio.sleep(100))
    agent = Agent(ScriptedModel(["word " * 50, call("slow")], token_s=0.1), tools=[slow], loop=hasty)
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, trajectory.error, cut) == (ExitReason.FINISHED, None, [(True, True)])
    assert [turn.action.finish for turn in trajectory.turns] == [FinishReason.ABORTED, FinishReason.STOP]
    assert trajectory.timings.tool_s == pytest.approx(1)
