"""Going back, branching and compacting: what the policy sees, and what stays in the record."""

import io
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit import (
    Agent,
    Budget,
    ConfigError,
    ExitReason,
    Message,
    Observation,
    OutcomePolicy,
    Pool,
    RolloutEnded,
    Task,
    Trajectory,
    assistant,
    system,
    user,
)
from agentkit.errors import ModelError, NotAppendable
from agentkit.journal import Journal
from agentkit.journal.export import conversation
from agentkit.logs import configure
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.protocols import Action, EmitTokens, Finish, SpanKind, TokenChunk, TokenRequest
from agentkit.testing import FakeTool, MemorySink, virtual_asyncio, virtual_trio
from agentkit.tokens import TemplateRenderer, byte_chatml, join, templates

Loop = Callable[[Any], Awaitable[None]]


class Serial:
    """A policy that says "(1)", "(2)", ..., one id a byte, and numbers every token that it samples in its logprob."""

    def __init__(self, renderer: TemplateRenderer | None = None) -> None:
        self.renderer = renderer or byte_chatml()
        self.parser = HermesParser()
        self.sampled = 0
        self.said = 0
        self.prompts: list[str] = []
        self.stop_after: int | None = None

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        self.prompts.append(self.renderer.tokenizer.decode(request.prompt_ids))
        self.said += 1
        ids = [*f"({self.said})".encode(), self.renderer.tokenizer.control["<|im_end|>"]]
        for token_id in ids[: self.stop_after]:
            emit(TokenChunk([token_id], [-float(self.sampled)]))
            self.sampled += 1
        if self.stop_after is not None:
            raise ModelError("gone")
        await anyio.lowlevel.checkpoint()
        return Finish()


def trained(trajectory: Trajectory) -> list[int]:
    """The numbers of the tokens with mask 1, over the whole tree of chains and sub-agents."""
    return sorted(
        -int(logprob)
        for each in trajectory.walk()
        for chain in each.chains
        for logprob, mask in zip(chain.logprobs, chain.response_mask, strict=True)
        if mask
    )


def seen(messages: Sequence[Message]) -> str:
    """What the policy must see: the template's own rendering."""
    return templates.chatml(messages, (), generation_prompt=True)


async def test_a_turn_that_is_rolled_back_is_sampled_again_from_the_same_prompt() -> None:
    async def loop(rollout: Any) -> None:
        await rollout.sample()
        rollout.observe("Go on.")
        await rollout.sample()
        rollout.rollback()
        await rollout.sample()

    model = Serial()
    trajectory = await Agent(model, loop=loop).run("Go.")
    once = [user("Go."), assistant("(1)"), user("Go on.")]
    assert model.prompts == [seen([user("Go.")]), seen(once), seen(once)]
    assert [(t.chain, t.follows) for t in trajectory.turns] == [(0, None), (0, None), (1, 0)]
    assert [turn.index for turn in trajectory.path()] == [0, 2]
    first, second = trajectory.chains
    assert second.parent == (0, trajectory.turns[1].start)
    assert [span.kind for span in second.spans] == [SpanKind.INHERITED, SpanKind.SAMPLED]
    assert list(second.ids[: second.parent[1]]) == list(first.ids[: second.parent[1]])
    assert trained(trajectory) == list(range(model.sampled))
    said = [(m["role"], m["content"]) for m in conversation(trajectory).messages]
    assert said == [("user", "Go."), ("assistant", "(1)"), ("user", "Go on."), ("assistant", "(3)")]


