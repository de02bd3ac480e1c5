"""Helpers of the journal's tests."""

from collections.abc import Callable

import pytest

from agentkit.protocols import Chain, ChainDelta, Span, SpanKind, Trajectory, Turn

Piece = Callable[[Chain, int, int], Chain]
Split = Callable[[Trajectory], list[tuple[Turn, tuple[ChainDelta, ...]]]]


def _cut(chain: Chain, start: int, stop: int) -> Chain:
    spans = tuple(
        Span(max(span.start, start) - start, min(span.stop, stop) - start, span.kind, span.turn, span.policy_version)
        for span in chain.spans
        if span.start < stop and span.stop > start
    )
    parts = (
        chain.id_bytes[4 * start : 4 * stop],
        chain.mask_bytes[start:stop],
        chain.logprob_bytes[4 * start : 4 * stop],
    )
    return Chain(*parts, spans, chain.parent)


def _split_turns(trajectory: Trajectory) -> list[tuple[Turn, tuple[ChainDelta, ...]]]:
    written: dict[int, int] = {}
    appends = []
    for turn in trajectory.turns:
        deltas: list[ChainDelta] = []
        for number in range(turn.chain + 1):
            chain, start = trajectory.chains[number], written.get(number, 0)
            last = max(
                (s.stop for s in chain.spans if s.kind is not SpanKind.PROMPT and s.turn <= turn.index), default=0
            )
            stop = last or chain.spans[0].stop
            if stop > start:
                deltas.append(ChainDelta(number, start, _cut(chain, start, stop)))
                written[number] = stop
        appends.append((turn, tuple(deltas)))
    return appends


@pytest.fixture(scope="session")
def cut() -> Piece:
    """`cut(chain, start, stop)`: that piece of the chain, with its spans counting from 0."""
    return _cut


@pytest.fixture(scope="session")
def split_turns() -> Split:
    """`split_turns(trajectory)`: the appends that a rollout would have made on its way."""
    return _split_turns
