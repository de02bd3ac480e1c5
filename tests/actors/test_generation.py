"""A generation that is over takes nothing more, whoever pushes."""

from types import SimpleNamespace

import anyio
import pytest

from agentkit import Agent, Budget, ExitReason, ModelError, OutcomePolicy, Pool, RolloutEnded, Task, ToolCall
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.protocols import (
    CallFault,
    FaultStatus,
    Finish,
    FinishReason,
    Message,
    ObservationStatus,
    TextChunk,
    TokenChunk,
    assistant,
)
from agentkit.testing import FakeTool, hide_behind_a_shield

CALL = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>'


async def test_tokens_pushed_between_two_generations_are_refused() -> None:
    kept, refused = SimpleNamespace(), []

    class Leaky(ScriptedModel):
        async def sample_tokens(self, request, emit):
            kept.emit = emit
            return await super().sample_tokens(request, emit)

    async def push(_: object) -> str:
        try:
            kept.emit(TokenChunk([65], [-0.1]))
        except RolloutEnded:
            refused.append("refused")
        return "ok"

    trajectory = await Agent(Leaky([CALL, "done"]), tools=[FakeTool("work", push)]).run("Go.")
    assert refused == ["refused"]
    assert trajectory.exit_reason is ExitReason.FINISHED
    sampled = sum(turn.stop - turn.start for turn in trajectory.turns)
    assert sum(trajectory.chains[0].response_mask) == sampled


async def test_a_try_that_was_given_up_adds_nothing_to_the_next() -> None:
    """Whatever the first try left running may still push while the second one samples."""
    refused = []

    class Straggling(ScriptedModel):
        first = None

        async def sample_tokens(self, request, emit):
            if self.first is None:
                self.first = emit
                raise ModelError("lost the connection", retryable=True)
            finish = await super().sample_tokens(request, emit)
            try:
                self.first(TokenChunk([65], [-0.1]))
            except RolloutEnded as error:
                refused.append(str(error))
            return finish

    class StragglingAnswers(ScriptedMessageModel):
        first = None

        async def sample_message(self, request, emit):
            if self.first is None:
                self.first = emit
                raise ModelError("lost the connection", retryable=True)
            try:
                self.first(TextChunk("late"))
            except RolloutEnded as error:
                refused.append(str(error))
            emit(TextChunk("done"))
            return Finish()

    trajectory = await Agent(Straggling(["done"])).run("Go.")
    assert trajectory.turns[0].action.content == "done"
    answered = await Agent(StragglingAnswers(["done"])).run("Go.")
    assert answered.turns[0].action.content == "done"
    assert refused == [
        f"this try at the generation is over: its {what} not recorded" for what in ("tokens are", "text is")
    ]


async def test_text_pushed_after_the_answer_is_refused() -> None:
    kept = SimpleNamespace()

    class Leaky(ScriptedMessageModel):
        async def sample_message(self, request, emit):
            kept.emit = emit
            return await super().sample_message(request, emit)

    await Agent(Leaky(["done"])).run("Go.")
    with pytest.raises(RolloutEnded, match="text is not recorded"):
        kept.emit(TextChunk("late"))


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_model_that_nothing_can_wake_cannot_push_after_the_seal() -> None:
    import trio

    kept, refused = SimpleNamespace(), []

    class Deaf(ScriptedModel):
        async def sample_tokens(self, request, emit):
            emit(TokenChunk([65, 66], [-0.1, -0.2]))
            kept.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
            raise AssertionError("closed before it can go on")

    class Pushing(Deaf):
        async def sample_tokens(self, request, emit):
            try:
                return await super().sample_tokens(request, emit)
            finally:
                try:
                    emit(TokenChunk([67], [-0.1]))
                except RolloutEnded:
                    refused.append("refused")

    trajectory = await Agent(Pushing(["x"]), budget=Budget(generation_s=0.05, trajectory_s=0.1, grace_s=0.05)).run(
        "Go."
    )
    before = list(trajectory.chains[0].ids)
    trio.lowlevel.reschedule(kept.task)
    await anyio.sleep(0.05)
    assert refused == ["refused"]
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
    assert any("loop of" in name for name in trajectory.stuck)
    assert list(trajectory.chains[0].ids) == before
    assert [turn.stop - turn.start for turn in trajectory.turns] in ([], [2])


async def test_a_model_that_refuses_to_end_is_named() -> None:
    class Deaf(ScriptedModel):
        async def sample_tokens(self, request, emit):
            emit(TokenChunk([65, 66], [-0.1, -0.2]))
            await hide_behind_a_shield()
            return Finish()

    started = anyio.current_time()
    trajectory = await Agent(Deaf(["x"]), budget=Budget(generation_s=5, grace_s=2)).run("Go.")
    assert anyio.current_time() - started == pytest.approx(7)
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    assert trajectory.stuck == ("Deaf.sample_tokens",)
    assert trajectory.turns[0].stop - trajectory.turns[0].start == 2


async def test_retries_of_a_model_run_out() -> None:
    class Busy(ScriptedModel):
        asked = 0

        async def sample_tokens(self, request, emit):
            self.asked += 1
            if self.asked <= 10:
                raise ModelError("busy", retryable=True)
            return await super().sample_tokens(request, emit)

    model = Busy(["Hello."])
    trajectory = await Agent(model, outcomes=OutcomePolicy(retries=0), model_retries=2).run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert model.asked == 3


async def test_a_fault_that_trying_again_does_not_help_is_met_once() -> None:
    class Refusing(ScriptedModel):
        asked = 0

        async def sample_tokens(self, request, emit):
            self.asked += 1
            raise ModelError("no such model")

    model = Refusing(["Hello."])
    trajectory = await Agent(model, outcomes=OutcomePolicy(retries=0)).run("Go.")
    assert (trajectory.exit_reason, model.asked) == (ExitReason.MODEL_ERROR, 1)