async def test_rolling_back_over_a_tool_call_drops_its_result_and_what_was_said_since() -> None:
    calls = ['<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>', "a", "b", "c", "d"]
    prompts: list[str] = []

    def say(prompt: str) -> str:
        prompts.append(prompt)
        return calls[len(prompts) - 1]

    async def loop(rollout: Any) -> None:
        await rollout.act(await rollout.sample())
        rollout.observe("More.")
        await rollout.sample()
        rollout.rollback(2)
        rollout.observe("Without tools, please.")
        action = await rollout.sample()
        assert action.content == "b"
        assert rollout.messages[-1] == action.message()

    async def ok(_: object) -> str:
        return "ok"

    agent = Agent(ScriptedModel(say), tools=[FakeTool("work", ok)], loop=loop)
    trajectory = await agent.run("Go.")
    assert "More." in prompts[1]
    assert prompts[2] == prompts[0].replace("Go.", "Go.<|im_end|>\n<|im_start|>user\nWithout tools, please.")
    assert [t.follows for t in trajectory.turns] == [None, None, -1]
    assert [turn.action.content for turn in trajectory.path()] == ["b"]


async def test_a_bookmark_leads_back_any_number_of_times_and_to_either_branch() -> None:
    views: list[list[Message]] = []

    async def loop(rollout: Any) -> None:
        start = rollout.bookmark()
        await rollout.sample()
        left, view = rollout.bookmark(), rollout.messages
        for _ in range(2):
            rollout.back_to(start)
            rollout.observe("Otherwise.")
            await rollout.sample()
        rollout.back_to(left)
        rollout.observe("And?")
        await rollout.sample()
        views.append(list(view))

    model = Serial()
    trajectory = await Agent(model, loop=loop).run("Go.")
    other = seen([user("Go."), user("Otherwise.")])
    assert model.prompts == [
        seen([user("Go.")]),
        other,
        other,
        seen([user("Go."), assistant("(1)"), user("And?")]),
    ]
    assert [turn.chain for turn in trajectory.turns] == [0, 1, 2, 0]  # nothing came after the first: it goes on
    assert [turn.index for turn in trajectory.path()] == [0, 3]
    assert views == [[user("Go."), assistant("(1)")]]
    assert trained(trajectory) == list(range(model.sampled))


async def test_any_of_several_candidates_is_taken() -> None:
    async def ok(_: object) -> str:
        return "ok"

    call = '<tool_call>\n{"name": "work", "arguments": {"n": %d}}\n</tool_call>'
    prompts: list[str] = []

    def say(prompt: str) -> str:
        prompts.append(prompt)
        return call % len(prompts) if len(prompts) <= 3 else "done"

    async def loop(rollout: Any) -> None:
        actions = await rollout.candidates(3)
        assert [action.calls[0].arguments["n"] for action in actions] == [1, 2, 3]
        assert rollout.turns == 3
        await rollout.act(actions[1])
        with pytest.raises(ConfigError, match="sampled last"):
            await rollout.act(actions[0])
        await rollout.act(await rollout.sample())

    sink = MemorySink()
    async with Pool(Agent(ScriptedModel(say), tools=[FakeTool("work", ok)], loop=loop), sink=sink) as pool:
        (trajectory,) = await pool.run([Task("t", "Go.")])
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert prompts[0] == prompts[1] == prompts[2]
    assert '"n": 2' in prompts[3]
    assert '"n": 1' not in prompts[3]
    assert [len(turn.observations) for turn in trajectory.turns] == [0, 1, 0, 0]
    assert [turn.index for turn in trajectory.path()] == [1, 3]
    assert [turn.chain for turn in trajectory.turns] == [0, 1, 2, 1]
    assert join(sink.deltas[trajectory.key]) == trajectory.chains
    assert tuple(sink.turns[trajectory.key]) == trajectory.turns


async def test_a_candidate_that_ends_the_rollout_is_its_last_word() -> None:
    async def loop(rollout: Any) -> None:
        await rollout.act((await rollout.candidates(3))[0])

    async with Pool(Agent(Serial(), loop=loop)) as pool:
        actor = pool.start("Go.")
        trajectory = await actor.result()
    assert trajectory.tip == 0
    assert [turn.action.content for turn in trajectory.path()] == ["(1)"]
    assert [m["content"] for m in conversation(trajectory).messages] == ["Go.", "(1)"]


