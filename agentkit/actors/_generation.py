"""One generation: what the model pushes goes straight into the record, until the generation is over."""

from agentkit.actors._record import Record
from agentkit.errors import ModelError, RolloutEnded
from agentkit.protocols import FinishReason, TextChunk, TokenChunk


class TokenGeneration:
    """Sampled tokens into a chain. What was pushed before a deadline, a crash or a cancel is in the ledger already."""

    __slots__ = ("_chain", "_closed", "_record", "_room", "_turn", "full", "start")

    def __init__(self, record: Record, *, chain: int, turn: int, room: int) -> None:
        self._record = record
        self._chain = chain
        self._turn = turn
        self._room = room
        self._closed = False
        self.start = record.ledger.length(chain)
        self.full = False

    @property
    def emitted(self) -> bool:
        """Whether anything was sampled."""
        return self.stop > self.start

    @property
    def stop(self) -> int:
        """Where the sampled span ends."""
        return self._record.ledger.length(self._chain)

    def emit(self, chunk: TokenChunk) -> None:
        """Take sampled tokens. Past `max_tokens` the rest is refused, so that a chain never outgrows its window.

        Raises:
            RolloutEnded: the generation is over, or there is no room left.
        """
        if self._closed or self._record.closed:
            raise RolloutEnded("the generation is over: its tokens are not recorded")
        if not isinstance(chunk, TokenChunk):
            raise ModelError(f"emit takes a TokenChunk, found {chunk!r}")
        ids, logprobs = chunk.token_ids, chunk.logprobs
        taken = len(ids)
        if taken > self._room:
            if len(logprobs) == taken:
                logprobs = logprobs[: self._room]
            ids, self.full = ids[: self._room], True
        self._record.ledger.sample(self._chain, ids, logprobs, turn=self._turn, policy_version=chunk.policy_version)
        self._room -= len(ids)
        if self.full:
            raise RolloutEnded("the chain has reached budget.max_tokens")

    def close(self) -> None:
        """Refuse whatever comes now."""
        self._closed = True


class TextGeneration:
    """The text of an API answer, piece by piece."""

    __slots__ = ("_closed", "_content", "_reasoning", "_record")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._closed = False

    @property
    def emitted(self) -> bool:
        """Whether any text came."""
        return bool(self._content or self._reasoning)

    @property
    def content(self) -> str:
        """The text so far."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str | None:
        """The reasoning so far."""
        return "".join(self._reasoning) or None

    def emit(self, chunk: TextChunk) -> None:
        """Take a piece of the answer.

        Raises:
            RolloutEnded: the generation is over.
        """
        if self._closed or self._record.closed:
            raise RolloutEnded("the generation is over: its text is not recorded")
        if not isinstance(chunk, TextChunk):
            raise ModelError(f"emit takes a TextChunk, found {chunk!r}")
        if chunk.content:
            self._content.append(chunk.content)
        if chunk.reasoning:
            self._reasoning.append(chunk.reasoning)

    def close(self) -> None:
        """Refuse whatever comes now."""
        self._closed = True


NO_FINISH = FinishReason.ABORTED
"""How a generation ended that did not come to its own end."""
