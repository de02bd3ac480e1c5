"""From pieces of sampled text to one `Parsed`: the session that every family shares.

What a family knows is a `BlockReader`: where the next attempted call starts, where it stops, and what it says. What
all families share is here: reasoning is cut off first, the text around the blocks becomes the content, and attempts
are numbered.

The pieces are kept and read once, at the end: nobody acts on half a generation, where a block ends may depend on what
follows it, and so no split of the text can change the result.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from attrs import frozen

from agentkit.protocols import CallFault, FaultStatus, FinishReason, Parsed, ToolCall, ToolParser, ToolSpec, with_id

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


@frozen
class Block:
    """One attempted call: `text[start:stop]` is spent on it, `start` being where the reader was asked to read."""

    stop: int
    attempt: ToolCall | CallFault


class BlockReader(Protocol):
    """How one family marks calls, bound to one text. Positions are offsets into that text."""

    def find(self, position: int) -> int:
        """Where the first block at or after `position` starts, or -1."""
        ...

    def skip(self, start: int) -> int:
        """Where the block at `start` stops if it is whole or its end was cut, or -1: it may hide a `</think>`."""
        ...

    def read(self, start: int) -> Block:
        """The block at `start`; stops after `start`."""
        ...

    def stray(self, start: int, stop: int) -> tuple[int, ToolCall | CallFault] | None:
        """An attempt that lacks its opener in the text between two blocks, and where the content before it ends."""
        ...


ReaderFactory: TypeAlias = Callable[[str, bool], BlockReader]


class Session:
    """One generation being parsed; `make_reader` gets the whole text and whether it was cut."""

    def __init__(self, make_reader: ReaderFactory) -> None:
        self._make_reader = make_reader
        self._pieces: list[str] = []

    def feed(self, text: str, /) -> None:
        """Take the next piece of sampled text."""
        self._pieces.append(text)

    def finish(self, reason: FinishReason, /) -> Parsed:
        """What was found in all pieces together."""
        text = "".join(self._pieces)
        return _assemble(text, self._make_reader(text, reason is not FinishReason.STOP))


def parse(
    parser: ToolParser, text: str, tools: Sequence[ToolSpec] = (), finish: FinishReason = FinishReason.STOP
) -> Parsed:
    """What `parser` finds in one whole generation."""
    session = parser.begin(tools)
    session.feed(text)
    return session.finish(finish)


def _assemble(text: str, reader: BlockReader) -> Parsed:
    reasoning, position = _split_reasoning(text, reader)
    pieces: list[str] = []
    attempts: list[ToolCall | CallFault] = []

    def add_gap(start: int, stop: int) -> None:
        stray = reader.stray(start, stop)
        if stray is not None:
            stop, attempt = stray
            attempts.append(attempt)
        pieces.append(text[start:stop])

    while (start := reader.find(position)) >= 0:
        add_gap(position, start)
        block = reader.read(start)
        attempts.append(block.attempt)
        position = block.stop
    add_gap(position, len(text))
    numbered = tuple(with_id(attempt, f"call_{n}") for n, attempt in enumerate(attempts))
    return Parsed(_content(pieces, is_first_verbatim=not attempts), reasoning, numbered)


def _content(pieces: Sequence[str], *, is_first_verbatim: bool) -> str:
    if is_first_verbatim:
        return pieces[0]
    kept = [pieces[0].rstrip(), *(piece.strip() for piece in pieces[1:])]
    return "\n".join(piece for piece in kept if piece)


def _split_reasoning(text: str, reader: BlockReader) -> tuple[str | None, int]:
    """The reasoning, and where what follows it starts.

    Templates may open the thinking in the prompt, so its opener need not be in the text.
    """
    begin = 0
    lead = len(text) - len(text.lstrip())
    is_opened = text.startswith(THINK_OPEN, lead)
    if is_opened:
        begin = lead + len(THINK_OPEN)
    close = text.find(THINK_CLOSE, begin)
    position = begin
    while close >= 0:
        start = reader.find(position)
        if not 0 <= start < close:
            stop = close + len(THINK_CLOSE)
            return text[begin:close].strip("\n"), len(text) - len(text[stop:].lstrip("\n"))
        # An opener that starts no whole block is thinking about calls: step over it alone.
        position = max(reader.skip(start), start + 1)
        if close < position:
            close = text.find(THINK_CLOSE, position)
    if not is_opened:
        return None, 0
    start = reader.find(begin)
    stop = start if start >= 0 else len(text)
    return text[begin:stop].strip("\n"), stop


def cut_fault(text: str, start: int, name: str | None = None) -> CallFault:
    """The fault of a call that the end of the generation cut, from `start` on."""
    return CallFault(
        FaultStatus.TRUNCATED,
        "the generation was cut before the tool call ended, so the call was not run: write a shorter call",
        text[start:],
        name,
    )