async def test_candidates_stop_at_the_turn_limit_and_can_still_be_taken() -> None:
    async def loop(rollout: Any) -> None:
        actions = await rollout.candidates(5)
        assert len(actions) == 2
        await rollout.act(actions[0])

    trajectory = await Agent(Serial(), loop=loop, budget=Budget(max_turns=2)).run("Go.")
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.FINISHED, 2)


async def test_a_chat_answers_with_the_candidate_it_takes() -> None:
    async def best(rollout: Any) -> None:
        while await rollout.answer((await rollout.candidates(2))[0]):
            pass

    model = Serial()
    async with Pool(Agent(model, loop=best)) as pool:
        actor = pool.start("Hello.")
        answer = await actor.ask("And?")
        assert answer.content in ("(1)", "(3)")
        actor.hang_up()
        await actor.result()
    assert all("(2)" not in prompt for prompt in model.prompts)


async def test_what_was_rolled_back_counts_towards_the_turn_limit() -> None:
    async def stubborn(rollout: Any) -> None:
        while True:
            await rollout.sample()
            rollout.rollback()

    model = Serial()
    trajectory = await Agent(model, loop=stubborn, budget=Budget(max_turns=4)).run("Go.")
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.TURN_LIMIT, 4)
    assert trajectory.path() == ()
    assert trained(trajectory) == list(range(model.sampled))


async def test_a_compaction_that_keeps_a_beginning_forks_there() -> None:
    async def loop(rollout: Any) -> None:
        for text in ("one", "two", "three"):
            await rollout.sample()
            rollout.observe(text)
        kept = rollout.messages[:4]  # up to the second turn, which is sampled
        rollout.rewrite([*kept, user("In short: two."), "Go on."])
        await rollout.sample()
        rollout.rewrite([user("In short.")])
        await rollout.sample()

    model = Serial()
    trajectory = await Agent(model, loop=loop).run("Go.")
    assert model.prompts[3:] == [
        seen([user("Go."), assistant("(1)"), user("one"), assistant("(2)"), user("In short: two."), user("Go on.")]),
        seen([user("In short.")]),
    ]
    assert [chain.parent for chain in trajectory.chains] == [None, (0, trajectory.turns[1].stop), None]
    assert trained(trajectory) == list(range(model.sampled))
    assert [m["content"] for m in conversation(trajectory).messages] == ["In short.", "(5)"]


@pytest.mark.parametrize(
    "rewritten",
    [
        [system("Be brief."), user("Go."), assistant("(1)"), user("On.")],  # another beginning
        [user("Go."), assistant("(9)"), user("On.")],  # another turn
        [user("Go."), assistant("(1)"), user("On."), assistant("made up"), user("So?")],  # nobody sampled this
        [user("Go."), assistant("(1)")],  # nothing new
    ],
)
async def test_a_compaction_with_no_common_turn_opens_a_chain(rewritten: list[Message]) -> None:
    async def loop(rollout: Any) -> None:
        await rollout.sample()
        rollout.observe("one")
        await rollout.sample()
        rollout.rewrite(rewritten)
        await rollout.sample()

    model = Serial()
    trajectory = await Agent(model, loop=loop).run("Go.")
    assert model.prompts[2] == seen(rewritten)
    assert [chain.parent for chain in trajectory.chains] == [None, None]
    assert trained(trajectory) == list(range(model.sampled))


class Strict:
    """A renderer whose template lets nothing follow a turn."""

    def __init__(self) -> None:
        self._inner = byte_chatml()
        self.stop_ids, self.prompt, self.decode = self._inner.stop_ids, self._inner.prompt, self._inner.decode
        self.tokenizer = self._inner.tokenizer

    def bridge(self, *_: object, **__: object) -> Any:
        raise NotAppendable("it rewrites")


async def test_where_the_template_lets_nothing_follow_a_compaction_opens_a_chain_again_and_again() -> None:
    async def loop(rollout: Any) -> None:
        action = await rollout.sample()
        rollout.rewrite([user("Go."), action.message(), user("On.")])
        here = rollout.bookmark()
        await rollout.sample()
        rollout.back_to(here)
        rollout.observe("Now.")
        await rollout.sample()

    model = Serial()
    trajectory = await Agent(model, renderer=Strict(), loop=loop, on_rewrite="error").run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert model.prompts[1:] == [
        seen([user("Go."), assistant("(1)"), user("On.")]),
        seen([user("Go."), assistant("(1)"), user("On."), user("Now.")]),
    ]
    assert trained(trajectory) == list(range(model.sampled))


