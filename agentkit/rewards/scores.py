"""What a reward returned, as a `Score`."""

import math
from collections.abc import Iterator
from typing import SupportsFloat

from agentkit.protocols.trajectory import Score


def as_score(value: float | Score | SupportsFloat) -> Score:
    """`value` as a score whose numbers are all finite; anything with `__float__` will do, a bool is 1.0 or 0.0.

    Raises:
        ValueError: it is neither a number nor a `Score`, or one of its numbers is not finite.
    """
    if not isinstance(value, Score):
        if not isinstance(value, SupportsFloat):
            raise ValueError(f"a reward must return a number or a Score, found {value!r:.80}")
        value = Score(float(value))
    for where, number in _numbers(value):
        if not math.isfinite(number):
            raise ValueError(f"{where} must be finite, found {number!r}")
    return value


def _numbers(score: Score) -> Iterator[tuple[str, float]]:
    yield "score.value", score.value
    for turn, number in enumerate(score.turns or ()):
        yield f"score.turns[{turn}]", number
    for chain, row in (score.tokens or {}).items():
        for position, number in enumerate(row):
            yield f"score.tokens[{chain}][{position}]", number
    for name, number in score.metrics.items():
        yield f"score.metrics[{name!r}]", number
