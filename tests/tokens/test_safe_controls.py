"""Which control tokens are found in a rendering: the first, and of those that start there the longest."""

import re
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from agentkit.tokens import SafeEncoder

LETTERS = "<|a.("


class Vocabulary:
    """A tokenizer with these control tokens."""

    def __init__(self, control: Sequence[str]) -> None:
        self.control: Mapping[str, int] = {text: number for number, text in enumerate(control)}

    def encode(self, text: str) -> list[int]:
        return [1000 + ord(char) for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(each - 1000) for each in ids)


@given(
    st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=8, unique=True),
    st.text(LETTERS + "bc", max_size=30),
    st.integers(0, 5),
)
def test_control_tokens_are_found_first_and_longest(control: list[str], text: str, start: int) -> None:
    encoder = SafeEncoder(Vocabulary(control))
    one_by_one = re.compile("|".join(re.escape(each) for each in sorted(control, key=len, reverse=True)))
    found = [(each.span(), each.group()) for each in encoder.controls(text, start)]
    assert found == [(each.span(), each.group()) for each in one_by_one.finditer(text, start)]


def test_a_control_token_that_begins_another_is_found_where_that_is_not() -> None:
    encoder = SafeEncoder(Vocabulary(["<a", "<a>", "<a><b>", "<"]))
    assert [each.group() for each in encoder.controls("<a><b><a><a<b>")] == ["<a><b>", "<a>", "<a", "<"]
