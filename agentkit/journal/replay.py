"""Chains rebuilt from the pieces that were appended turn by turn."""

from collections.abc import Iterable

import attrs

from agentkit.errors import InvariantError
from agentkit.protocols import Chain, ChainDelta, Span


def rebuild(deltas: Iterable[ChainDelta]) -> tuple[Chain, ...]:
    """The chains that `deltas`, in the order appended, add up to; a span cut in two by a delta is one again.

    Raises:
        InvariantError: a piece does not begin where its chain ends.
    """
    pieces: dict[int, list[Chain]] = {}
    lengths: dict[int, int] = {}
    for delta in deltas:
        length = lengths.get(delta.chain, 0)
        if delta.start != length:
            raise InvariantError(f"a piece of chain {delta.chain} begins at {delta.start}, the chain has {length} tokens")
        pieces.setdefault(delta.chain, []).append(delta.piece)
        lengths[delta.chain] = length + len(delta.piece)
    return tuple(_join(pieces.get(chain, [])) for chain in range(max(pieces, default=-1) + 1))


def _join(pieces: list[Chain]) -> Chain:
    spans: list[Span] = []
    length = 0
    for piece in pieces:
        for span in piece.spans:
            moved = attrs.evolve(span, start=span.start + length, stop=span.stop + length)
            last = spans[-1] if spans else None
            if last is not None and attrs.evolve(last, start=moved.start, stop=moved.stop) == moved:
                spans[-1] = attrs.evolve(last, stop=moved.stop)
            else:
                spans.append(moved)
        length += len(piece)
    return Chain(
        b"".join(piece.id_bytes for piece in pieces),
        b"".join(piece.mask_bytes for piece in pieces),
        b"".join(piece.logprob_bytes for piece in pieces),
        tuple(spans),
        pieces[0].parent if pieces else None,
    )
