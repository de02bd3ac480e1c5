"""What the policy saw and sampled, token by token: append-only chains, 9 bytes a token.

The ledger has one owner and does no I/O. Ids, response mask and log-probabilities of a chain grow together (T1), and
nothing in it ever re-encodes text (T2). Every method costs O(tokens handed in), whatever the chain holds already (T7),
except `freeze`, which copies.

The chains are a tree. A fork holds only the tokens after its prefix and points at who holds those before; since chains
only grow, that never has to be told to anyone. A chain holds the tokens from `offset` on:

    chain 0   [prompt][sampled  ][observation][sampled]
    chain 1           `[sampled ][observation]                offset 6, base chain 0
    chain 2                     `[sampled]                    offset 15, base chain 1
"""

import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from attrs import frozen

from agentkit.errors import InvariantError, ModelError
from agentkit.protocols.chains import Chain, ChainDelta, Span, SpanKind

# The high byte of an int32 tells its sign, that of a float32 its sign and magnitude: one strided slice checks them all.
_HIGH = 3 if sys.byteorder == "little" else 0
_SURELY_LOGPROBS = bytes([*range(0x3A), *range(0x80, 0xFF)])  # +0.0 .. 4.8e-4 and -0.0 .. -1.7e38
_HIGHEST_LOGPROB = 1e-3  # engines round log(1) to slightly above zero


class TokenView(Sequence[int]):
    """The first `len(view)` tokens of a chain as they stand: O(1) to make, never changes, never blocks growth."""

    __slots__ = ("_held", "_length")

    def __init__(self, held: "_Held", length: int) -> None:
        self._held = held
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "array[int]": ...
    def __getitem__(self, index: int | slice) -> "int | array[int]":
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._held.cut(start, stop) if step == 1 else self.since(0)[index]
        if not -self._length <= index < self._length:
            raise IndexError(f"token {index} of a view of {self._length}")
        return self._held.at(index % self._length)

    def __iter__(self) -> Iterator[int]:
        return iter(self.since(0))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenView):
            return self.since(0) == other.since(0)
        if isinstance(other, list | tuple | array):
            return len(other) == self._length and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, so not hashable, as they are not

    def __repr__(self) -> str:
        return f"TokenView of {self._length} tokens"

    def since(self, start: int) -> "array[int]":
        """A copy of the tokens from `start` on: what a client has not sent yet. O(tokens copied)."""
        return self._held.cut(max(0, start), self._length)

    def tobytes(self) -> bytes:
        """The tokens as int32 in this machine's byte order."""
        return self.since(0).tobytes()


@frozen
class Mark:
    """A place in the growth of a ledger: the length of each chain then."""

    lengths: tuple[int, ...] = ()


class _Held:
    """The ids of a chain from `offset` on; those before are `base`'s."""

    __slots__ = ("base", "ids", "offset")

    def __init__(self, base: "_Held | None" = None, offset: int = 0) -> None:
        self.ids: array[int] = array("i")
        self.base = base
        self.offset = offset

    def holder(self, length: int) -> "_Held | None":
        """Who holds the last of the first `length` ids; None where there are none."""
        held: _Held | None = self
        while held is not None and held.offset >= length:
            held = held.base
        return held

    def at(self, index: int) -> int:
        held = self.holder(index + 1)
        if held is None:
            raise IndexError(index)
        return held.ids[index - held.offset]

    def cut(self, start: int, stop: int) -> "array[int]":
        """A copy of the ids `start <= t < stop`."""
        parts: list[array[int]] = []
        held: _Held | None = self
        while held is not None and stop > start:
            if stop > held.offset:
                first = max(start, held.offset)
                parts.append(held.ids[first - held.offset : stop - held.offset])
                stop = first
            held = held.base
        if len(parts) == 1:
            return parts[0]
        return array("i", b"".join(part.tobytes() for part in reversed(parts)))


