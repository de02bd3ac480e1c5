"""A generation may be cut anywhere, empty, of control tokens alone, or spelt in odd ids: the chain holds it as is."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from attrs import define, field
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit import Agent, Budget, ExitReason, Observation, OutcomePolicy, Trajectory, user
from agentkit.actors._generation import TokenGeneration
from agentkit.errors import ModelError, RolloutEnded
from agentkit.models.sampling import sampled_ids
from agentkit.parsing import HermesParser
from agentkit.protocols import Finish, FinishReason, TokenChunk
from agentkit.testing import FakeTool, virtual_asyncio
from agentkit.tokens import Ledger, byte_chatml

RENDERER = byte_chatml()
TOKENIZER = RENDERER.tokenizer
CONTROL = TOKENIZER.control
END = CONTROL["<|im_end|>"]
STOP, LENGTH, ABORTED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORTED
PROMPT = "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "\n<|im_start|>user\nok é<|im_end|>\n<|im_start|>assistant\n"
"""What the template writes between two turns of the policy, the first of them closed."""


@define
class Sampled:
    """A token-level policy that says what it was told to, in chunks, turn by turn."""

    turns: Sequence[tuple[Sequence[Sequence[int]], Finish]]
    renderer: Any = RENDERER
    parser: Any = field(factory=HermesParser)
    asked: list[list[int]] = field(factory=list)

    async def sample_tokens(self, request: Any, emit: Any) -> Finish:
        chunks, finish = self.turns[len(self.asked)]
        self.asked.append(list(request.prompt_ids))
        start = 0
        for chunk in chunks:
            await anyio.lowlevel.checkpoint()
            emit(TokenChunk(list(chunk), [-(start + place + 1) / 8 for place in range(len(chunk))]))
            start += len(chunk)
        return finish


class Answers:
    """An env that answers everything, to the end of the budget."""

    async def start(self, task: Any) -> None: ...

    async def step(self, action: Any) -> Observation:
        return Observation("ok é")

    async def close(self) -> None: ...


async def played(*turns: tuple[Sequence[Sequence[int]], Finish]) -> tuple[Trajectory, Sampled]:
    model = Sampled(turns)
    agent = Agent(model, env=Answers, budget=Budget(max_turns=len(turns), max_format_errors=99))
    return await agent.run("Go."), model


def run(*turns: tuple[Sequence[Sequence[int]], Finish]) -> tuple[Trajectory, Sampled]:
    backend, options = virtual_asyncio()
    return anyio.run(played, *turns, backend=backend, backend_options=options)


def text_of(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids))


def facts_of(trajectory: Trajectory) -> object:
    """All of a trajectory that a split of the stream could change."""
    (chain,) = trajectory.chains
    turns = [(turn.action, turn.start, turn.stop, turn.observations) for turn in trajectory.turns]
    return chain, turns, trajectory.exit_reason


IDS = st.lists(
    st.sampled_from(TOKENIZER.encode("Hi é 😀 你好\n\n<tool_call>"))
    | st.integers(0, 255)  # bytes, halves of characters among them
    | st.integers(0, len(TOKENIZER) - 1).filter(lambda each: each not in RENDERER.stop_ids),
    max_size=20,
)


@given(IDS, st.sampled_from([STOP, LENGTH]), st.booleans(), st.data())
@example(list("😀".encode()), STOP, False, None)
@example(list("a😀".encode())[:-1], LENGTH, False, None)
def test_however_the_stream_is_split_the_trajectory_is_the_same(
    ids: list[int], reason: FinishReason, is_closed: bool, data: Any
) -> None:
    ids = [*ids, END] if is_closed else ids
    cuts = range(len(ids) + 1) if data is None else sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=9)))
    chunks = [ids[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    last = ([[65, END]], Finish())
    whole, whole_model = run(([ids], Finish(reason)), last)
    split, split_model = run((chunks, Finish(reason)), last)
    assert facts_of(split) == facts_of(whole)
    assert split_model.asked == whole_model.asked
    (chain,) = whole.chains
    turn = whole.turns[0]
    assert list(chain.ids[turn.start : turn.stop]) == ids
    assert list(chain.logprobs[turn.start : turn.stop]) == [-(place + 1) / 8 for place in range(len(ids))]
    assert turn.action.text == TOKENIZER.decode(ids[:-1] if is_closed else ids)


@pytest.mark.parametrize("reason", [STOP, LENGTH])
@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([], ""),
        ([[]], ""),
        ([[], [], []], ""),
        ([[END]], ""),
        ([[CONTROL["<think>"]], [END]], "<think>"),
        ([[CONTROL["<think>"], CONTROL["</think>"]]], "<think></think>"),
        ([[CONTROL["<|im_start|>"], CONTROL["<|im_start|>"], END]], "<|im_start|><|im_start|>"),
        ([[CONTROL["<tool_call>"], CONTROL["</tool_call>"], END]], "<tool_call></tool_call>"),
        ([[0xF0, 0x9F]], "\ufffd"),
        ([[0xF0, 0x9F], [END]], "\ufffd"),
    ],
    ids=[
        "none", "an empty chunk", "empty chunks", "a stop", "control", "control, cut", "headers", "a call", "half",
        "half, closed",
    ],
)  # fmt: skip
async def test_a_generation_of_next_to_nothing_is_answered_like_any_other(
    chunks: list[list[int]], said: str, reason: FinishReason
) -> None:
    trajectory, model = await played((chunks, Finish(reason)), ([[65, END]], Finish()))
    ids = [each for chunk in chunks for each in chunk]
    (chain,) = trajectory.chains
    turn = trajectory.turns[0]
    assert trajectory.exit_reason is ExitReason.TURN_LIMIT
    assert turn.action.text == said
    is_closed = ids[-1:] == [END]
    assert list(chain.ids[turn.start : turn.stop]) == ids
    assert model.asked[1] == list(chain.ids[: trajectory.turns[1].start])
    assert text_of(model.asked[0]) == PROMPT
    after = ANSWER if turn.observations[0].status == "ok" else None
    bridge = text_of(model.asked[1][turn.stop :])
    if after is not None:
        assert bridge == ("" if is_closed else "<|im_end|>") + after
    else:  # told what is wrong with its call
        assert bridge.count("<|im_end|>") == 1 + (not is_closed)
    assert list(chain.response_mask) == [
        int(turn.start <= at < turn.stop or at >= trajectory.turns[1].start) for at in range(len(chain))
    ]


@pytest.mark.parametrize("chunks", [[], [[END]], [[0xF0, 0x9F]], [[65], [66, END]]])
async def test_a_generation_that_the_server_aborted_is_kept_and_not_gone_on_from(chunks: list[list[int]]) -> None:
    model = Sampled([(chunks, Finish(ABORTED))])
    trajectory = await Agent(model, env=Answers, outcomes=OutcomePolicy(retries=0)).run("Go.")
    (chain,) = trajectory.chains
    ids = [each for chunk in chunks for each in chunk]
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert list(chain.ids)[len(model.asked[0]) :] == ids
    assert sum(chain.response_mask) == len(ids)
    assert len(model.asked) == 1


def test_ids_that_no_tokenizer_would_choose_change_no_other_token() -> None:
    canonical = list(TOKENIZER.encode("the answer is 42\n\n"))
    spelt = list(b"the answer is 42\n\n")  # a byte each
    assert canonical != spelt
    one, _ = run(([[*canonical, END]], Finish()), ([[65, END]], Finish()))
    other, _ = run(([[*spelt, END]], Finish()), ([[65, END]], Finish()))
    (a,), (b,) = one.chains, other.chains
    first, second = one.turns[0], other.turns[0]
    assert list(a.ids[: first.start]) == list(b.ids[: second.start])
    assert list(b.ids[second.start : second.stop]) == [*spelt, END]
    assert list(a.ids[first.stop :]) == list(b.ids[second.stop :])
    assert first.action == second.action


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5])
def test_a_length_stop_inside_a_character_keeps_the_half_that_was_sampled(room: int) -> None:
    ids = list("a😀".encode())
    prompt = len(RENDERER.prompt([user("Go.")], ()))
    model = Sampled([([ids[:2], ids[2:]], Finish())])
    agent = Agent(model, env=Answers, budget=Budget(max_tokens=prompt + room))
    backend, options = virtual_asyncio()
    trajectory = anyio.run(agent.run, "Go.", backend=backend, backend_options=options)
    (chain,) = trajectory.chains
    assert list(chain.ids[prompt:]) == ids[:room]
    assert list(chain.logprobs[prompt:]) == [-(place + 1) / 8 for place in range(room)][: len(ids)]
    assert trajectory.turns[0].action.text == bytes(ids[:room]).decode("utf-8", "replace")
    assert trajectory.exit_reason is ExitReason.TOKEN_LIMIT


# The text of a generation, and the part of it that is an action


def generated(*chunks: Sequence[int]) -> TokenGeneration:
    ledger = Ledger()
    record: Any = SimpleNamespace(ledger=ledger, closed=False)
    generation = TokenGeneration(record, chain=ledger.open([1, 2, 3]), turn=0, room=10_000)
    emit = generation.begin_try()
    for chunk in chunks:
        emit(TokenChunk(chunk, [-0.5] * len(chunk)))
    return generation


ENDS_INSIDE = [*TOKENIZER.encode("<answer>4</answer"), *TOKENIZER.encode(">\n")]


def test_an_action_ends_with_its_stop_string_where_that_ends_inside_a_token() -> None:
    assert len(TOKENIZER.encode(">\n")) == 1
    generation = generated(ENDS_INSIDE)
    text, action = generation.read_text(RENDERER, Finish(stop_string="</answer>"))
    assert text == "<answer>4</answer>\n"
    assert action == "<answer>4</answer>"
    ledger = generation._record.ledger
    assert list(ledger.view(0).since(3)) == ENDS_INSIDE
    assert ledger.sampled_count(0) == len(ENDS_INSIDE)


@given(st.lists(st.integers(0, len(ENDS_INSIDE)), max_size=5), st.booleans())
def test_the_part_that_is_an_action_does_not_depend_on_the_split(cuts: list[int], is_named: bool) -> None:
    cuts = sorted(cuts)
    chunks = [ENDS_INSIDE[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(ENDS_INSIDE)], strict=True)]
    finish = Finish(stop_string="</answer>" if is_named else None)
    text = "<answer>4</answer>\n"
    assert generated(*chunks).read_text(RENDERER, finish) == (text, text[:-1] if is_named else text)


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    ids = [*b"a\nb\n"]
    for held, expected in ((0, "a\n"), (1, "a\n"), (2, "a\nb\n"), (3, "a\nb\n")):
        found = generated(ids).read_text(RENDERER, Finish(stop_string="\n", min_tokens=held))
        assert found == ("a\nb\n", expected)


def test_half_a_character_before_min_tokens_may_count_once_it_is_whole() -> None:
    ids = [*"aéb".encode()]
    assert generated(ids).read_text(RENDERER, Finish(stop_string="é", min_tokens=2)) == ("aéb", "aé")
    assert generated(ids).read_text(RENDERER, Finish(stop_string="é", min_tokens=3)) == ("aéb", "aéb")


def test_without_an_end_of_its_own_all_of_it_is_the_text() -> None:
    generation = generated(ENDS_INSIDE)
    for finish in (None, Finish(), Finish(LENGTH), Finish(stop_string=""), Finish(stop_string="no such thing")):
        assert generation.read_text(RENDERER, finish) == ("<answer>4</answer>\n",) * 2


@pytest.mark.parametrize(
    "wrong", [{"stop_string": b"x"}, {"stop_string": ["x"]}, {"min_tokens": "3"}, {"min_tokens": None}]
)
def test_an_end_of_another_shape_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="stop_string of a Finish"):
        Finish(**wrong)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_counts_that_disagree_add_nothing_and_say_what_to_set(count: int) -> None:
    generation = generated([65])
    with pytest.raises(ModelError, match=r"2 token ids with \d logprobs.*vllm"):
        generation.begin_try()(TokenChunk([65, 66], [-0.5] * count))
    assert generation.stop - generation.start == 1


def test_what_does_not_fit_is_left_out_with_its_logprobs() -> None:
    ledger = Ledger()
    record: Any = SimpleNamespace(ledger=ledger, closed=False)
    generation = TokenGeneration(record, chain=ledger.open([1]), turn=0, room=2)
    with pytest.raises(RolloutEnded):
        generation.begin_try()(TokenChunk([65, 66, 67], [-0.5, -0.25, -0.125]))
    assert ledger.freeze()[0].logprobs.tolist() == [0.0, -0.5, -0.25]
    assert generation.full


async def test_an_env_hears_an_action_that_ends_with_its_stop_string() -> None:
    """The whole way: ids and text are what was sampled, content ends with the string, and the turn is closed."""
    model = Sampled([([ENDS_INSIDE], Finish(stop_string="</answer>")), ([[65, END]], Finish())])
    trajectory = await Agent(model, env=Answers, budget=Budget(max_turns=2)).run("Go.")
    (chain,) = trajectory.chains
    turn = trajectory.turns[0]
    assert list(chain.ids[turn.start : turn.stop]) == ENDS_INSIDE
    assert turn.action.text == "<answer>4</answer>\n"
    assert turn.action.content == "<answer>4</answer>"
    assert text_of(model.asked[1][turn.stop :]) == "<|im_end|>" + ANSWER
    assert list(chain.response_mask[turn.start : turn.stop]) == [1] * len(ENDS_INSIDE)


async def test_a_call_behind_a_stop_string_does_not_run() -> None:
    call = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>'
    ids = [*TOKENIZER.encode("done.\n\n"), *sampled_ids(TOKENIZER, call)]
    ran: list[object] = []

    async def work(arguments: object) -> str:
        ran.append(arguments)
        return "ok"

    for stop, count in ((None, 1), ("done.\n", 0)):
        ran.clear()
        model = Sampled([([ids], Finish(stop_string=stop)), ([[65, END]], Finish())])
        trajectory = await Agent(model, tools=[FakeTool("work", work)], budget=Budget(max_turns=2)).run("Go.")
        assert len(ran) == count
        assert trajectory.turns[0].action.text == f"done.\n\n{call}"
