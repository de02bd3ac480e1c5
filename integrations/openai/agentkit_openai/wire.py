"""The JSON of prompts, kept per trajectory so that a longer prompt costs its new tokens only.

A prompt of 128k ids takes some 10 ms to write as JSON and 0.04 ms to compare with the one before. So each prompt is
compared with what is kept under its key, whatever the caller says is new: a retry, a fork, a rewritten history under
the same key then costs time and never sends wrong ids.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from agentkit.errors import ConfigError, ModelError
from agentkit.tokens import TokenView

_ENTRY_BYTES = 400  # the objects around an entry
_PIECE_BYTES = 120  # and around each of its pieces


class PromptWire:
    """Ids to JSON, as pieces whose concatenation is the inside of a JSON list: `1,2,3`.

    Holds at most `limit_bytes`; what was asked for longest ago goes first.
    """

    __slots__ = ("_entries", "_limit_bytes", "encoded_bytes", "held_bytes")

    def __init__(self, *, limit_bytes: int = 256 << 20) -> None:
        if limit_bytes < 0:
            raise ConfigError(f"wire_cache_bytes must be >= 0, found {limit_bytes!r}")
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.encoded_bytes = 0
        """How many bytes of JSON were written in all: grows with the new tokens, not with the prompts."""
        self.held_bytes = 0
        """How many bytes the kept prompts take."""

    def pieces(self, key: str, ids: Sequence[int]) -> list[bytes]:
        """The JSON of `ids`. What the last prompt of this `key` began with too is not written again.

        Raises:
            ModelError: something among `ids` is no id.
        """
        prompt = _as_array(ids)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            self.held_bytes += entry.size
        else:
            self._entries.move_to_end(key)
        before = entry.size
        self.encoded_bytes += entry.grow(prompt)
        self.held_bytes += entry.size - before
        pieces = list(entry.pieces)
        while self.held_bytes > self._limit_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.held_bytes -= oldest.size
        return pieces


class _Entry:
    __slots__ = ("ids", "pieces", "size", "stops")

    def __init__(self) -> None:
        self.ids: array[int] = array("i")
        self.pieces: list[bytes] = []  # each but the first begins with a comma
        self.stops: list[int] = []  # where in `ids` each piece ends
        self.size = _ENTRY_BYTES

    def grow(self, prompt: "array[int]") -> int:
        """Make this the entry of `prompt`; how many bytes had to be written for it."""
        known = len(self.ids)
        if known > len(prompt) or prompt[:known] != self.ids:
            self._cut(prompt)
            known = len(self.ids)
        new = prompt[known:]
        if not new:
            return 0
        piece = b",%d" * len(new) % tuple(new)
        if not known:
            piece = piece[1:]
        self.ids.extend(new)
        self.pieces.append(piece)
        self.stops.append(len(self.ids))
        self.size += 4 * len(new) + len(piece) + _PIECE_BYTES
        return len(piece)

    def _cut(self, prompt: "array[int]") -> None:
        """Keep the pieces that `prompt` begins with too."""
        kept, start = 0, 0
        for stop in self.stops:
            if stop > len(prompt) or prompt[start:stop] != self.ids[start:stop]:
                break
            kept, start = kept + 1, stop
        self.size -= sum(map(len, self.pieces[kept:])) + _PIECE_BYTES * (len(self.pieces) - kept)
        self.size -= 4 * (len(self.ids) - start)
        del self.ids[start:], self.pieces[kept:], self.stops[kept:]


def _as_array(ids: Sequence[int]) -> "array[int]":
    if isinstance(ids, TokenView):  # what rollouts hand in: checked when it was recorded
        return ids.since(0)
    for position, token_id in enumerate(ids):
        kind: object = type(token_id)
        if kind is not int or not 0 <= token_id < 2**31:
            raise ModelError(f"prompt_ids[{position}] must be a whole number >= 0 and < 2**31, found {token_id!r}")
    return array("i", ids)
