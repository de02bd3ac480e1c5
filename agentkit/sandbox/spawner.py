"""The event loop's side of the spawner process: ask for a process, hear of its end, kill it.

Every process has a channel of its own, read by whoever waits for it, so there is no background task and nothing to
demultiplex. The spawner is forked from the thread that runs the event loop. Should that thread end while the process
lives, the spawner sees that its parent is still there and stays; when the parent dies it gets the death signal, or the
end of the main socket, whichever comes first. Both are needed: a child that the caller forked without exec keeps the
socket open, and a caller's thread may end.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
from anyio.lowlevel import RunVar, checkpoint
from attrs import define, field, frozen

from agentkit.errors import InvariantError, SandboxDead, SandboxError
from agentkit.sandbox.leaks import MARKER, owner
from agentkit.sandbox.place import Kept as Kept
from agentkit.sandbox.place import Place as Place
from agentkit.sandbox.place import Process as Process
from agentkit.sandbox.place import Program as Program
from agentkit.sandbox.place import StartFailed as StartFailed

CLOSE_S = 5.0


async def readable(poll: select.epoll) -> list[tuple[int, int]]:
    """The events of `poll`, which is a descriptor that can itself be waited for; always a checkpoint."""
    events = poll.poll(0)
    if events:
        await checkpoint()
        return events
    while not events:
        await anyio.wait_readable(poll)
        events = poll.poll(0)
    return events


@define(eq=False)
class Spawned:
    """A process the spawner started for us. Closing it kills it."""

    pid: int
    channel: socket.socket
    exit_code: int | None = None
    lost: bool = False
    """The spawner is gone, and the process with it."""
    signalled: int | None = None

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or self.lost

    def fileno(self) -> int:
        return self.channel.fileno()

    def poll(self) -> bool:
        """Take what the spawner has said; whether the process has ended."""
        while not self.ended and self.channel.fileno() >= 0:
            try:
                data = self.channel.recv(4096)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.lost = True
            else:
                said = json.loads(data)
                self.exit_code = said.get("exit", self.exit_code)
                self.signalled = said.get("signalled", self.signalled)
        return self.ended

    def kill(self, number: int = signal.SIGKILL, *, since: int | None = None, itself: bool = True) -> None:
        """Signal what the process has started, since a `boot_ticks` where given, and itself where asked."""
        self.signalled = None
        self._tell({"op": "kill", "signal": number, "since": since, "itself": itself})

    def count(self, since: int) -> None:
        """Ask how many processes `kill` would reach; the answer comes as `signalled`."""
        self.kill(0, since=since, itself=False)

    def end(self) -> None:
        """Kill the process and all it holds."""
        self._tell({"op": "end"})

    def _tell(self, body: dict[str, Any]) -> None:
        try:
            self.channel.send(json.dumps(body).encode())
        except OSError:
            self.poll()  # the spawner is gone, or has said all it had to say

    async def gone(self) -> None:
        """Wait until it has ended. Cancellation: the process goes on."""
        while not self.poll():
            await anyio.wait_readable(self.channel)

    def close(self) -> None:
        """Let go of the process; the spawner kills it if it still runs."""
        self.channel.close()


def boot_ticks() -> int:
    """Now, in the unit and epoch of process start times in /proc."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) / tick_s())


def tick_s() -> float:
    """The unit of process start times, some 0.01 s."""
    return 1.0 / os.sysconf("SC_CLK_TCK")


async def request(
    main: socket.socket, op: str, program: Program | None, fds: Mapping[int, int], *, enter: int | None = None
) -> Spawned:
    """Ask the spawner behind `main` for a process.

    Raises:
        StartFailed: it could not be started.
        SandboxDead: the spawner is gone.
    Cancellation: what was started is killed by the spawner, unseen.
    """
    body: dict[str, Any] = {"op": op, "targets": list(fds), "enter": enter}
    if program is not None:
        body |= {"argv": program.argv, "env": dict(program.env), "cwd": program.cwd, **program.options}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    try:
        memory = os.memfd_create("agentkit", os.MFD_CLOEXEC)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    try:
        _write_all(memory, json.dumps(body).encode())
        while True:
            try:
                socket.send_fds(main, [b"r"], [memory, theirs.fileno(), *fds.values()])
                break
            except BlockingIOError:
                await anyio.wait_writable(main)
        theirs.close()
        while True:
            try:
                data = ours.recv(65536)
                break
            except BlockingIOError:
                await anyio.wait_readable(ours)
        if not data:
            raise SandboxDead("the spawner process is gone", retryable=True)
        answer = json.loads(data)
        if "error" in answer:
            raise StartFailed(answer["error"], answer["stage"], answer["errno"])
    except BaseException as error:
        ours.close()
        if isinstance(error, OSError):
            raise SandboxDead("the spawner process is gone", retryable=True) from error
        raise
    finally:
        theirs.close()
        os.close(memory)
    return Spawned(answer["pid"], ours)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


