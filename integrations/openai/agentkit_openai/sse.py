"""Server-sent events, decoded as they arrive, however the stream was cut into pieces."""

from agentkit.errors import ModelError

_BOM = b"\xef\xbb\xbf"


class SSEDecoder:
    """Collects bytes and gives the data of each event that has become whole.

    Of an event only its `data` lines are kept, joined by newlines; names, ids, retry hints and comments are read and
    dropped, and an event without data is none. An event that the stream cuts off is never given. Holds at most
    `limit_bytes` of an unfinished event, and costs O(bytes fed) whatever the pieces.
    """

    __slots__ = ("_after_cr", "_fresh", "_limit_bytes", "_pending")

    def __init__(self, *, limit_bytes: int = 4 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._pending = bytearray()
        self._after_cr = False
        self._fresh = True

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that end in `data`, in order.

        Raises:
            ModelError: an event is larger than `limit_bytes`.
        """
        if self._after_cr and data:
            self._after_cr = False
            if data.startswith(b"\n"):  # the second half of a \r\n
                data = data[1:]
        if b"\r" in data:  # three line ends are allowed: after this there is one
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pending = self._pending
        searched = max(len(pending) - 1, 0)
        pending += data
        end = pending.rfind(b"\n\n", searched)
        events: list[bytes] = []
        if end >= 0:
            whole = bytes(pending[:end])
            del pending[: end + 2]
            for block in whole.split(b"\n\n"):
                self._read(block, events)
        if len(pending) > self._limit_bytes + 1:  # the newline that ends its last line is not counted
            raise self._too_large()
        return events

    def _read(self, block: bytes, events: list[bytes]) -> None:
        block = block.strip(b"\n")
        if len(block) > self._limit_bytes:
            raise self._too_large()
        if self._fresh and block:
            self._fresh = False
            block = block.removeprefix(_BOM)
        if block.startswith(b"data: ") and b"\n" not in block:  # what servers send, nearly always
            events.append(block[6:])
            return
        lines: list[bytes] = []
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            if name == b"data":
                lines.append(value.removeprefix(b" "))
        if lines:
            events.append(b"\n".join(lines))

    def _too_large(self) -> ModelError:
        return ModelError(f"the server sent an event of more than {self._limit_bytes} bytes")
