"""Frames that arrive once and in order over connections that break. Sans-IO.

Each side numbers what it sends and keeps it until the other has said that it came. On a new connection each says how
much it has received, and the other goes on from there.
"""

from collections import deque

from agentkit_remote.frames import CHUNK_BYTES, WireError

ACK_FRAMES = 16
ACK_BYTES = CHUNK_BYTES


class Lane:
    """Both directions of a session, as one side sees them."""

    def __init__(self) -> None:
        self.received = 0
        self.kept_bytes = 0
        """What is in memory because it was not acknowledged yet."""
        self._kept: deque[bytes] = deque()
        self._acknowledged = 0
        self._next = 0  # of `_kept`, on this connection
        self._sent = 0  # most of `_kept` that was ever handed to a connection
        self._since_frames = 0
        self._since_bytes = 0

    def push(self, message: bytes) -> None:
        """Take a message to be sent."""
        self._kept.append(message)
        self.kept_bytes += len(message)

    def pop(self) -> bytes | None:
        """The next message to send on this connection, kept until acknowledged; None where there is none now."""
        if self._next == len(self._kept):
            return None
        message = self._kept[self._next]
        self._next += 1
        self._sent = max(self._sent, self._next)
        return message

    def acknowledge(self, count: int) -> None:
        """The other side has received `count` frames in all.

        Raises:
            WireError: it cannot have.
        """
        news = count - self._acknowledged
        if not 0 <= news <= self._sent:
            last = self._acknowledged + self._sent
            raise WireError(f"{count} frames acknowledged: expected {self._acknowledged} to {last}")
        for _ in range(news):
            self.kept_bytes -= len(self._kept.popleft())
        self._acknowledged = count
        self._next = max(0, self._next - news)
        self._sent -= news

    def resume(self, count: int) -> None:
        """A new connection, on which the other side says that it has `count` frames: send the rest again.

        Raises:
            WireError: it cannot have.
        """
        self.acknowledge(count)
        self._next = 0

    def receive(self, size: int) -> bool:
        """Count a frame that came; whether it is time to acknowledge."""
        self.received += 1
        self._since_frames += 1
        self._since_bytes += size
        return self._since_frames >= ACK_FRAMES or self._since_bytes >= ACK_BYTES

    def acknowledged(self) -> int:
        """How many frames to acknowledge now."""
        self._since_frames = self._since_bytes = 0
        return self.received
