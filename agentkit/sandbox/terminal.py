"""A program on a terminal of its own, for those that draw or ask: editors, pagers, debuggers, prompts.

The terminal is a pair of descriptors: the far one is the program's standard input, output and error, and the
controlling terminal of its session; what it writes comes out of the near one and goes to a screen in memory, never to
a terminal of ours. Nobody reads while nobody asks, so that a program that floods waits, as it would for a slow
terminal.
"""

import os
import pty
import select
import signal
import termios
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import anyio
from anyio.lowlevel import checkpoint
from attrs import evolve

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols.sandbox import Screen
from agentkit.sandbox.execution import KILL_S
from agentkit.sandbox.screen import Emulator
from agentkit.sandbox.spawner import Place, Process, Program, StartFailed, as_argv, boot_ticks, readable

KIND = "linux"
"""The terminal that programs are told they have: few sequences, all of them drawn."""
CHUNK = 4096
MOST_BYTES = 1 << 20
"""What one `read` takes from a program that never pauses."""
SEND_S = 5.0
KILLED = 128 + signal.SIGKILL
_LARGEST = 500


class PtyTerminal:
    """A program on a terminal, as `Terminal` has it; made by `open_terminal`.

    `read` returns early from a program that writes without pause, after 1 MiB: what it wrote since then waits.
    """

    def __init__(
        self, process: Process, near: int, emulator: Emulator, since: int, check: Callable[[], None] | None
    ) -> None:
        self._check_sandbox = check
        self._process = process
        self._near = near
        self._emulator = emulator
        self._since = since
        self._lock = anyio.Lock()
        self._closed = False
        self._drained = False
        os.set_blocking(near, False)
        self._poll = select.epoll()
        self._poll.register(near, select.EPOLLIN)
        self._poll.register(process.fileno(), select.EPOLLIN)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def send(self, keys: str, /) -> None:
        """As `Terminal.send`.

        Raises:
            SandboxError: the program has ended, or takes no more input.
            SandboxDead: the terminal or its sandbox is closed.
        Cancellation: a part may have been typed.
        """
        async with self._lock:
            self._check()
            left = memoryview(keys.encode("utf-8", "surrogateescape"))
            with anyio.move_on_after(SEND_S):
                while left and not self._over():
                    try:
                        left = left[os.write(self._near, left) :]
                    except BlockingIOError:  # it may be waiting for us to read what it writes
                        await self._take(events=select.EPOLLIN | select.EPOLLOUT)
                    except OSError:
                        break
            self._check_place()
            if left:
                why = "has ended" if self._over() else f"took no more input for {SEND_S:g} s"
                raise SandboxError(f"{len(left)} of {len(keys.encode('utf-8', 'surrogateescape'))} bytes could not be "
                                   f"typed: the program {why}")  # fmt: skip
            await checkpoint()

    async def read(self, *, settle_s: float = 0.2, timeout_s: float = 5.0) -> Screen:
        """As `Terminal.read`; at once where the program has ended.

        Raises:
            SandboxDead: the terminal or its sandbox is closed.
        Cancellation: nothing of what was written is lost.
        """
        async with self._lock:
            self._check()
            taken = 0
            with anyio.move_on_after(timeout_s):
                while taken < MOST_BYTES and not self._over():
                    with anyio.move_on_after(settle_s) as quiet:
                        taken += await self._take()
                    if quiet.cancelled_caught:
                        break
            self._check_place()
            code = self._process.exit_code if self._over() else None
            return Screen(self._emulator.lines, self._emulator.cursor, code)

    async def close(self) -> None:
        """As `Terminal.close`. Cancellation: shielded, some 2 s at most."""
        if self._closed:
            return
        self._closed = True
        self._process.kill(signal.SIGKILL, since=self._since)
        with anyio.move_on_after(KILL_S, shield=True):
            await self._process.gone()
            async with self._lock:  # who waits for the program hears of its end
                pass
        self._poll.close()
        os.close(self._near)
        self._process.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _check(self) -> None:
        if self._closed:
            raise SandboxDead("the terminal is closed")

    def _check_place(self) -> None:
        """A program that ended, or was killed, may have been taken along by its sandbox."""
        if self._process.lost:
            raise SandboxDead("the sandbox is gone")
        if self._process.exit_code == KILLED and self._check_sandbox is not None:
            self._check_sandbox()

    def _over(self) -> bool:
        """Whether the program has ended and all it wrote is on the screen."""
        return self._process.poll() and (self._drained or not self._waiting())

    def _waiting(self) -> bool:
        poll = select.poll()
        poll.register(self._near, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    async def _take(self, *, events: int = select.EPOLLIN) -> int:
        """Wait until there is something to read (or room to write), and put it on the screen."""
        if not self._drained:
            self._poll.modify(self._near, events)
        for fd, _ in await readable(self._poll):
            if fd == self._near:
                return self._draw()
            if self._process.poll():
                self._poll.unregister(fd)
        return 0

    def _draw(self) -> int:
        try:
            data = os.read(self._near, CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # EIO: nobody has the far end any more
            data = b""
        if not data:
            self._drained = True
            self._poll.unregister(self._near)
        self._emulator.feed(data)
        return len(data)


async def open_terminal(
    place: Place,
    program: Program,
    *,
    rows: int = 24,
    columns: int = 80,
    check: Callable[[], None] | None = None,
) -> PtyTerminal:
    """Start `program` on a terminal in `place`; the caller closes it. `check` raises where the sandbox is gone.

    Raises:
        ConfigError: it would be too small or too large, or the place has no terminals.
        MissingExtraError: the extra `terminal` is not installed.
        SandboxError: the program could not be started.
        SandboxDead: the sandbox is gone.
    Cancellation: nothing is left running.
    """
    sizes: tuple[tuple[str, object], ...] = (("rows", rows), ("columns", columns))
    for name, value in sizes:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise ConfigError(f"{name} must be a whole number from 1 to {_LARGEST}, found {value!r}")
    if not place.takes_descriptors:
        raise ConfigError("sandboxes of this back end have no terminals: run the program by run or exec")
    emulator = Emulator(rows, columns)
    since = boot_ticks()
    near, far = pty.openpty()
    try:
        termios.tcsetwinsize(near, (rows, columns))
        started = evolve(program, options={**program.options, "terminal": True})
        process = await place.spawn(started, {0: far, 1: far, 2: far})
    except BaseException as error:
        os.close(near)
        if not isinstance(error, StartFailed):
            raise
        if error.stage == "enter":
            raise SandboxDead(f"the sandbox is gone: {error}") from error
        raise SandboxError(f"cannot run {program.argv[0]!r} in {program.cwd[0]!r} on a terminal: {error}") from error
    finally:
        os.close(far)
    return PtyTerminal(process, near, emulator, since, check)


def terminal_program(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, extra: Mapping[str, str] | None = None
) -> Program:
    """The program to start on a terminal: it is told which kind of terminal it has.

    Raises:
        SandboxError: `argv` is empty or holds a NUL.
    """
    return Program(as_argv(argv), {**env, "TERM": KIND, **(extra or {})}, (cwd,))
