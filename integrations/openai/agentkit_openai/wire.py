"""The JSON of prompts, kept per trajectory so that a longer prompt costs its new tokens only.

A prompt of 128k ids takes some 10 ms to write as JSON and 0.04 ms to compare with the one before. So each prompt is
compared with what is kept under its key, whatever the caller says is new: a retry, a fork, a rewritten history under
the same key then costs time and never sends wrong ids.

    one trajectory's lines        |1,2,..|,9,..|,4,5|,7,..|       the chain
                                  |1,2,..|,9,..|,8|               a fork of it: whole pieces are shared

A line is the prompt of one chain, in pieces of at most 512 ids. A chain that leaves another one costs what it adds, and
at most one piece more, wherever it leaves; several chains that are gone on with by turns each keep their own.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from agentkit.errors import ConfigError, ModelError
from agentkit.tokens import TokenView

_PIECE_IDS = 512
_LINES = 16  # of one trajectory; one that compacts its history leaves a line behind each time
_LINE_BYTES = 400  # the objects around a line
_PIECE_BYTES = 120  # and around each of its pieces


class PromptWire:
    """Ids to JSON, as pieces whose concatenation is the inside of a JSON list: `1,2,3`.

    Holds at most `limit_bytes`; the line that was asked for longest ago goes first, whosever it is.
    """

    __slots__ = ("_kept", "_limit_bytes", "_lines", "encoded_bytes", "held_bytes")

    def __init__(self, *, limit_bytes: int = 256 << 20) -> None:
        if limit_bytes < 0:
            raise ConfigError(f"wire_cache_bytes must be >= 0, found {limit_bytes!r}")
        self._limit_bytes = limit_bytes
        self._lines: dict[str, list[_Line]] = {}
        self._kept: OrderedDict[_Line, str] = OrderedDict()
        self.encoded_bytes = 0
        """How many bytes of JSON were written in all: grows with the new tokens, not with the prompts."""
        self.held_bytes = 0
        """How many bytes the kept prompts take, a shared piece counted for each prompt."""

    def pieces(self, key: str, ids: Sequence[int]) -> list[bytes]:
        """The JSON of `ids`. What one of the last prompts of this `key` began with too is not written again.

        Raises:
            ModelError: something among `ids` is no id.
        """
        prompt = _as_array(ids)
        line = self._line_for(prompt, key)
        self._kept[line] = key
        self._kept.move_to_end(line)
        before = line.size
        self.encoded_bytes += line.grow(prompt)
        self.held_bytes += line.size - before
        pieces = list(line.pieces)
        while self.held_bytes > self._limit_bytes:
            self._drop(next(iter(self._kept)))
        return pieces

    def _drop(self, line: "_Line") -> None:
        key = self._kept.pop(line)
        self.held_bytes -= line.size
        self._lines[key].remove(line)
        if not self._lines[key]:
            del self._lines[key]

    def _line_for(self, prompt: "array[int]", key: str) -> "_Line":
        """The line for `prompt`, as the last of its key: the longest that it goes on, or a new one that leaves it."""
        lines = self._lines.setdefault(key, [])
        best, shared = None, 0
        for line in lines:
            count = line.shared_pieces(prompt)
            length, longest = line.length(count), 0 if best is None else best.length(shared)
            if length > longest or (length == longest and count == len(line.pieces)):
                best, shared = line, count
        if best is not None and shared == len(best.pieces):
            lines.remove(best)
            lines.append(best)
            return best
        line = _Line() if best is None else best.fork(shared)
        self.held_bytes += line.size
        if len(lines) == _LINES:
            self._drop(lines[0])
        lines.append(line)
        return line


class _Line:
    __slots__ = ("ids", "pieces", "size", "stops")

    def __init__(self) -> None:
        self.ids: array[int] = array("i")
        self.pieces: list[bytes] = []  # each but the first begins with a comma
        self.stops: list[int] = []  # where in `ids` each piece ends
        self.size = _LINE_BYTES

    def length(self, count: int) -> int:
        """How many ids the first `count` pieces are of."""
        return self.stops[count - 1] if count else 0

    def shared_pieces(self, prompt: "array[int]") -> int:
        """How many of the pieces, from the first on, `prompt` begins with."""
        known = len(self.ids)
        if known <= len(prompt) and prompt[:known] == self.ids:  # as quick as comparing memory
            return len(self.pieces)
        count, start = 0, 0
        for stop in self.stops:
            if stop > len(prompt) or prompt[start:stop] != self.ids[start:stop]:
                break
            count, start = count + 1, stop
        return count

    def fork(self, count: int) -> "_Line":
        """A new line of the first `count` pieces."""
        line = _Line()
        line.ids, line.pieces, line.stops = self.ids[: self.length(count)], self.pieces[:count], self.stops[:count]
        line.size += 4 * len(line.ids) + sum(map(len, line.pieces)) + _PIECE_BYTES * count
        return line

    def grow(self, prompt: "array[int]") -> int:
        """Go on to the end of `prompt`, which begins with this line; how many bytes had to be written for it."""
        written, known = 0, len(self.ids)
        for start in range(known, len(prompt), _PIECE_IDS):
            new = prompt[start : start + _PIECE_IDS]
            piece = b",%d" * len(new) % tuple(new)
            if not start:
                piece = piece[1:]
            self.pieces.append(piece)
            self.stops.append(start + len(new))
            self.size += 4 * len(new) + len(piece) + _PIECE_BYTES
            written += len(piece)
        self.ids.extend(prompt[known:])
        return written


def _as_array(ids: Sequence[int]) -> "array[int]":
    if isinstance(ids, TokenView):  # what rollouts hand in: checked when it was recorded
        return ids.since(0)
    for position, token_id in enumerate(ids):
        kind: object = type(token_id)
        if kind is not int or not 0 <= token_id < 2**31:
            raise ModelError(f"prompt_ids[{position}] must be a whole number >= 0 and < 2**31, found {token_id!r}")
    return array("i", ids)
