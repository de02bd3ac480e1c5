"""The small tokenizer behaves like a large one where it matters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.protocols import Tokenizer
from agentkit.tokens import ByteTokenizer

TOKENIZER = ByteTokenizer()
texts = st.text(max_size=40) | st.lists(
    st.sampled_from(["\n", " the", "  ", "é", "😀", "<|im_end|>", "<think>", "def", ":\n", "42", "\u0301"]), max_size=12
).map("".join)


def test_has_the_shape() -> None:
    assert isinstance(TOKENIZER, Tokenizer)
    assert 256 < len(TOKENIZER) < 2000


@given(texts)
def test_decodes_what_it_encoded(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(texts)
def test_text_never_yields_a_control_token(text: str) -> None:
    assert set(TOKENIZER.control.values()).isdisjoint(TOKENIZER.encode(text))


@given(texts)
def test_takes_the_longest_run_each_time(text: str) -> None:
    known = {TOKENIZER._bytes_of[i] for i in range(len(TOKENIZER) - len(TOKENIZER.control))}
    raw, runs = text.encode(), []
    while raw:
        run = next(raw[:n] for n in range(min(len(raw), 40), 0, -1) if raw[:n] in known)
        runs.append(run)
        raw = raw[len(run) :]
    assert [TOKENIZER._bytes_of[i] for i in TOKENIZER.encode(text)] == runs


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("\n", "\n"),
        (" ", " the"),
        ("of", " the"),
        ("a:\n", "    b"),
        ("1", "2"),
        (" t", "he"),
        ("x.", "\n\n"),
        ("e", "r"),
    ],
)
def test_pieces_encoded_apart_may_differ(left: str, right: str) -> None:
    apart = TOKENIZER.encode(left) + TOKENIZER.encode(right)
    if (left, right) != ("of", " the"):
        assert apart != TOKENIZER.encode(left + right)
    assert TOKENIZER.decode(apart) == left + right


def test_part_of_a_character_reads_as_a_replacement() -> None:
    ids = TOKENIZER.encode("🫿")
    assert len(ids) > 1
    assert TOKENIZER.decode(ids[:1]) == "\ufffd"


def test_ids_outside_the_vocabulary_read_as_a_replacement() -> None:
    assert TOKENIZER.decode([97, len(TOKENIZER), 97]) == "a\ufffda"


def test_lone_surrogates_encode_as_a_replacement() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\udc80\ud83db")) == "a\ufffd\ufffdb"


def test_tables_do_not_change_between_instances() -> None:
    text = "Answer the question: what is 42?\n\n\n    <b>"
    assert ByteTokenizer().encode(text) == TOKENIZER.encode(text)
    assert ByteTokenizer().control == TOKENIZER.control
