"""Actors: mailbox, events, interrupts, children."""

import anyio
import pytest

from agentkit import Agent, Budget, ExitReason, Pool, RolloutEnded, SubAgent, Task
from agentkit.actors import Answered, Ended, Observed, Sampled, chat
from agentkit.models import ScriptedModel
from agentkit.protocols import FinishReason, ObservationStatus
from agentkit.testing import FakeTool, MemorySink

CALL = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>'


async def ok(_: object = None) -> str:
    return "ok"


async def test_what_is_told_is_read_before_the_next_turn() -> None:
    agent = Agent(ScriptedModel([CALL, "done"], first_token_s=1), tools=[FakeTool("work", ok)])
    async with Pool(agent) as pool:
        actor = pool.start("Go.")
        actor.tell("Hurry up.")
        await anyio.sleep(0.5)
        actor.tell("Please.")
        trajectory = await actor.result()
    text = agent.renderer.decode(trajectory.chains[0].ids)
    assert text.index("Hurry up.") < text.index("<tool_call>", text.index("Go.")) < text.index("Please.")
    with pytest.raises(RolloutEnded):
        actor.tell("Too late.")


async def test_events_tell_the_story_and_end() -> None:
    agent = Agent(ScriptedModel([CALL, "done"], first_token_s=1), tools=[FakeTool("work", ok)])
    async with Pool(agent) as pool:
        actor = pool.start("Go.")
        kinds = [type(event) async for event in actor.events()]
        assert kinds == [Sampled, Observed, Sampled, Observed, Ended]
        assert [event async for event in actor.events()] == []


async def test_a_watcher_that_stops_listening_holds_nobody() -> None:
    agent = Agent(ScriptedModel([CALL] * 20 + ["done"], first_token_s=1), tools=[FakeTool("work", ok)])
    async with Pool(agent) as pool:
        actor = pool.start("Go.")
        events = actor.events()
        await anext(events)
        await events.aclose()
        assert (await actor.result()).exit_reason is ExitReason.FINISHED


async def test_an_ask_is_answered_by_the_end_of_the_policys_say() -> None:
    agent = Agent(ScriptedModel(["One.", "Two."], first_token_s=1), loop=chat)
    async with Pool(agent) as pool:
        actor = pool.start(Task("t"))
        assert (await actor.ask("1?")).content == "One."
        seen = []

        async def watch() -> None:
            async for event in actor.events():
                seen.append(type(event))

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            assert (await actor.ask("2?")).content == "Two."
            actor.hang_up()
        assert seen == [Sampled, Answered, Ended]
        trajectory = await actor.result()
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.FINISHED, 2)


async def test_an_ask_that_gets_no_answer_says_so() -> None:
    agent = Agent(ScriptedModel([CALL] * 9, first_token_s=1), tools=[FakeTool("work", ok)], budget=Budget(max_turns=3))
    async with Pool(agent) as pool:
        actor = pool.start("Go.")
        with pytest.raises(RolloutEnded, match="before it answered"):
            await actor.ask("Are you done?")


async def test_an_interrupt_cuts_a_generation_short_and_the_chat_goes_on() -> None:
    agent = Agent(ScriptedModel(["word " * 50, "Sorry."], token_s=1), tools=[FakeTool("work", ok)])
    async with Pool(agent) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(20.5)
        actor.interrupt()
        await anyio.sleep(5)
        actor.tell("Stop that.")
        trajectory = await actor.result()
    first, second = trajectory.turns
    assert first.finish is FinishReason.ABORTED
    assert 10 <= first.stop - first.start <= 24
    assert second.action.content == "Sorry."
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert "Stop that." in agent.renderer.decode(trajectory.chains[0].ids)


async def test_cancelling_an_actor_seals_it() -> None:
    sink = MemorySink()
    async with Pool(Agent(ScriptedModel(["word " * 50], token_s=1)), sink=sink) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(20)
        actor.cancel()
        trajectory = await actor.result()
    assert trajectory.exit_reason is ExitReason.CANCELLED
    assert sink.trajectories == [trajectory]
    assert sum(trajectory.chains[0].response_mask) > 8


