"""A bash that keeps directory, variables, functions and jobs between commands, whatever the commands do to it."""

import os
import secrets
import signal
import time
from collections.abc import Mapping

import anyio
from attrs import define, field

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.sandbox.execution import KILL_S, POLITE_S
from agentkit.sandbox.framing import (
    EXPORTS_FD,
    OUTPUT_FD,
    STATUS_FD,
    ShellState,
    Status,
    StatusReader,
    encode,
    frame,
    prelude,
)
from agentkit.sandbox.output import OutputRing
from agentkit.sandbox.pump import Pump
from agentkit.sandbox.spawner import Kept, Place, Process, Program, StartFailed, boot_ticks, tick_s

START_S = 30.0
_NEVER = 1 << 62  # later than any process starts: the signal is for the shell alone


@define(eq=False)
class _Running:
    """One command on its way: what it has said so far."""

    ring: OutputRing
    reader: StatusReader
    status: Status | None = None

    def on_status(self, data: bytes) -> None:
        self.status = self.reader.feed(data) or self.status


@define(eq=False)
class ShellSession:
    """One session. Commands run one at a time, in the order asked; a shell that died is replaced at the next one.

    A fresh shell gets directory and exported variables as they were when the last command ended.
    """

    place: Place
    directory: str
    env: Mapping[str, str]
    closed: bool = False
    _state: ShellState | None = None
    _pump: Pump | None = None
    _ended_ticks: int = -1
    _exports: Kept | None = None
    _carried: bytes = b""
    """What the last shell exported, until the next one has taken it over."""
    _lock: anyio.Lock = field(factory=lambda: anyio.Lock(fast_acquire=True))

    async def start(self) -> None:
        """Start the shell now rather than at the first command.

        Raises:
            SandboxError: the shell could not be started.
        Cancellation: no shell is left.
        """
        async with self._lock:
            if self._pump is None:
                await self._start()

    async def run(self, command: str, *, timeout_s: float | None, cap: OutputCap) -> ExecResult:
        """Run one command.

        Raises:
            SandboxDead: the sandbox is gone.
            SandboxError: the command cannot be written to a shell.
        Cancellation: the command and all it started are killed; the next one gets a fresh shell.
        """
        text = encode(command)
        async with self._lock:
            if self.closed:
                raise SandboxDead("the sandbox is closed")
            if self._pump is not None and self._pump.process.poll():  # a job killed it between commands
                self._drop()
            if self._pump is None:
                await self._start()
            return await self._command(text, timeout_s, cap)

    async def close(self) -> None:
        """Kill the shell and what it started. Cancellation: shielded, bounded."""
        self.closed = True
        if self._pump is not None:
            self._pump.process.kill()
        with anyio.move_on_after(KILL_S, shield=True):
            async with self._lock:
                self._drop()
        self._let_go_of_exports()

    def _let_go_of_exports(self) -> None:
        if self._exports is not None:
            self._exports.close()
            self._exports = None

    def _drop(self) -> None:
        if self._pump is not None:
            self._pump.close()
            self._pump = None

    async def _start(self) -> None:
        try:
            await self._start_one()
        except BaseException:
            self._drop()
            self._let_go_of_exports()
            raise
        self._carried = b""

    async def _start_one(self) -> None:
        state = self._state or ShellState(self.directory)
        exports = await self._take_exports()
        env = {} if exports else self.env  # a fresh shell takes over exactly what was exported, no more
        program = Program(("bash", "--noprofile", "--norc"), env, (state.directory, self.directory, "/"))
        far: dict[int, int] = {}
        near: list[int] = []
        process: Process | None = None
        try:
            near.append(self.place.pipe(far, 0, ours_writes=True))
            near.append(self.place.pipe(far, OUTPUT_FD))
            near.append(self.place.pipe(far, STATUS_FD))
            self._exports = self.place.keep()
            program = self._exports.give(program, far, EXPORTS_FD)
            process = await self.place.spawn(program, far)
            stdin, output, status = near
            self._pump = Pump(process, output=output, status=status, stdin=stdin)
        except BaseException as error:
            for fd in near:
                os.close(fd)
            if process is not None:
                process.close()
            if isinstance(error, StartFailed):
                raise SandboxDead(f"no shell can be started: {error}") from error
            raise
        finally:
            for fd in set(far.values()):
                os.close(fd)
        result = await self._command(prelude(state, exports), START_S, OutputCap(4096, 0))
        if result.died or result.timed_out:
            raise SandboxDead(f"a fresh shell did not answer: {result.text.strip()!r}")

    async def _take_exports(self) -> bytes:
        """What the last shell exported. The next one gets a fresh file, which an old one cannot write to."""
        if self._exports is not None:
            self._carried = await self._exports.read()
            self._let_go_of_exports()
        return self._carried

    async def _command(self, text: bytes, timeout_s: float | None, cap: OutputCap) -> ExecResult:
        pump = self._pump
        if pump is None:
            raise SandboxError("the session has no shell")
        if self._state is not None and self._state.has_jobs:
            # Jobs are told from this command's processes by their start time, which is counted in ticks.
            await anyio.sleep(max(0, self._ended_ticks + 1 - boot_ticks()) * tick_s())
        began, since = time.monotonic(), boot_ticks()
        word = f"k{secrets.token_hex(8)}"  # a letter first: printf would read digits into the escape before it
        state = self._state or ShellState(self.directory)
        running = _Running(OutputRing(cap), StatusReader(word, state))
        try:
            pump.send(frame(text, word, state))
            timed_out, ended_by = False, 0
            with anyio.move_on_after(timeout_s):
                await self._follow(pump, running)
            if running.status is None and not pump.process.ended:
                timed_out = True
                ended_by = await self._interrupt(pump, running, since)
            pump.drain(running.ring.feed)
        except BaseException:
            with anyio.move_on_after(KILL_S, shield=True):
                pump.process.kill(since=since)
                await pump.process.gone()
            self._drop()
            raise
        self._ended_ticks = boot_ticks()
        code, died = self._settle(pump, running)
        if timed_out and died:
            code = 128 + ended_by
        return ExecResult(
            code,
            running.ring.text(),
            running.ring.total_bytes,
            running.ring.truncated,
            timed_out,
            died,
            time.monotonic() - began,
        )

    async def _follow(self, pump: Pump, running: _Running) -> None:
        while running.status is None and not pump.process.ended:
            await pump.step(running.ring.feed, running.on_status)

    async def _interrupt(self, pump: Pump, running: _Running, since: int) -> int:
        """End the command, politely, then not. Returns the signal that did it.

        The shell is stopped first and killed last: let go on, it would run the rest of the command, `a; b` say, after
        its first part was ended. What the shell alone knew, functions and plain variables, is lost with it.
        """
        await pump.signal(signal.SIGSTOP, running.ring.feed, running.on_status, since=_NEVER)
        ended_by = signal.SIGKILL
        for number in (signal.SIGINT, signal.SIGTERM):
            if await self._ended(pump, running, since, number):
                ended_by = number
                break
        pump.process.kill(signal.SIGKILL, since=since)
        with anyio.move_on_after(KILL_S):
            while not pump.process.ended:
                await pump.step(running.ring.feed, running.on_status)
        return ended_by

    async def _ended(self, pump: Pump, running: _Running, since: int, number: int) -> bool:
        await pump.signal(number, running.ring.feed, running.on_status, since=since, itself=False)
        with anyio.move_on_after(POLITE_S):
            while not pump.process.ended:
                pump.process.count(since)
                while pump.process.signalled is None and not pump.process.ended:
                    await pump.step(running.ring.feed, running.on_status)
                if pump.process.signalled == 0:
                    return True
                with anyio.move_on_after(0.005):
                    await self._follow(pump, running)
        return False

    def _settle(self, pump: Pump, running: _Running) -> tuple[int, bool]:
        if running.status is not None:
            self._state = running.status.state
            return running.status.exit_code, False
        code = pump.process.exit_code
        self._drop()
        if self.closed or code is None:
            raise SandboxDead("the sandbox is gone")
        if self._state is not None:  # what the shell alone knew is lost
            self._state = ShellState(self._state.directory)
        return code, True
