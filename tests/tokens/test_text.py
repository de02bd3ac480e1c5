"""The text of an action ends where the engine said it stopped, whatever the last token says behind it."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.tokens.text import until_stop

PIECES = st.lists(
    st.sampled_from(["a", "b", "ab", ">", ">\n", "</a", "</a>", "</a>\n", "\n\n", "aba", "é"]), max_size=12
)
STOPS = st.sampled_from(["a", "ab", "aa", "</a>", "\n", "b\n", "é"])


def engine(pieces: Sequence[str], stop: str, steps: Sequence[int], min_tokens: int) -> tuple[list[str], str] | None:
    """What an engine samples of `pieces` until it finds `stop`, and the text that it would show up to its end.

    As vLLM does it: some tokens a step, after each step the text that it added is searched, but for that of the first
    `min_tokens`. None where it never stops.
    """
    at = 0
    for size in steps:
        sampled = list(pieces[: at + size])
        text, before = "".join(sampled), "".join(sampled[: max(at, min_tokens)])
        at += size
        if len(sampled) <= min_tokens:
            continue
        for end in range(len(before) + 1, len(text) + 1):
            if text[:end].endswith(stop):
                return sampled, text[:end]
        if at >= len(pieces):
            return None
    return None


@given(PIECES, STOPS, st.lists(st.integers(1, 3), min_size=12, max_size=12), st.integers(0, 4))
@example(["</a", ">\n"], "</a>", [1] * 12, 0)  # it ends in the middle of a token
@example(["\n\n"], "\n", [1] * 12, 0)  # twice in one token: the first counts
@example(["</a>", "b", "</a>\n"], "</a>", [1] * 12, 2)  # the first did not count yet
@example(["a", "b\n", "a"], "b\n", [3] * 12, 0)  # the step went on behind it
@example(["a", "a"], "aa", [1] * 12, 1)  # begun before it counted, ended after
def test_an_action_ends_where_the_engine_found_the_stop_string(
    pieces: list[str], stop: str, steps: list[int], min_tokens: int
) -> None:
    found = engine(pieces, stop, steps, min_tokens)
    if found is not None:
        sampled, expected = found
        settled = len("".join(sampled[:min_tokens]))
        assert until_stop("".join(sampled), stop, settled=settled) == expected


@pytest.mark.parametrize("stop", ["", "no such thing", "x" * 100])
def test_a_stop_string_that_is_not_there_cuts_nothing(stop: str) -> None:
    assert until_stop("the text", stop) == "the text"
    assert until_stop("the text", stop, settled=8) == "the text"


def test_what_was_settled_before_cuts_nothing() -> None:
    assert until_stop("a</a>b", "</a>", settled=5) == "a</a>b"
    assert until_stop("a</a>b", "</a>", settled=4) == "a</a>"