async def test_a_bookmark_from_before_a_turn_was_acted_on_drops_what_it_caused() -> None:
    async def ok(_: object) -> str:
        return "ok"

    call = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>'

    async def loop(rollout: Any) -> None:
        action = await rollout.sample()
        before = rollout.bookmark()
        await rollout.act(action)
        rollout.back_to(before)
        rollout.observe("Never mind.")
        await rollout.sample()

    trajectory = await Agent(ScriptedModel([call, "fine"]), tools=[FakeTool("work", ok)], loop=loop).run("Go.")
    said = [(m["role"], m["content"]) for m in conversation(trajectory).messages]
    assert said == [("user", "Go."), ("assistant", ""), ("user", "Never mind."), ("assistant", "fine")]


async def test_message_models_go_back_and_branch_as_well() -> None:
    asked: list[list[str]] = []

    def say(messages: Sequence[Message]) -> str:
        asked.append([message.content for message in messages])
        return f"({len(asked)})"

    async def loop(rollout: Any) -> None:
        await rollout.candidates(2)
        rollout.observe("On.")
        await rollout.sample()
        rollout.rollback(2)
        await rollout.sample()
        rollout.rewrite([user("In short.")])
        await rollout.sample()

    trajectory = await Agent(ScriptedMessageModel(say), loop=loop).run("Go.")
    assert asked == [["Go."], ["Go."], ["Go.", "(2)", "On."], ["Go."], ["In short."]]
    assert [turn.previous for turn in trajectory.turns] == [-1, -1, 1, -1, 3]


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (lambda rollout, _: rollout.rollback(3), r"rollback\(3\)"),
        (lambda rollout, _: rollout.rollback(0), r"rollback\(0\)"),
        (lambda rollout, _: rollout.rewrite([user("a"), 3]), "a Message or a string"),
        (lambda rollout, other: rollout.back_to(other), "same attempt"),
        (lambda rollout, _: rollout.take(Action("(1)", "(1)")), "one of the candidates"),
    ],
)
async def test_misuse_is_one_clear_error_and_changes_nothing(misuse: Any, says: str) -> None:
    found: list[Any] = []

    async def lend(rollout: Any) -> None:
        found.append(rollout.bookmark())

    async def loop(rollout: Any) -> None:
        await rollout.sample()
        rollout.observe("On.")
        await rollout.sample()
        before = list(rollout.messages)
        with pytest.raises(ConfigError, match=says):
            misuse(rollout, found[0])
        assert list(rollout.messages) == before
        rollout.observe("On.")
        await rollout.sample()

    await Agent(Serial(), loop=lend).run("Go.")
    trajectory = await Agent(Serial(), loop=loop).run("Go.")
    assert (trajectory.exit_reason, len(trajectory.path())) == (ExitReason.FINISHED, 3)
    assert len(trajectory.chains) == 1


async def test_a_tool_cannot_turn_the_conversation_around_under_its_own_call() -> None:
    class Rewind:
        spec = FakeTool("rewind", lambda _: anyio.sleep(0)).spec

        async def call(self, arguments: object, context: object, /) -> Observation:
            return Observation("")

        async def call_within(self, arguments: object, rollout: Any, /) -> Observation:
            for what in (rollout.rollback, rollout.bookmark, lambda: rollout.rewrite(["x"])):
                with pytest.raises(ConfigError, match="while act is under way"):
                    what()
            return Observation("no")

    call = '<tool_call>\n{"name": "rewind", "arguments": {}}\n</tool_call>'
    trajectory = await Agent(ScriptedModel([call, "done"]), tools=[Rewind()]).run("Go.")
    assert trajectory.turns[0].observations[0].content == "no"


