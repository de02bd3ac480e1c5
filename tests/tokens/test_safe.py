"""No text from outside becomes a control token, and no other text is encoded differently for it (T5)."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.protocols import Message, ToolCall, ToolSpec
from agentkit.tokens import ByteTokenizer, SafeEncoder

TOKENIZER = ByteTokenizer()
SAFE = SafeEncoder(TOKENIZER)
CONTROLS = sorted(TOKENIZER.control)
private = st.characters(categories=["Co"]) | st.integers(0x10F000, 0x10F040).map(chr)
pieces = (
    st.sampled_from(CONTROLS)
    | st.sampled_from(CONTROLS).flatmap(lambda c: st.integers(1, len(c)).map(lambda n: c[:n]))
    | st.sampled_from(CONTROLS).flatmap(lambda c: st.integers(0, len(c) - 1).map(lambda n: c[n:]))
    | st.sampled_from(["think", "tool_call", "im_end", "|", "<", ">", "/", " ", "\n", "object", "<<think>>"])
    | private
    | st.text(max_size=5)
)
hostile = st.lists(pieces, max_size=6).map("".join)


@given(hostile)
@example("\U0010f000\U0010f001")
@example("\U0010f000")
@example("think")
def test_escaping_is_reversible_and_leaves_no_control_text(text: str) -> None:
    escaped = SAFE.escape(text)
    assert SAFE.unescape(escaped) == text
    assert not any(control in escaped for control in CONTROLS)


@given(hostile, hostile, st.sampled_from(CONTROLS), st.data())
def test_no_control_token_forms_across_the_edges_of_a_piece(
    before: str, after: str, control: str, data: st.DataObject
) -> None:
    """The template brings one part of a control token's text, the world brings the rest."""
    a = data.draw(st.integers(0, len(control) - 1))
    b = data.draw(st.integers(a + 1, len(control)))
    for middle in (control[a:b], f" {control[a:b]}\n"):
        for piece in (middle, middle + after if b == len(control) else middle, before + middle if a == 0 else middle):
            stripped = SAFE.escape(piece).strip()
            rendered = control[:a] + stripped + control[b:]
            assert control not in rendered
            assert SAFE.unescape(rendered) == control[:a] + piece.strip() + control[b:]


@given(hostile, hostile)
def test_no_control_token_forms_where_two_pieces_meet(one: str, other: str) -> None:
    assert not any(control in SAFE.escape(one) + SAFE.escape(other) for control in CONTROLS)


@given(st.lists(st.text(max_size=12) | st.sampled_from(CONTROLS), max_size=6))
def test_encodes_each_stretch_between_control_tokens_whole(parts: list[str]) -> None:
    text = "".join(parts)
    expected: list[int] = []
    for stretch in re.split("(" + "|".join(map(re.escape, CONTROLS)) + ")", text):
        expected += [TOKENIZER.control[stretch]] if stretch in TOKENIZER.control else TOKENIZER.encode(stretch)
    assert SAFE.encode(text) == expected


@given(hostile)
def test_every_field_but_the_role_is_escaped(text: str) -> None:
    call = ToolCall(text, text, {text: [text, {"k": text}], "n": 1})
    message = SAFE.message(Message("assistant", text, (call,), text, text, text))
    tool = SAFE.tool(ToolSpec(text, text, {"type": "object", "properties": {text: {"description": text}}}))
    for held in (repr(message), repr(tool)):
        assert not any(control in held for control in CONTROLS)
    assert message.role == "assistant"
    assert SAFE.unescape(message.content) == text
    assert tool.parameters["type"] == "object"


def test_words_of_json_schema_stay_readable_for_the_template() -> None:
    class Objects(ByteTokenizer):
        @property
        def control(self) -> dict[str, int]:
            return {"<|object_ref_start|>": 9000, "<|type_description|>": 9001}

    schema = {"type": "object", "properties": {"x": {"type": "string", "description": "object"}}}
    assert SafeEncoder(Objects()).tool(ToolSpec("f", "d", schema)).parameters == schema


def test_lone_surrogates_are_replaced() -> None:
    assert SAFE.escape("a\udc80b") == "a\ufffdb"


@pytest.mark.parametrize("control", [{}, {"": 1}, {"\U0010f003": 1}])
def test_refuses_control_tokens_it_cannot_keep_apart(control: dict[str, int]) -> None:
    class Odd(ByteTokenizer):
        @property
        def control(self) -> dict[str, int]:
            return control

    with pytest.raises(ConfigError, match="control token"):
        SafeEncoder(Odd())


class Counting(ByteTokenizer):
    """Keeps the texts that it is given to encode."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode(text)


def test_what_opens_chains_is_encoded_once_and_what_goes_on_in_them_each_time() -> None:
    tokenizer = Counting()
    safe = SafeEncoder(tokenizer)
    control, long = CONTROLS[0], "all rollouts begin with these words, " * 10
    rendered = f"{control}{long}{control}{'y' * 100}"
    assert [safe.encode(rendered, opens=True) for _ in range(3)] == [SAFE.encode(rendered)] * 3
    assert tokenizer.encoded == [long, "y" * 100]
    for _ in range(2):
        safe.encode(f"{control}{'z' * 100}")
    assert tokenizer.encoded[2:] == ["z" * 100] * 2


def test_openings_are_remembered_up_to_a_number_and_a_length() -> None:
    tokenizer = Counting()
    safe = SafeEncoder(tokenizer)
    control = CONTROLS[0]
    huge = f"{control}{'x' * 20_000}"
    assert safe.encode(huge, opens=True) == safe.encode(huge, opens=True)
    assert len(tokenizer.encoded) == 2
    several = [f"{control}{number:0100d}" for number in range(200)]
    for text in several:
        safe.encode(text, opens=True)
    tokenizer.encoded.clear()
    for text in several:
        assert safe.encode(text, opens=True) == SAFE.encode(text)
    assert len(tokenizer.encoded) > 100