class _Growing:
    """One chain while it grows. What it inherits has mask and log-probability 0, and is not held."""

    __slots__ = ("held", "logprobs", "mask", "offset", "parent", "sampled", "spans")

    def __init__(self, parent: tuple[int, int] | None, base: _Held | None = None) -> None:
        self.offset = parent[1] if parent is not None and base is not None else 0
        self.held = _Held(base, self.offset)
        self.mask = bytearray()
        self.logprobs: array[float] = array("f")
        self.spans: list[Span] = [Span(0, self.offset, SpanKind.INHERITED)] if self.offset else []
        self.parent = parent
        self.sampled = 0

    def __len__(self) -> int:
        return self.offset + len(self.mask)

    def extend(self, ids: "array[int]", mask: bytes, logprobs: bytes, span: Span) -> None:
        if not ids:
            return
        self.held.ids.extend(ids)
        self.mask += mask
        self.logprobs.frombytes(logprobs)
        if span.kind is SpanKind.SAMPLED:
            self.sampled += len(ids)
        last = self.spans[-1] if self.spans else None
        if last and (last.kind, last.turn, last.policy_version) == (span.kind, span.turn, span.policy_version):
            self.spans[-1] = Span(last.start, span.stop, span.kind, span.turn, span.policy_version)
        else:
            self.spans.append(span)

    def piece(self, start: int) -> Chain:
        spans: list[Span] = []
        for span in reversed(self.spans):
            if span.stop <= start:
                break
            first = max(span.start, start)
            spans.append(Span(first - start, span.stop - start, span.kind, span.turn, span.policy_version))
        inherited, own = max(0, self.offset - start), max(0, start - self.offset)
        return Chain(
            self.held.cut(start, len(self)).tobytes(),
            bytes(inherited) + self.mask[own:],
            bytes(4 * inherited) + self.logprobs[own:].tobytes(),
            tuple(reversed(spans)),
            self.parent,
        )


class Ledger:
    """The chains of one rollout while they grow. One owner; not safe to grow from two threads."""

    __slots__ = ("_chains",)

    def __init__(self) -> None:
        self._chains: list[_Growing] = []

    def __len__(self) -> int:
        return len(self._chains)

    def open(self, prompt_ids: Sequence[int], *, parent: tuple[int, int] | None = None) -> int:
        """The index of a new chain that starts with `prompt_ids`; `parent` says where it came from, if anywhere.

        Raises:
            InvariantError: an id is negative or does not fit 32 bits.
        """
        ids = _token_array(prompt_ids)
        growing = _Growing(parent)
        growing.extend(ids, bytes(len(ids)), bytes(4 * len(ids)), Span(0, len(ids), SpanKind.PROMPT))
        self._chains.append(growing)
        return len(self._chains) - 1

    def sample(
        self,
        chain: int,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        turn: int,
        policy_version: int | None = None,
    ) -> None:
        """Append what the policy sampled, verbatim. However a turn is split into calls, the chain is the same (T8).

        Raises:
            ModelError: the counts differ, an id is no token id, or a logprob is no log-probability; nothing was added.
        """
        growing = self._chains[chain]
        try:
            ids = _token_array(token_ids)
        except InvariantError as error:
            raise ModelError(f"the engine sampled something that is no token id: {error}") from error
        values = _logprob_array(logprobs)
        n = len(ids)
        if len(values) != n:
            raise ModelError(
                f"the engine sent {n} token ids with {len(values)} logprobs in turn {turn}: "
                "set it to return the log-probability of every sampled token (vllm, sglang: logprobs)"
            )
        if policy_version is not None and type(policy_version) is not int:
            raise ModelError(f"policy_version must be an int or None, found {policy_version!r}")
        start = len(growing)
        growing.extend(
            ids, b"\x01" * n, values.tobytes(), Span(start, start + n, SpanKind.SAMPLED, turn, policy_version)
        )

    def append(self, chain: int, token_ids: Sequence[int], kind: SpanKind, *, turn: int) -> None:
        """Append tokens the policy did not sample: `kind` is `observation` or `close`.

        Raises:
            InvariantError: another kind, or an id that is no token id; nothing was added.
        """
        if kind is not SpanKind.OBSERVATION and kind is not SpanKind.CLOSE:
            raise InvariantError(f"append takes spans of kind 'observation' or 'close', found {str(kind)!r}")
        growing = self._chains[chain]
        ids = _token_array(token_ids)
        start, n = len(growing), len(ids)
        growing.extend(ids, bytes(n), bytes(4 * n), Span(start, start + n, kind, turn))

    def fork(self, chain: int, length: int) -> int:
        """The index of a new chain that shares the first `length` tokens of `chain`; they count as sampled only there.

        Costs the same time and memory whatever `length` is: the prefix is shared, not copied.

        Raises:
            InvariantError: `chain` is shorter than `length`.
        """
        source = self._chains[chain]
        if not 0 <= length <= len(source):
            raise InvariantError(f"fork at {length} of chain {chain}, which has {len(source)} tokens")
        self._chains.append(_fork(source, (chain, length)))
        return len(self._chains) - 1

    def view(self, chain: int) -> TokenView:
        """The tokens of `chain` as they stand now, without a copy."""
        growing = self._chains[chain]
        return TokenView(growing.held, len(growing))

    def length(self, chain: int) -> int:
        """Tokens in `chain`."""
        return len(self._chains[chain])

    def sampled_count(self, chain: int) -> int:
        """Tokens in `chain` with response mask 1."""
        return self._chains[chain].sampled

    def mark(self) -> Mark:
        """A place to ask `deltas` about later."""
        return Mark(tuple(len(growing) for growing in self._chains))

    def deltas(self, mark: Mark) -> tuple[ChainDelta, ...]:
        """What was appended since `mark`, chain by chain; a chain opened since is there even if it is empty.

        The delta of a new fork starts where its own tokens do: what it inherits is in its parent's.
        """
        deltas: list[ChainDelta] = []
        for index, growing in enumerate(self._chains):
            is_new = index >= len(mark.lengths)
            start = growing.offset if is_new else mark.lengths[index]
            if is_new or len(growing) > start:
                deltas.append(ChainDelta(index, start, growing.piece(start)))
        return tuple(deltas)

    def freeze(self) -> tuple[Chain, ...]:
        """The chains as immutable values."""
        return tuple(growing.piece(0) for growing in self._chains)


