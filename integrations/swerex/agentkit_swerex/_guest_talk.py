"""The guest's side of the exchanges: requests come in by one FIFO, each answer goes out by one of its own."""

import contextlib
import fcntl
import json
import os
import select
import time
from typing import Any

PIECE = 262_144


class Talk:
    """Requests, counted, and the answer to the last one, which is kept until the next request comes."""

    def __init__(self, directory: str, epoll: select.epoll) -> None:
        self.directory = directory
        self.epoll = epoll
        self.incoming = os.open(f"{directory}/in", os.O_RDWR | os.O_NONBLOCK)
        self.epoll.register(self.incoming, select.EPOLLIN)
        self.outgoing = -1
        self.heard = time.monotonic()
        self._buffer = bytearray()
        self._seq = 0
        self._reply = b""
        self.left: memoryview | None = None
        self.make_way(1)

    def make_way(self, seq: int) -> None:
        """Make the FIFO of the next answer before this one is given: whoever asks next finds it."""
        with contextlib.suppress(FileExistsError):
            os.mkfifo(f"{self.directory}/out.{seq}", 0o600)

    def hear(self) -> list[dict[str, Any]]:
        """The new requests. A line that was cut short is none; one that came before is answered as before."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.incoming, 65536):
                self._buffer += data
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        found: list[dict[str, Any]] = []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                asked = self._read(line) if line.strip() else {"seq": -1}
                if asked["seq"] == self._seq and self._reply:
                    self.stop()
                    self.left = memoryview(self._reply)
                elif asked["seq"] == self._seq + 1:
                    self.stop()
                    self._seq, self._reply, self.heard = asked["seq"], b"", time.monotonic()
                    with contextlib.suppress(OSError):  # a late copy of the request before must not wait for an answer
                        os.unlink(f"{self.directory}/out.{self._seq - 1}")
                    found.append(asked)
        return found

    def _read(self, line: bytes) -> dict[str, Any]:
        if line.startswith(b"@"):  # too long for a command line
            path = os.path.join(self.directory, os.path.basename(line[1:].decode()))
            with open(path, "rb") as file:
                line = file.read()
        asked: dict[str, Any] = json.loads(line)
        self.heard = time.monotonic()
        return asked

    def answer(self, body: dict[str, Any]) -> None:
        """Answer the last request."""
        self._reply = json.dumps({"seq": self._seq, **body}, separators=(",", ":")).encode()
        self.left = memoryview(self._reply)
        self.make_way(self._seq + 1)
        with contextlib.suppress(OSError):
            os.unlink(f"{self.directory}/p.{self._seq}")

    def open_way(self) -> None:
        """Open the answer's FIFO, which works once somebody reads it."""
        with contextlib.suppress(OSError):
            self.outgoing = os.open(f"{self.directory}/out.{self._seq}", os.O_WRONLY | os.O_NONBLOCK)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.outgoing, fcntl.F_SETPIPE_SZ, 1 << 20)
            self.epoll.register(self.outgoing, select.EPOLLOUT)

    def deliver(self) -> None:
        """Write what is left of the answer, as far as it goes."""
        try:
            while self.left:
                self.left = self.left[os.write(self.outgoing, self.left[:PIECE]) :]
        except BlockingIOError:
            return
        except OSError:
            pass  # nobody reads it any more; it may be asked for again
        self.stop()

    def stop(self) -> None:
        """Deliver nothing more for now."""
        if self.outgoing >= 0:
            self.epoll.unregister(self.outgoing)
            os.close(self.outgoing)
            self.outgoing = -1
        self.left = None