async def test_nothing_goes_back_after_the_end() -> None:
    refused: list[str] = []

    async def loop(rollout: Any) -> None:
        here = rollout.bookmark()
        await rollout.act(await rollout.sample())
        for what in (rollout.rollback, rollout.bookmark, lambda: rollout.back_to(here), lambda: rollout.rewrite(["x"])):
            with pytest.raises(RolloutEnded):
                what()
            refused.append("ended")

    trajectory = await Agent(Serial(), loop=loop).run("Go.")
    assert len(refused) == 4
    assert [turn.index for turn in trajectory.path()] == [0]


@pytest.mark.parametrize("emitted", [0, 2])
async def test_a_turn_that_failed_leaves_exactly_what_was_emitted(emitted: int) -> None:
    """Property 20, and B2: on the fork of a rolled-back turn as on any chain."""
    model = Serial()

    async def loop(rollout: Any) -> None:
        await rollout.sample()
        rollout.rollback()
        model.stop_after = emitted
        await rollout.sample()

    trajectory = await Agent(model, loop=loop, outcomes=OutcomePolicy(retries=0)).run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert [sum(chain.response_mask) for chain in trajectory.chains] == [4, emitted]
    assert len(trajectory.chains[1]) == trajectory.turns[0].start + emitted
    assert trained(trajectory) == list(range(4 + emitted))
    assert len(trajectory.turns) == 1 + (emitted > 0)


async def test_cancelled_between_candidates_keeps_them_all(tmp_path: Path) -> None:
    model = Serial()

    async def loop(rollout: Any) -> None:
        await rollout.candidates(2)
        await anyio.sleep(1000)

    async with Journal.open(tmp_path / "journal.sqlite", writer="inline") as journal:
        agent = Agent(model, loop=loop, budget=Budget(trajectory_s=5))
        async with Pool(agent, sink=journal) as pool:
            (trajectory,) = await pool.run([Task("t", "Go.")])
        assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
        assert [turn.action.content for turn in trajectory.turns] == ["(1)", "(2)"]
        assert trained(trajectory) == list(range(model.sampled))
        assert journal.reader.trajectory("t", 0) == trajectory


async def test_the_log_of_a_rollout_says_where_it_went_back(tmp_path: Path) -> None:
    async def loop(rollout: Any) -> None:
        first, _ = await rollout.candidates(2)
        rollout.take(first)
        rollout.observe("On.")
        await rollout.sample()
        rollout.rewrite(["In short."])
        await rollout.sample()

    with configure(to=io.StringIO(), per_rollout=tmp_path):
        await Agent(Serial(), loop=loop).run(Task("t", "Go."))
    (file,) = tmp_path.iterdir()
    assert [line.partition(" ")[2] for line in file.read_text().splitlines()][:10] == [
        "user: Go.",
        "turn 0, the policy (stop): (1)",
        "the conversation goes back to after message 1",
        "turn 1, the policy (stop): (2)",
        "the conversation goes back to after message 1",
        "assistant: (1)",
        "user: On.",
        "turn 2, the policy (stop): (3)",
        "the history was rewritten, to 2 messages",
        "user: In short.",
    ]


# every program of branching moves against a twin that keeps each place as a plain list


OPS = st.one_of(
    st.tuples(st.just("sample"), st.integers(0, 2)),
    st.tuples(st.just("candidates"), st.integers(1, 3), st.integers(0, 2)),
    st.tuples(st.just("observe"), st.sampled_from(["a", "b\n", "\n"])),
    st.tuples(st.just("rollback"), st.integers(1, 3)),
    st.tuples(st.just("mark")),
    st.tuples(st.just("return"), st.integers(0, 5)),
    st.tuples(st.just("compact"), st.integers(0, 8)),
    st.tuples(st.just("child")),
)


