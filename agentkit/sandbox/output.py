"""The part of an unbounded output stream that is kept: its head and its tail. Sans-IO."""

from collections import deque

from agentkit.protocols.sandbox import OutputCap


class OutputRing:
    """Takes any number of bytes in memory O(cap)."""

    def __init__(self, cap: OutputCap) -> None:
        self._cap = cap
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._cap.head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        data = data[max(0, len(data) - self._cap.tail_bytes) :]
        if not data:
            return
        if self._tail and len(self._tail[-1]) < 4096:  # many small pieces must not cost an object each
            self._tail_bytes -= len(self._tail[-1])
            data = self._tail.pop() + data
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._cap.tail_bytes:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether bytes between head and tail were let go."""
        return self.total_bytes > len(self._head) + self._cap.tail_bytes

    def text(self) -> bytes:
        """What was kept; where something was let go, a line between head and tail says how much."""
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._cap.tail_bytes) :]
        if not self.truncated:
            return bytes(self._head) + tail
        dropped = self.total_bytes - len(self._head) - len(tail)
        return bytes(self._head) + f"\n[... {dropped} bytes left out ...]\n".encode() + tail
