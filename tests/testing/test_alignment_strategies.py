"""Strategies make what they say they make, and reach the odd corners."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from agentkit.protocols import ToolSpec
from agentkit.testing import Subject, TemplateOracle, strategies, subject_of
from agentkit.testing.alignment import Conversation, Sampling
from agentkit.testing.alignment.conversations import resplit
from agentkit.tokens import ByteTokenizer, byte_chatml, templates
from agentkit.tools import check_arguments

TOKENIZER = ByteTokenizer()
CONTROL = frozenset(TOKENIZER.control.values())
TOOL = ToolSpec(
    "ls",
    "",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "depth": {"type": "integer"},
            "kind": {"enum": ["file", "folder"]},
            "names": {"type": "array", "items": {"type": "string"}},
            "all": {"type": ["boolean", "null"]},
            "ratio": {"type": "number"},
            "options": {"type": "object"},
        },
        "required": ["path", "depth"],
    },
)
SUBJECT = subject_of(renderer=byte_chatml(), oracle=TemplateOracle(TOKENIZER, templates.chatml), tools=[TOOL])
QUIET: Subject = subject_of(renderer=byte_chatml(), oracle=TemplateOracle(TOKENIZER, templates.chatml), reasoning=False)
LOOKING = settings(
    max_examples=20_000,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(
    "is_odd",
    [
        lambda text: "<|im_end|>" in text,
        lambda text: text.endswith(("<|im_", "<|", "<tool_", "<th")),
        lambda text: text.startswith("\n\n"),
        lambda text: any("\ud800" <= char <= "\udfff" for char in text),
        lambda text: any("\ue000" <= char <= "\uf8ff" or char >= "\U000f0000" for char in text),
        lambda text: "\u0301" in text,
        lambda text: "\u200d" in text,
        lambda text: "\x1b" in text,
        lambda text: text[:1].isdigit(),
        lambda text: '"a"' in text,
        lambda text: not text,
    ],
    ids=[
        "control",
        "piece",
        "blank",
        "surrogate",
        "private",
        "combining",
        "joiner",
        "escape",
        "digit",
        "json",
        "empty",
    ],
)
def test_tool_outputs_are_odd_in_every_way(is_odd: Callable[[str], bool]) -> None:
    assert is_odd(find(strategies.tool_outputs(TOKENIZER), is_odd, settings=LOOKING))


@given(strategies.conversations(SUBJECT))
def test_every_call_is_answered_in_order(conversation: Conversation) -> None:
    assert conversation.exchanges
    for turn, exchange in enumerate(conversation.exchanges):
        ids = [call.id for call in exchange.said.tool_calls]
        assert ids == [f"call{turn:03}{n:02}" for n in range(len(ids))], "as a rollout numbers them"
        results = [message for message in exchange.new if message.role == "tool"]
        assert [message.tool_call_id for message in results] == ids
        assert list(exchange.new[: len(results)]) == results
        assert exchange.new
        for call in exchange.said.tool_calls:
            assert check_arguments(TOOL, call.arguments)[1] is None
    assert conversation.before(0) == list(conversation.opening)
    assert len(conversation.messages) == len(conversation.opening) + sum(1 + len(e.new) for e in conversation.exchanges)


@given(strategies.conversations(QUIET))
def test_a_policy_that_does_not_reason_never_does(conversation: Conversation) -> None:
    assert all(exchange.said.reasoning is None for exchange in conversation.exchanges)


@pytest.mark.parametrize(
    "reached",
    [
        lambda talk: any(len(each.said.tool_calls) == 2 for each in talk.exchanges),
        lambda talk: any(each.said.reasoning for each in talk.exchanges),
        lambda talk: any(each.said.content and each.said.tool_calls for each in talk.exchanges),
        lambda talk: any(len(each.new) == 3 for each in talk.exchanges),
        lambda talk: len(talk.exchanges) == 3 and talk.tools,
        lambda talk: talk.opening[0].role == "system",
    ],
)
def test_conversations_reach_what_they_are_for(reached: Callable[[Any], bool]) -> None:
    assert find(strategies.conversations(SUBJECT), reached, settings=LOOKING)


@given(strategies.sampled_ids(TOKENIZER))
def test_sampled_ids_are_of_the_vocabulary(ids: tuple[int, ...]) -> None:
    assert all(0 <= each < len(TOKENIZER) for each in ids)


def test_sampled_ids_hold_control_ids_and_ids_of_no_text() -> None:
    ids = strategies.sampled_ids(TOKENIZER)
    assert find(ids, lambda each: bool(CONTROL & set(each[:-1])), settings=LOOKING)
    assert find(ids, lambda each: "\ufffd" in TOKENIZER.decode(each), settings=LOOKING)


def test_samplings_are_of_every_kind() -> None:
    made = strategies.samplings(TOKENIZER)
    for reached in (
        lambda each: each == Sampling(),
        lambda each: bool(each.ids),
        lambda each: bool(each.cuts),
        lambda each: each.kept is not None,
    ):
        assert reached(find(made, reached, settings=LOOKING))
    whole = strategies.samplings(TOKENIZER, whole=True, canonical=False)
    with pytest.raises(NoSuchExample):
        find(whole, lambda each: each.kept is not None or each == Sampling(), settings=settings(max_examples=200))


@given(strategies.tool_outputs(TOKENIZER), st.lists(st.integers(0, 99), max_size=5))
def test_other_ids_of_a_text_are_of_the_same_text(text: str, cuts: list[int]) -> None:
    control = TOKENIZER.control["<|im_end|>"]
    ids = [*TOKENIZER.encode(text), control, *TOKENIZER.encode(text)]
    other = resplit(TOKENIZER, ids, cuts)
    assert TOKENIZER.decode(other) == TOKENIZER.decode(ids)
    assert [each for each in other if each in CONTROL] == [control]


def test_a_text_that_pieces_would_change_stays_whole() -> None:
    class Prefixing(ByteTokenizer):
        """Begins each text that it encodes with a space, as SentencePiece does."""

        def encode(self, text: str) -> list[int]:
            return super().encode(f" {text}")

    ids = TOKENIZER.encode("the user")
    assert resplit(Prefixing(), ids, [2, 6]) == ids


def test_other_ids_are_other_ids() -> None:
    assert resplit(TOKENIZER, TOKENIZER.encode("the user"), [2, 6]) != TOKENIZER.encode("the user")


@given(st.data(), st.integers(0, 40))
def test_chunkings_cut_within_the_stream(data: st.DataObject, length: int) -> None:
    places = data.draw(strategies.chunkings(length))
    assert list(places) == sorted(set(places))
    assert all(0 < place < length for place in places)


@given(st.data(), strategies.conversations(SUBJECT))
def test_prefixes_share_what_was_said(data: st.DataObject, conversation: Conversation) -> None:
    earlier = data.draw(strategies.prefixes(conversation))
    assert conversation.messages[: len(earlier.messages)] == earlier.messages
    assert earlier.tools == conversation.tools