async def test_a_generation_permit_comes_back_after_a_fault_and_a_cancel() -> None:
    class Odd(ScriptedModel):
        async def sample_tokens(self, request, emit):
            if request.request_id.startswith("fails"):
                raise ZeroDivisionError
            if request.request_id.startswith("waits"):
                await anyio.sleep(1000)
            return await super().sample_tokens(request, emit)

    async with Pool(Agent(Odd(["Hi."]), outcomes=OutcomePolicy(retries=0)), max_generations=1) as pool:
        for name in ("fails", "waits"):
            actor = pool.start(Task(name, "Go."))
            await anyio.sleep(1)
            actor.cancel()
            await actor.settled()
            with anyio.fail_after(10):
                assert (await pool.start(Task(f"after {name}", "Go.")).result()).exit_reason is ExitReason.FINISHED


async def test_a_request_says_how_much_of_its_prompt_is_new() -> None:
    seen = []

    class Noting(ScriptedModel):
        async def sample_tokens(self, request, emit):
            seen.append((request.new_ids, len(request.prompt_ids)))
            return await super().sample_tokens(request, emit)

    async def ok(_: object) -> str:
        return "ok"

    trajectory = await Agent(Noting([CALL, CALL, "done"]), tools=[FakeTool("work", ok)]).run("Go.")
    starts = [turn.start for turn in trajectory.turns]
    stops = [0, *(turn.stop for turn in trajectory.turns)]
    assert seen == [(start - stop, start) for start, stop in zip(starts, stops, strict=False)]


class Answers:
    """A message-level model that gives its finishes one after another, and keeps each history it was shown."""

    def __init__(self, *finishes: Finish) -> None:
        self.finishes = list(finishes)
        self.seen: list[list[Message]] = []

    async def sample_message(self, request, emit):
        self.seen.append(list(request.messages))
        return self.finishes[len(self.seen) - 1]


def work(done: list[object]) -> FakeTool:
    async def body(arguments: object) -> str:
        done.append(arguments)
        return "worked"

    return FakeTool("work", body)


async def test_a_malformed_call_of_an_api_answer_is_a_format_error_with_a_partner_in_the_history() -> None:
    done: list[object] = []
    fault = CallFault(FaultStatus.INVALID_JSON, "Infinity is no JSON value", "Infinity", "work", "b")
    nameless = CallFault(FaultStatus.MISSING_NAME, "missing name", "{}", None, "c")
    attempts = (ToolCall("a", "work", {}), fault, nameless)
    model = Answers(Finish(message=assistant("Both."), attempts=attempts), Finish(message=assistant("done")))
    trajectory = await Agent(model, tools=[work(done)]).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.turns[0].action.attempts == attempts
    observed = [(each.call_id, each.status, each.content) for each in trajectory.turns[0].observations]
    assert observed == [
        ("a", ObservationStatus.OK, "worked"),
        ("b", ObservationStatus.FORMAT_ERROR, "Tool call failed: Infinity is no JSON value"),
        ("c", ObservationStatus.FORMAT_ERROR, "Tool call failed: missing name"),
    ]
    assert done == [{}]
    said, *answers = model.seen[1][1:]
    assert said == assistant(
        "Both.", ToolCall("a", "work", {}), ToolCall("b", "work", {}), ToolCall("c", "nameless", {})
    )
    assert [answer.tool_call_id for answer in answers] == ["a", "b", "c"]


async def test_answers_of_nothing_but_malformed_calls_reach_the_limit_of_format_errors() -> None:
    fault = CallFault(FaultStatus.BAD_ARGUMENTS, "arguments must be an object", "[]", "work", "a")
    model = Answers(*[Finish(message=assistant(""), attempts=(fault,))] * 9)
    trajectory = await Agent(model, budget=Budget(max_format_errors=3)).run("Go.")
    assert trajectory.exit_reason is ExitReason.FORMAT_ERRORS
    assert len(trajectory.turns) == 3


async def test_the_last_call_of_an_api_answer_that_was_cut_does_not_run() -> None:
    done: list[object] = []
    said = assistant("", ToolCall("a", "work"), ToolCall("b", "work"))
    model = Answers(Finish(FinishReason.LENGTH, said), Finish(FinishReason.STOP, said), Finish(message=assistant("x")))
    trajectory = await Agent(model, tools=[work(done)]).run("Go.")
    statuses = [[each.status for each in turn.observations] for turn in trajectory.turns]
    assert statuses == [[ObservationStatus.OK, ObservationStatus.FORMAT_ERROR], [ObservationStatus.OK] * 2, []]
    cut = trajectory.turns[0].action.faults[0]
    assert (cut.status, cut.name, cut.id) == (FaultStatus.TRUNCATED, "work", "b")
    assert len(done) == 3


async def test_calls_of_an_api_answer_have_ids_of_their_own() -> None:
    calls = (ToolCall("", "work"), ToolCall("x", "work"), ToolCall("x", "work"), ToolCall("call00000", "work"))
    model = Answers(Finish(message=assistant("", *calls)), Finish(message=assistant("done")))
    trajectory = await Agent(model, tools=[work([])]).run("Go.")
    ids = [attempt.id for attempt in trajectory.turns[0].action.attempts]
    assert ids == ["call00001", "x", "call00002", "call00000"]
    assert [each.call_id for each in trajectory.turns[0].observations] == ids
    said, *answers = model.seen[1][1:]
    assert [each.id for each in said.tool_calls] == ids == [answer.tool_call_id for answer in answers]