async def play(program: Sequence[tuple[Any, ...]]) -> None:
    model, helper = Serial(), Serial()
    helper_agent = Agent(helper, name="helper", budget=Budget(max_turns=3), loop=_twice)
    twin = [user("Go.")]
    path: list[list[Message]] = []  # the conversations before the turns of this one
    marks: list[tuple[Any, list[Message], list[list[Message]]]] = []
    expected: list[list[Message]] = []

    async def loop(rollout: Any) -> None:
        nonlocal twin, path
        said = 0
        for name, *values in program:
            if name in ("sample", "candidates"):
                if twin[-1].role != "user":
                    rollout.observe("On.")
                    twin = [*twin, user("On.")]
                before, count = twin, 1 if name == "sample" else values[0]
                actions = [await rollout.sample()] if name == "sample" else await rollout.candidates(count)
                expected.extend([before] * count)
                assert [action.content for action in actions] == [f"({said + n + 1})" for n in range(count)]
                said += count
                chosen = count - 1
                if name == "candidates" and values[1] < count:
                    chosen = values[1]
                    rollout.take(actions[chosen])
                twin, path = [*before, assistant(actions[chosen].content)], [*path, before]
            elif name == "observe":
                rollout.observe(values[0])
                twin = [*twin, user(values[0])]
            elif name == "rollback":
                if values[0] <= len(path):
                    rollout.rollback(values[0])
                    twin, path = path[-values[0]], path[: -values[0]]
            elif name == "mark":
                marks.append((rollout.bookmark(), twin, path))
            elif name == "return" and marks:
                bookmark, twin, path = marks[values[0] % len(marks)]
                rollout.back_to(bookmark)
            elif name == "compact":
                twin = [*twin[: values[0]], user("In short.")]
                rollout.rewrite(twin)
            elif name == "child":
                await rollout.child(helper_agent, "Help.")
            assert list(rollout.messages) == twin

    sink = MemorySink()
    agent = Agent(model, loop=loop, budget=Budget(max_turns=1000))
    async with Pool(agent, sink=sink) as pool:
        (trajectory,) = await pool.run([Task("t", "Go.")])
    assert trajectory.exit_reason is ExitReason.FINISHED, trajectory.error
    assert model.prompts == [seen(messages) for messages in expected]  # T4: the template's own full rendering
    assert trained(evolve(trajectory, children=())) == list(range(model.sampled))  # T6
    children = evolve(trajectory, chains=())
    numbers = [i for child in children.children for i in trained(child)]
    assert sorted(numbers) == list(range(helper.sampled))
    assert len(trained(trajectory)) == model.sampled + helper.sampled
    for turn in trajectory.turns:  # T2
        chain = trajectory.chains[turn.chain]
        assert list(chain.token_ids[turn.start : turn.stop - 1]) == list(turn.action.content.encode())
        assert set(chain.response_mask[turn.start : turn.stop]) == {1}
    for chain in trajectory.chains:
        assert len(chain.ids) == len(chain.response_mask) == len(chain.logprobs)  # T1
        if chain.parent is not None:
            number, length = chain.parent
            assert chain.id_bytes[: 4 * length] == trajectory.chains[number].id_bytes[: 4 * length]
            assert not any(chain.response_mask[:length])
    written = join(sink.deltas.get(trajectory.key, []))
    assert written == trajectory.chains[: len(written)]
    assert tuple(sink.turns.get(trajectory.key, ())) == trajectory.turns
    if trajectory.turns and twin[-1].role == "assistant":
        talk = [(m["role"], m["content"]) for m in conversation(trajectory).messages]
        assert talk == [(m.role, m.content) for m in twin]


async def _twice(rollout: Any) -> None:
    await rollout.sample()
    rollout.rollback()
    await rollout.sample()


@pytest.mark.parametrize("clock", [virtual_asyncio, virtual_trio])
def test_every_program_of_moves_is_seen_and_recorded_as_a_list_would_have_it(clock: Callable[[], Any]) -> None:
    @settings(max_examples=settings.default.max_examples if clock is virtual_asyncio else 10)
    @given(st.lists(OPS, max_size=12))
    def check(program: list[tuple[Any, ...]]) -> None:
        backend, options = clock()
        anyio.run(play, program, backend=backend, backend_options=options)

    check()
