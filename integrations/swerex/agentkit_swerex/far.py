"""The far ends of one program's descriptors: what it prints is written here, what it is to read is read here."""

import asyncio
import base64
import fcntl
import json
import os
import signal
import socket
import stat
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

PIECE = 1 << 20
UNREAD_S = 0.1
Item = list[Any]


class Far:
    """One program in the sandbox, as the other side of its pipes and of its channel on this machine.

    `tell` takes what is to be said to the guest, `held` hears how many bytes more, or less, wait here for their reader.
    """

    def __init__(
        self,
        number: int,
        channel: socket.socket,
        fds: Mapping[int, int],
        *,
        tell: Callable[[Item], None],
        held: Callable[[int], None],
        wake: Callable[[], None],
    ) -> None:
        self.number = number
        self.kinds: list[str | int] = []
        self.started: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._tell, self._held, self._wake = tell, held, wake
        self._ins: dict[int, int] = {}
        self._outs: dict[int, int] = {}
        self._files: dict[int, int] = {}
        self._ready: set[int] = set()
        self._queue: deque[tuple[str, int, Any]] = deque()
        self._stuck: int | None = None
        self.ended = False
        self.closed = False
        seen: dict[int, int] = {}
        for index, (target, fd) in enumerate(fds.items()):
            if fd in seen:
                self.kinds.append(seen[fd])
                continue
            seen[fd] = index
            self.kinds.append(self._adopt(target, fd))
        self._loop.add_reader(channel.fileno(), self._hear)

    def _adopt(self, target: int, fd: int) -> str:
        own = os.dup(fd)
        if stat.S_ISREG(os.fstat(own).st_mode):
            if target != 0:
                self._files[target] = own
                return "file"
            self._ins[target] = own
            self._ready.add(target)
            return "in"
        if fcntl.fcntl(own, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            os.set_blocking(own, False)
            self._outs[target] = own
            return "out"
        os.set_blocking(own, False)
        self._ins[target] = own
        self._watch(target)
        return "in"

    @property
    def has_input(self) -> bool:
        """Whether there is something to read for the program, as far as is known."""
        return bool(self._ready)

    def take_input(self, room: int) -> list[Item]:
        """What the program is to read next, at most about `room` bytes."""
        items: list[Item] = []
        for target in sorted(self._ready):
            try:
                data = os.read(self._ins[target], min(PIECE, room))
            except BlockingIOError:
                self._ready.discard(target)
                self._watch(target)
                continue
            except OSError:
                data = b""
            if data:
                items.append(["in", self.number, target, base64.b64encode(data).decode()])
            else:
                items.append(["shut", self.number, target])
                self._ready.discard(target)
                os.close(self._ins.pop(target))
        return items

    def _watch(self, target: int) -> None:
        self._loop.add_reader(self._ins[target], self._readable, target)

    def _readable(self, target: int) -> None:
        self._loop.remove_reader(self._ins[target])
        self._ready.add(target)
        self._wake()

    def _hear(self) -> None:
        while not self.closed:
            try:
                data = self._channel.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._tell(["forget" if self.ended else "drop", self.number])
                self.close()
                return
            said = json.loads(data)
            if said.get("signal") == signal.SIGKILL and said.get("itself"):
                self._loop.call_later(UNREAD_S, self._give_up_output)
            if isinstance(said.get("since"), int):
                self._tell(["since", self.number, said])  # a time of this machine: mapped when it is sent
            else:
                self._tell(["say", self.number, said])

    def add(self, verb: str, target: int, value: Any) -> None:
        """What the guest has to say of the program: `out`, `eof`, `file`, `said` or `lost`, in order."""
        if self.closed:  # nobody waits for it: kept, it would count as unread for good
            return
        if verb == "out":
            self._held(len(value))
        self._queue.append((verb, target, value))
        if self._stuck is None:
            self._flush()

    def _flush(self) -> None:
        while self._queue and not self.closed:
            verb, target, value = self._queue[0]
            if verb == "out" and target in self._outs:
                try:
                    written = os.write(self._outs[target], value)
                except BlockingIOError:
                    if self._stuck is None:
                        self._stuck = self._outs[target]
                        self._loop.add_writer(self._stuck, self._flush)
                    return
                except OSError:
                    self._tell(["deaf", self.number, target])
                    self._unstick()
                    os.close(self._outs.pop(target))
                    written = len(value)
                self._held(-written)
                if written < len(value):
                    self._queue[0] = (verb, target, value[written:])
                    continue
            elif verb == "out":
                self._held(-len(value))
            elif verb == "eof" and target in self._outs:
                self._unstick()
                os.close(self._outs.pop(target))
            elif verb == "file" and target in self._files:
                os.pwrite(self._files[target], value, 0)
            elif verb == "said":
                self._pass_on(value)
            elif verb == "lost":
                self.close()
                return
            if self._queue:  # closed on the way: nothing is left to pass on
                self._queue.popleft()
        self._unstick()

    def _give_up_output(self) -> None:
        """Let go of output of a killed program that nobody reads: its end must be heard of."""
        if not self.closed and self._stuck is not None:
            self._held(-sum(len(value) for verb, _, value in self._queue if verb == "out"))
            self._queue = deque(event for event in self._queue if event[0] != "out")
            self._flush()
        if not (self.closed or self.ended):
            self._loop.call_later(UNREAD_S, self._give_up_output)

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._loop.remove_writer(self._stuck)
            self._stuck = None

    def _pass_on(self, said: Mapping[str, Any]) -> None:
        if "pid" in said or "error" in said:
            self.ended = "error" in said
            if not self.started.done():
                self.started.set_result(said)
            return
        self.ended = self.ended or "exit" in said
        try:
            self._channel.send(json.dumps(said).encode())
        except OSError:
            self.close()

    def close(self) -> None:
        """Close every end on this side: who waits for the program learns that it is lost. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self._unstick()
        self._held(-sum(len(value) for verb, _, value in self._queue if verb == "out"))
        self._queue.clear()
        for target, fd in self._ins.items():
            if target not in self._ready:
                self._loop.remove_reader(fd)
        for fd in (*self._ins.values(), *self._outs.values(), *self._files.values()):
            os.close(fd)
        self._ins.clear()
        self._outs.clear()
        self._files.clear()
        self._ready.clear()
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        if not self.started.done():
            self.started.cancel()
