"""Waiting for several descriptors at once without a task for each: output, status, input and the channel."""

import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable

import anyio

from agentkit.sandbox.spawner import Process, readable

CHUNK = 65536
BURST = 8
ARRIVAL_S = 2.0


class Pump:
    """One process's pipes. Owns the descriptors it is given and closes them."""

    def __init__(self, process: Process, *, output: int, status: int | None = None, stdin: int | None = None) -> None:
        self.process = process
        self.output = output
        self.status = status
        self.stdin = stdin
        self._pending = memoryview(b"")
        self._last = False
        self._source: int | None = None
        self._poll = select.epoll()
        self._polled: set[int] = set()
        for fd in (output, status):
            if fd is not None:
                os.set_blocking(fd, False)
                self._watch(fd)
        if stdin is not None:
            os.set_blocking(stdin, False)
        self._watch(process.fileno())

    def _watch(self, fd: int, events: int = select.EPOLLIN) -> None:
        if fd not in self._polled:
            self._poll.register(fd, events)
            self._polled.add(fd)

    def _forget(self, fd: int) -> None:
        if fd in self._polled:
            self._poll.unregister(fd)
            self._polled.discard(fd)

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Write `data` to standard input, what does not fit at once during `step`; then close it if `last`."""
        self._pending = memoryview(data)
        self._last = last
        self._write()

    def send_from(self, source: int) -> None:
        """Write what is read from `source`, a file that stays the caller's, to standard input; then close that."""
        self._source = source
        self.send(b"", last=True)

    def _write(self) -> None:
        if self.stdin is None:
            return
        try:
            for _ in range(BURST):
                if not self._pending and self._source is not None:
                    self._pending = memoryview(os.read(self._source, CHUNK))
                if not self._pending:
                    break
                while self._pending:
                    self._pending = self._pending[os.write(self.stdin, self._pending) :]
            else:
                if self._source is not None:
                    self._watch(self.stdin, select.EPOLLOUT)
                    return
        except BlockingIOError:
            self._watch(self.stdin, select.EPOLLOUT)
            return
        except BrokenPipeError:
            self._pending = memoryview(b"")
        self._source = None
        self._forget(self.stdin)
        if self._last:
            os.close(self.stdin)
            self.stdin = None

    async def step(self, on_output: Callable[[bytes], object], on_status: Callable[[bytes], object] | None) -> None:
        """Wait until something happens and deal with it; bounded work. A checkpoint."""
        for fd, _ in await readable(self._poll):
            if fd == self.stdin:
                self._write()
            elif fd == self.output:
                self._read(fd, on_output)
            elif fd == self.status and on_status is not None:
                self._read(fd, on_status)
            elif fd == self.process.fileno() and self.process.poll():
                self._forget(fd)

    async def signal(
        self,
        number: int,
        on_output: Callable[[bytes], object],
        on_status: Callable[[bytes], object] | None,
        *,
        since: int,
        itself: bool = True,
    ) -> None:
        """Send a signal and wait until it has arrived, at most `ARRIVAL_S` seconds: what time it leaves begins then."""
        self.process.kill(number, since=since, itself=itself)
        with anyio.move_on_after(ARRIVAL_S):
            while self.process.signalled is None and not self.process.ended:
                await self.step(on_output, on_status)

    def _read(self, fd: int, take: Callable[[bytes], object]) -> None:
        for _ in range(BURST):
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._forget(fd)
                return
            take(data)
            if len(data) < CHUNK:
                return

    def drain(self, on_output: Callable[[bytes], object]) -> None:
        """Take what is in the output pipe now, and no more: a daemon that keeps writing cannot hold us."""
        waiting = struct.unpack("i", fcntl.ioctl(self.output, termios.FIONREAD, b"\0\0\0\0"))[0]
        while waiting > 0:
            data = os.read(self.output, min(waiting, CHUNK))
            if not data:
                return
            on_output(data)
            waiting -= len(data)

    def release(self) -> None:
        """Close the pipes and let the process go on, watched by its channel alone."""
        self._close_pipes()

    def close(self) -> None:
        """Close everything; the spawner kills the process if it still runs."""
        self._close_pipes()
        self.process.close()

    def _close_pipes(self) -> None:
        self._poll.close()
        for fd in (self.output, self.status, self.stdin):
            if fd is not None and fd >= 0:
                os.close(fd)
        self.output = -1
        self.status = self.stdin = None


def pipe_for(places: "dict[int, int]", target: int, *, ours_writes: bool = False) -> int:
    """Make a pipe: the far end goes into `places` as descriptor `target`, the near end is returned."""
    reading, writing = os.pipe()
    near, far = (writing, reading) if ours_writes else (reading, writing)
    places[target] = far
    return near
