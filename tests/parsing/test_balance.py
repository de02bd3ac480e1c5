"""Extents of balanced tags against a reading of their definition."""

from hypothesis import given
from hypothesis import strategies as st

from agentkit.parsing._balance import Balance, Tag


def tags_of(shape: str) -> list[Tag]:
    return [Tag(n, n + 1, char == "(") for n, char in enumerate(shape)]


def slow_extent(shape: str, index: int) -> tuple[int, int | None, bool] | None:
    depths = {n: shape[index : n + 1].count("(") - shape[index : n + 1].count(")") for n in range(index, len(shape))}
    closers = [n for n in depths if n > index and shape[n] == ")"]
    if not closers:
        return None
    closer = min(closers, key=lambda n: (depths[n], n))
    first = next((n for n in closers if depths[n] == 0), None)
    return closer, first, first is None or "(" not in shape[first:closer]


@given(st.text("()", max_size=14))
def test_extents_equal_their_definition(shape: str) -> None:
    balance = Balance(tags_of(shape))
    for index, char in enumerate(shape):
        if char == "(":
            extent = balance.extent(index)
            found = extent and (extent.closer.start, extent.first and extent.first.start, extent.is_clear)
            assert found == slow_extent(shape, index)


@given(st.text("()", max_size=14), st.integers(0, 14))
def test_closer_from_is_where_the_depth_is_lowest(shape: str, index: int) -> None:
    index = min(index, len(shape))
    expected = slow_extent("(" + shape[index:], 0)
    closer = Balance(tags_of(shape)).closer_from(index)
    assert (closer and closer.start + 1 - index) == (expected and expected[0])
