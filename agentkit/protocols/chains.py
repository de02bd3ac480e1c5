"""The frozen token record: one append-only chain, its spans, and slices of it."""

from array import array
from collections.abc import Iterable
from enum import StrEnum

from attrs import field, frozen

from agentkit.errors import InvariantError


class SpanKind(StrEnum):
    """Where the tokens of a span came from."""

    PROMPT = "prompt"
    """The rendering of the messages that opened the chain."""
    SAMPLED = "sampled"
    """What the policy sampled: the only kind with response mask 1."""
    OBSERVATION = "observation"
    """The bridge from a sampled turn to the next generation prompt: separators, observations, headers."""
    CLOSE = "close"
    """Tokens that close a turn the policy did not close itself (a length stop)."""
    INHERITED = "inherited"
    """The prefix shared with the chain this one was forked from; trained there, not here."""


@frozen
class Span:
    """Tokens `start <= t < stop` of a chain share an origin. `turn` is -1 before the first generation."""

    start: int
    stop: int
    kind: SpanKind
    turn: int = -1
    policy_version: int | None = None


@frozen
class Chain:
    """One append-only token sequence: one training sample. 9 bytes a token, immutable.

    `token_ids[t]` (int32), `response_mask[t]` (0 or 1) and `logprobs[t]` (float32, 0.0 where the mask is 0) have the
    same length; `spans` tile it without gaps. `parent` is (chain index, prefix length) for a fork.
    """

    id_bytes: bytes = field(default=b"", repr=False)
    mask_bytes: bytes = field(default=b"", repr=False)
    logprob_bytes: bytes = field(default=b"", repr=False)
    spans: tuple[Span, ...] = ()
    parent: tuple[int, int] | None = None

    def __attrs_post_init__(self) -> None:
        n = len(self.mask_bytes)
        if len(self.id_bytes) != 4 * n or len(self.logprob_bytes) != 4 * n:
            raise InvariantError(
                f"chain has {len(self.id_bytes) // 4} token_ids, {n} response_mask and "
                f"{len(self.logprob_bytes) // 4} logprobs entries"
            )

    @classmethod
    def of(
        cls,
        token_ids: Iterable[int],
        response_mask: Iterable[int],
        logprobs: Iterable[float],
        spans: tuple[Span, ...] = (),
        parent: tuple[int, int] | None = None,
    ) -> "Chain":
        """A chain from plain sequences."""
        return cls(array("i", token_ids).tobytes(), bytes(response_mask), array("f", logprobs).tobytes(), spans, parent)

    def __len__(self) -> int:
        return len(self.mask_bytes)

    @property
    def ids(self) -> "memoryview[int]":
        """The token ids, int32, without a copy (short for `token_ids`)."""
        return memoryview(self.id_bytes).cast("i")

    @property
    def token_ids(self) -> "memoryview[int]":
        """The token ids, int32, without a copy."""
        return memoryview(self.id_bytes).cast("i")

    @property
    def response_mask(self) -> "memoryview[int]":
        """1 where the policy sampled the token, else 0; uint8, without a copy."""
        return memoryview(self.mask_bytes)

    @property
    def logprobs(self) -> "memoryview[float]":
        """Log-probability of each sampled token under the policy that sampled it; float32, without a copy."""
        return memoryview(self.logprob_bytes).cast("f")


@frozen
class ChainDelta:
    """Tokens appended to chain number `chain` from position `start` on: the piece's spans count from 0."""

    chain: int
    start: int
    piece: Chain
