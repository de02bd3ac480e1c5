"""One generation: what the model pushes goes straight into the record, until the generation is over."""

from collections.abc import Sequence
from itertools import count

from agentkit.actors._record import Record
from agentkit.errors import ModelError, RolloutEnded
from agentkit.protocols import (
    CallFault,
    EmitText,
    EmitTokens,
    FaultStatus,
    Finish,
    FinishReason,
    Message,
    Renderer,
    TextChunk,
    TokenChunk,
    ToolCall,
    call_id,
    with_id,
)
from agentkit.tokens.text import until_stop

_CUT = "the answer was cut before the tool call ended, so the call was not run: write a shorter call"
_NAMELESS = "nameless"


class TokenGeneration:
    """Sampled tokens into a chain. What was pushed before a deadline, a crash or a cancel is in the ledger already."""

    __slots__ = ("_chain", "_closed", "_record", "_room", "_tries", "_turn", "full", "start")

    def __init__(self, record: Record, *, chain: int, turn: int, room: int) -> None:
        self._record = record
        self._chain = chain
        self._turn = turn
        self._room = room
        self._closed = False
        self._tries = 0
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

    def begin_try(self) -> EmitTokens:
        """`emit` for the next try; what the tries before left running adds no more to the record."""
        self._tries = number = self._tries + 1

        def emit(chunk: TokenChunk) -> None:
            if number != self._tries:
                raise RolloutEnded("this try at the generation is over: its tokens are not recorded")
            self.emit(chunk)

        return emit

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

    def read_text(self, renderer: Renderer, finish: Finish | None) -> tuple[str, str]:
        """(the text of what was sampled, the part of it that is read as an action).

        They differ only at a stop string that ended in the middle of a token: the action ends with the string. Both
        come from the ids alone, whatever text the engine sent and wherever the stream was cut.
        """
        ids = self._record.ledger.view(self._chain).since(self.start)
        text = renderer.decode(ids)
        if finish is None or not finish.stop_string:
            return text, text
        settled = 0
        if finish.min_tokens > 0:  # half a character at the end may yet become one that counts
            settled = len(renderer.decode(ids[: finish.min_tokens]).rstrip("\ufffd"))
        return text, until_stop(text, finish.stop_string, settled=settled)

    def close(self) -> None:
        """Refuse whatever comes now."""
        self._closed = True


class TextGeneration:
    """The text of an API answer, piece by piece."""

    __slots__ = ("_closed", "_content", "_reasoning", "_record", "_tries")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._closed = False
        self._tries = 0

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

    def begin_try(self) -> EmitText:
        """`emit` for the next try; what the tries before left running adds no more to the record."""
        self._tries = number = self._tries + 1

        def emit(chunk: TextChunk) -> None:
            if number != self._tries:
                raise RolloutEnded("this try at the generation is over: its text is not recorded")
            self.emit(chunk)

        return emit

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


def attempts_of(finish: Finish, message: Message, turn: int) -> tuple[ToolCall | CallFault, ...]:
    """What an API answer attempted to call, each attempt under an id of its own.

    Where the model did not look into the calls itself, the last call of an answer that was cut is taken for cut too:
    an API does not say where its calls ended, and half of a call must not run.
    """
    attempts = finish.attempts
    if attempts is None:
        attempts = message.tool_calls
        if attempts and finish.reason is not FinishReason.STOP:
            last = message.tool_calls[-1]
            attempts = (*attempts[:-1], CallFault(FaultStatus.TRUNCATED, _CUT, name=last.name, id=last.id))
    ids: list[str] = [attempt.id for attempt in attempts]
    if "" not in ids and len(set(ids)) == len(ids):
        return attempts
    taken = set(ids)
    kept: set[str] = set()
    named: list[ToolCall | CallFault] = []
    for number, attempt in enumerate(attempts):
        name = attempt.id
        if not name or name in kept:
            free = (call_id(turn, other) for other in count(number))
            name = next(each for each in free if each not in taken and each not in kept)
        kept.add(name)
        named.append(attempt if name == attempt.id else with_id(attempt, name))
    return tuple(named)


def with_calls(message: Message, attempts: Sequence[ToolCall | CallFault]) -> Message:
    """The message with one call for each attempt, so that on the wire every answer has the call that it answers.

    A faulted attempt has no arguments that could be sent: what was written of them is in its fault.
    """
    calls = tuple(
        attempt if isinstance(attempt, ToolCall) else ToolCall(attempt.id, attempt.name or _NAMELESS)
        for attempt in attempts
    )
    if calls == message.tool_calls:
        return message
    return Message(message.role, message.content, calls, message.tool_call_id, message.name, message.reasoning)