Kind = Literal["sandboxes", "clients"]


class Spawner:
    """A spawner process of an event loop. It ends when its last user lets go.

    There is one for `sandboxes`, the parent of all that is left parentless below it, and one for `clients`, command
    line tools that leave daemons behind on purpose: those are not ours to adopt or kill.
    """

    def __init__(self, kind: Kind = "sandboxes") -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.main = ours
        self._home = os.getpid()
        self._users = 0
        self._closed = False
        script = str(Path(__file__).with_name("_spawner_main.py"))
        inherited = os.dup(theirs.fileno())
        try:
            os.set_inheritable(inherited, True)
            environment = {"PATH": os.defpath, MARKER: f"{owner()}-spawner"}
            argv = [sys.executable, "-I", "-S", script, str(inherited), *(["--no-adopt"] if kind == "clients" else [])]
            null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)
            self.pid = os.posix_spawn(sys.executable, argv, environment, file_actions=[null])
        except OSError as error:
            ours.close()
            raise SandboxError(f"the spawner process could not be started: {error}") from error
        finally:
            os.close(inherited)
            theirs.close()
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            ours.close()  # which ends it
            os.waitpid(self.pid, 0)
            raise SandboxError(f"the spawner process could not be started: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether requests can be answered: it runs, and we are the process that started it."""
        if self._closed or os.getpid() != self._home:
            return False
        try:  # a dying process closes its sockets some time before it has ended
            return self.main.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def hold(self) -> None:
        """Count one more user."""
        self._users += 1

    async def release(self) -> None:
        """Count one user less; the last one ends the process and waits for it, at most `CLOSE_S` seconds.

        Cancellation: shielded.
        """
        self._users -= 1
        if self._users < 0:
            raise InvariantError("a spawner was released more often than held")
        if self._users or self._closed:
            return
        self._closed = True
        self.main.close()
        if os.getpid() != self._home:
            return
        with anyio.move_on_after(CLOSE_S, shield=True) as scope:
            await anyio.wait_readable(self._pidfd)
        if scope.cancelled_caught:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)  # noqa: ASYNC222  # it has ended, or was just killed
        os.close(self._pidfd)


_CURRENT: dict[Kind, RunVar[Spawner]] = {
    "sandboxes": RunVar("agentkit_spawner"),
    "clients": RunVar("agentkit_client_spawner"),
}


def hold_spawner(kind: Kind = "sandboxes") -> Spawner:
    """The event loop's spawner, started if there is none, held once for the caller.

    Raises:
        SandboxError: it could not be started.
    """
    current = _CURRENT[kind]
    spawner = current.get(None)
    if spawner is None or not spawner.alive:
        spawner = Spawner(kind)
        current.set(spawner)
    spawner.hold()
    return spawner


class MemoryFile:
    """A `Kept` of places on this machine's kernel, which take a descriptor."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("agentkit", os.MFD_CLOEXEC)
        os.fchmod(self._fd, 0o666)

    def give(self, program: Program, fds: dict[int, int], target: int) -> Program:
        """As `Kept.give`."""
        fds[target] = os.dup(self._fd)
        return program

    async def read(self) -> bytes:
        """As `Kept.read`."""
        content = b""
        while piece := os.pread(self._fd, 1 << 20, len(content)):
            content += piece
        return content

    def close(self) -> None:
        """As `Kept.close`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalPlace:
    """What places below a spawner have in common."""

    takes_descriptors = True

    def pipe(self, fds: dict[int, int], target: int, *, ours_writes: bool = False) -> int:
        """As `Place.pipe`."""
        reading, writing = os.pipe()
        near, far = (writing, reading) if ours_writes else (reading, writing)
        fds[target] = far
        return near

    def keep(self) -> Kept:
        """As `Place.keep`."""
        return MemoryFile()


@frozen(eq=False)
class HostPlace(LocalPlace):
    """The host, below the spawner behind `main`: that of a sandbox without isolation, or that of clients."""

    main: socket.socket

    async def spawn(self, program: Program, fds: Mapping[int, int]) -> Process:
        return await request(self.main, "spawn", program, fds)


@frozen(eq=False)
class InnerPlace(LocalPlace):
    """The inside of the namespaces that `holder` (a bwrap) keeps."""

    spawner: Spawner
    holder: int
    options: Mapping[str, Any] = field(factory=dict)

    async def spawn(self, program: Program, fds: Mapping[int, int]) -> Process:
        merged = Program(program.argv, program.env, program.cwd, {**program.options, **self.options})
        return await request(self.spawner.main, "spawn", merged, fds, enter=self.holder)


def as_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """`argv` checked to be something that can be executed.

    Raises:
        SandboxError: it is empty or holds a NUL.
    """
    if not argv or isinstance(argv, str):
        raise SandboxError(f"argv must be a non-empty sequence of strings, found {argv!r}")
    for word in argv:
        if "\0" in word:
            raise SandboxError(f"argv holds a NUL: {word!r}")
    return tuple(argv)
