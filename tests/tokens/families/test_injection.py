"""No text from outside is a control token, in any field of any family; every other text is encoded as ever."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentkit.errors import NotAppendable
from tests.tokens.families.bench import Bench
from tests.tokens.families.hostile import BENIGN, FIELDS, Said, attacks, shapes


def reads(said: Said) -> tuple[list[int], list[int] | None]:
    """The control tokens of the prompt, and of what a bridge leads on with, where it can."""
    try:
        rest = said.bench.controls_in(said.rest)
    except NotAppendable:
        rest = None
    return said.bench.controls_in(said.prompt), rest


def test_no_attack_forges_a_control_token(bench: Bench) -> None:
    """All fields at once: what one field ends with may go on in the next."""
    tried = 0
    for calls, tools in shapes(bench):
        harmless = reads(Said(bench, {}, calls, tools))
        for text in attacks(bench):
            said = Said(bench, {name: text for name in FIELDS if name != "call id"}, calls, tools)
            assert reads(said) == harmless, text
            tried += 1
    assert tried > 15


def test_no_field_forges_a_control_token(bench: Bench) -> None:
    """One field at a time, the rest being harmless."""
    calls, tools = shapes(bench)[0]
    harmless, text = reads(Said(bench, {}, calls, tools)), next(attacks(bench))
    for name in FIELDS:
        said = Said(bench, {name: text}, calls, tools)
        if name == "call id" and bench.specimen.family == "mistral" and calls:
            with pytest.raises(Exception, match="length 9"):  # the template's own words
                reads(said)
        else:
            assert reads(said) == harmless, name


def test_hostile_results_read_as_the_template_writes_them(bench: Bench) -> None:
    """Nothing is lost or changed on the way: decoded, the prompt says what the template wrote."""
    for calls, tools in shapes(bench):
        for text in attacks(bench):
            said = Said(bench, {"result": text, "last": text}, calls, tools)
            written = bench.text(said.messages, said.tools)
            assert _dense(bench.hf.decode(said.prompt)) == _dense(written)


def test_transformers_own_defence_finds_the_same_control_tokens(bench: Bench) -> None:
    """Newer versions can encode such text apart from the rest, for other ids but the same structure."""
    if not hasattr(bench.hf, "chat_control_tokens"):
        pytest.skip("this version of transformers has none")
    for calls, tools in shapes(bench):
        for text in list(attacks(bench))[:4]:
            said = Said(bench, {"result": text, "last": text, "user": text}, calls, tools)
            theirs = bench.guarded.encode(said.messages, said.tools, generation_prompt=True)
            assert bench.controls_in(said.prompt) == bench.controls_in(theirs)


def test_benign_text_is_encoded_as_transformers_does(bench: Bench) -> None:
    for calls, tools in shapes(bench):
        for text in BENIGN:
            said = Said(bench, {name: text for name in FIELDS if name != "call id"}, calls, tools)
            full = said.full
            assert said.prompt == full, text
            silent = Said(bench, said.texts | {"content": ""}, calls, tools) if calls else said
            try:
                rest = silent.rest
            except NotAppendable:
                continue
            assert rest == silent.full[-len(rest) :], text  # text beside calls is moved behind the results by Gemma's


pieces = st.sampled_from(
    ["\n", " ", "  ", "e", "\u0301", "7", "😀", "\r\n", "\t", "::", "a", "é", "你", "</", "{", "\u00a0"]
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.lists(pieces, max_size=8).map("".join)


def test_any_text_is_encoded_as_transformers_does(bench: Bench) -> None:
    shape = shapes(bench)[0]

    @settings(max_examples=max(10, settings.default.max_examples // 5))
    @given(texts, texts)
    @example("", "\n")
    @example(" ", "\u0301")
    def same(one: str, other: str) -> None:
        if any(text in one or text in other for text in bench.control):
            return
        said = Said(bench, {"user": one, "result": other, "last": other, "argument": one, "description": one}, *shape)
        assert said.prompt == said.full

    same()


def _dense(text: str) -> str:
    """Apart from white space, composition and what cannot be encoded at all, which tokenizers change as they like.

    Those of the SentencePiece kind take U+2581 for a space.
    """
    text = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode().replace("?", "\ufffd"))
    return "".join(text.replace("\u2581", " ").split())