async def test_a_sub_agent_is_a_tool_whose_trajectory_is_a_child() -> None:
    helper = Agent(ScriptedModel(["It is 42."], first_token_s=2), name="helper")
    call = '<tool_call>\n{"name": "helper", "arguments": {"prompt": "What is it?"}}\n</tool_call>'
    sink = MemorySink()
    parent = Agent(ScriptedModel([call + "\n" + call, "done"]), tools=[SubAgent(helper, description="Helps.")])
    started = anyio.current_time()
    async with Pool(parent, max_rollouts=1, sink=sink) as pool:
        (trajectory,) = await pool.run([Task("t", "Go.")])
    assert anyio.current_time() - started == pytest.approx(2), "declared parallel"
    assert [o.content for o in trajectory.turns[0].observations] == ["It is 42."] * 2
    assert [child.exit_reason for child in trajectory.children] == [ExitReason.FINISHED] * 2
    assert len(list(trajectory.walk())) == 3
    assert sink.trajectories == [trajectory], "children live within their parent's record"


async def test_cancelling_a_parent_seals_its_children_first() -> None:
    helper = Agent(ScriptedModel(["word " * 50], token_s=1), name="helper")

    async def delegate(rollout) -> None:
        async for _ in rollout:
            await rollout.child(helper, "Do it.")

    sink = MemorySink()
    with anyio.move_on_after(20):
        async with Pool(Agent(ScriptedModel(["go"]), loop=delegate), sink=sink) as pool:
            await pool.start("Go.").result()
    (trajectory,) = sink.trajectories
    (child,) = trajectory.children
    assert child.exit_reason is ExitReason.CANCELLED
    assert sum(child.chains[0].response_mask) > 8


async def test_a_sub_agent_that_fails_is_an_observation() -> None:
    class Failing(ScriptedModel):
        async def sample_tokens(self, request, emit):
            raise ZeroDivisionError

    helper = Agent(Failing(["x"]), name="helper", budget=Budget())
    call = '<tool_call>\n{"name": "helper", "arguments": {"prompt": "What is it?"}}\n</tool_call>'
    parent = Agent(ScriptedModel([call, "done"]), tools=[SubAgent(helper, description="Helps.")])
    trajectory = await parent.run("Go.")
    (observation,) = trajectory.turns[0].observations
    assert observation.content == "The sub-agent did not finish: model_error."
    assert observation.status is ObservationStatus.OK
    assert trajectory.exit_reason is ExitReason.FINISHED


async def test_an_interrupt_cuts_the_calls_of_a_turn_short() -> None:
    slow = FakeTool("work", lambda _: anyio.sleep(100))
    agent = Agent(ScriptedModel([CALL + "\n" + CALL, "Sorry."]), tools=[slow], budget=Budget(max_tool_timeouts=0))
    async with Pool(agent) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(20)
        actor.interrupt()
        await anyio.sleep(5)
        assert slow.calls == 1
        actor.tell("Stop that.")
        trajectory = await actor.result()
    assert [o.content for o in trajectory.turns[0].observations] == [
        "Interrupted by the user.",
        "Not run: the turn had already ended.",
    ]
    assert (trajectory.exit_reason, trajectory.turns[1].action.content) == (ExitReason.FINISHED, "Sorry.")


async def test_a_child_can_be_talked_to_and_ends_with_its_parent() -> None:
    helper = Agent(ScriptedModel(["One.", "Two."], first_token_s=1), name="helper", loop=chat)

    async def supervise(rollout) -> None:
        async for action in rollout:
            child = rollout.start_child(helper, "Hello.")
            rollout.observe((await child.ask("And?")).content)
            if rollout.turns == 2:
                await rollout.act(action)

    trajectory = await Agent(ScriptedModel(["go", "done"]), loop=supervise).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert [child.exit_reason for child in trajectory.children] == [ExitReason.CANCELLED] * 2
    assert anyio.current_time() < 10


async def test_a_chat_without_a_user_message_waits_for_the_first() -> None:
    async with Pool(Agent(ScriptedModel(["Hi."], first_token_s=1), loop=chat)) as pool:
        actor = pool.start(Task("t"))
        await anyio.sleep(50)
        assert (await actor.ask("Hello.")).content == "Hi."
        actor.hang_up()
        trajectory = await actor.result()
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.FINISHED, 1)
    assert trajectory.prompt[0].content == "Hello."


async def test_a_sub_agent_is_not_cut_by_the_limit_of_a_tool() -> None:
    helper = Agent(ScriptedModel(["It is 42."], first_token_s=200), name="helper")
    call = '<tool_call>\n{"name": "helper", "arguments": {"prompt": "What is it?"}}\n</tool_call>'
    parent = Agent(
        ScriptedModel([call, "done"]), tools=[SubAgent(helper, description="Helps.")], budget=Budget(tool_s=5)
    )
    trajectory = await parent.run("Go.")
    assert trajectory.turns[0].observations[0].content == "It is 42."