def join(deltas: Sequence[ChainDelta]) -> tuple[Chain, ...]:
    """The chains that `deltas`, in the order they were taken, add up to.

    Raises:
        InvariantError: a delta is missing, doubled or out of order.
    """
    chains: list[_Growing] = []
    for delta in deltas:
        if delta.chain == len(chains):
            chains.append(_joined(delta, chains))
        have = len(chains[delta.chain]) if 0 <= delta.chain < len(chains) else None
        if have != delta.start:
            raise InvariantError(f"delta of chain {delta.chain} starts at {delta.start}, the chain has {have} tokens")
        growing, piece = chains[delta.chain], delta.piece
        for span in piece.spans:
            ids = array("i", piece.id_bytes[4 * span.start : 4 * span.stop])
            growing.extend(
                ids,
                piece.mask_bytes[span.start : span.stop],
                piece.logprob_bytes[4 * span.start : 4 * span.stop],
                Span(delta.start + span.start, delta.start + span.stop, span.kind, span.turn, span.policy_version),
            )
    return tuple(growing.piece(0) for growing in chains)


def _joined(first: ChainDelta, chains: Sequence[_Growing]) -> _Growing:
    """The chain that `first` begins: with 0 as its start, the delta itself holds what the chain inherits."""
    parent = first.piece.parent
    if parent is None or first.start == 0:
        return _Growing(parent)
    number, length = parent
    if first.start != length or not 0 <= number < len(chains) or length > len(chains[number]):
        raise InvariantError(
            f"delta of chain {first.chain} starts at {first.start}, as a fork of chain {number} at {length}, "
            f"of which there are {len(chains[number]) if 0 <= number < len(chains) else 'no'} tokens"
        )
    return _fork(chains[number], parent)


def _fork(source: _Growing, parent: tuple[int, int]) -> _Growing:
    return _Growing(parent, source.held.holder(parent[1]))


def _token_array(token_ids: Sequence[int]) -> "array[int]":
    try:
        if isinstance(token_ids, array) and token_ids.typecode == "i":
            return _not_negative(token_ids)
        ids = array("i")
        ids.fromlist(token_ids if isinstance(token_ids, list) else list(token_ids))  # a third faster than array("i", x)
    except (TypeError, OverflowError, ValueError) as error:
        raise InvariantError(f"token ids must be integers of 32 bits: {error}") from error
    return _not_negative(ids)


def _not_negative(ids: "array[int]") -> "array[int]":
    if not ids.tobytes()[_HIGH::4].isascii():
        raise InvariantError(f"token ids must not be negative, found {min(ids)}")
    return ids


def _logprob_array(logprobs: Sequence[float]) -> "array[float]":
    try:
        values = array("f")
        values.fromlist(logprobs if isinstance(logprobs, list) else list(logprobs))
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"logprobs must be numbers: {error}; set the engine to return the log-probability of every sampled token"
        ) from error
    if values.tobytes()[_HIGH::4].translate(None, _SURELY_LOGPROBS):
        for value in values:
            if not math.isfinite(value) or value > _HIGHEST_LOGPROB:
                raise ModelError(
                    f"the engine sent {value!r} as a logprob, expected a finite number <= 0: set it to return "
                    "log-probabilities (vllm: logprobs_mode='processed_logprobs' or 'raw_logprobs'), not logits"
                )
    return values
