"""A request body in pieces: a subclass of one of aiohttp's, so imported only where a body is sent."""

from collections.abc import Iterator, Sequence

from agentkit.extras import require

require("aiohttp", extra="openai", purpose="agentkit_openai")  # before the imports that would fail without a word

from aiohttp.abc import AbstractStreamWriter  # noqa: E402
from aiohttp.payload import Payload  # noqa: E402

_WRITE_BYTES = 128 << 10


class PiecesPayload(Payload):
    """The concatenation of `pieces`, of known size, sent with few writes and never held as one text."""

    _autoclose = True

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The whole text."""
        return b"".join(self._pieces).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it."""
        for batch in self._batches():
            await writer.write(batch)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send all of it: its size is what was announced."""
        await self.write(writer)

    def _batches(self) -> Iterator[bytes]:
        batch: list[bytes] = []
        size = 0
        for piece in self._pieces:
            if size and size + len(piece) > _WRITE_BYTES:
                yield b"".join(batch)
                batch, size = [], 0
            batch.append(piece)
            size += len(piece)
        yield b"".join(batch)
