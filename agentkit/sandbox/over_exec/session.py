"""A shell and programs behind one call that runs a program: state, time limits and clean ends are kept inside."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import anyio
from attrs import define, field

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.sandbox.framing import ShellState, StatusReader, encode, prelude, quote
from agentkit.sandbox.leaks import MARKER
from agentkit.sandbox.output import OutputRing
from agentkit.sandbox.over_exec.script import NAME, SCRIPT
from agentkit.sandbox.over_exec.wire import Answer, AnswerReader, environment, request, shell_input

OPEN_S = 60.0
GRACE_S = 15.0
"""How long after a command's own limit its answer may still be on its way."""
KILL_S = 5.0
_ARGV = ("bash", "--noprofile", "--norc", "-c", SCRIPT, NAME)


class ExecChannel(Protocol):
    """The one thing a sandbox must be able to do: run a program, with input, and pass on its standard output."""

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        stdin: Iterable[bytes],
        on_output: Callable[[bytes], None],
        timeout_s: float | None,
    ) -> None:
        """Run `argv` in the image's environment, in any directory; return when its standard output has ended.

        Standard error may go anywhere; the exit code does not matter. `timeout_s` is when at the latest the program
        may be killed: it has a limit of its own, which is lower. Where output comes only at the end, that is fine.

        Raises:
            SandboxDead: the sandbox is gone.
            SandboxError: the program could not be run, or its output was lost.
        Cancellation: the program may go on; it is then killed by another one.
        """
        ...


@define(eq=False)
class ExecSession:
    """Programs, and one shell that keeps directory, variables, functions and jobs, over an `ExecChannel`.

    `env` comes on top of the image's environment. Commands of the shell run one at a time, in the order asked;
    programs run beside it. Each command costs one call of the channel, a fresh shell one more.

    `marker` is for a sandbox that shares its process ids with others (no namespace of its own): what a command left
    without a parent is then known by `AGENTKIT_SANDBOX=<marker>` in its environment, and nothing else is signalled.
    """

    channel: ExecChannel
    cwd: str
    env: Mapping[str, str]
    marker: str = ""
    closed: bool = False
    _directory: str = ""
    _jobs: int = 0
    _shells: int = 0
    _exports: int = 0
    """Which shell last wrote down what it exports."""
    _has_shell: bool = False
    _state: ShellState = field(init=False)
    _lock: anyio.Lock = field(factory=lambda: anyio.Lock(fast_acquire=True))

    def __attrs_post_init__(self) -> None:
        self._state = ShellState(self.cwd)
        if self.marker:
            self.env = {**self.env, MARKER: self.marker}

    async def open(self) -> None:
        """Make the session's directory and start its shell.

        Raises:
            SandboxError: the image lacks bash or another tool that is needed, or the directory cannot be made.
            SandboxDead: the sandbox is gone.
        Cancellation: what was made goes with the sandbox.
        """
        async with self._lock:
            await self._open()
            await self._start_shell()

    async def run(self, command: str, *, timeout_s: float | None, cap: OutputCap) -> ExecResult:
        """As `Shell.run`."""
        text = encode(command)
        async with self._lock:
            self._check()
            if not self._has_shell:
                await self._start_shell()
            result = await self._command(text, timeout_s, cap)
            if result is None:  # a job of an earlier command killed the shell: nothing has run yet
                await self._start_shell()
                result = await self._command(text, timeout_s, cap)
            if result is None:
                raise SandboxDead("a fresh shell was gone at once")
            return result

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: Iterable[bytes] = (),
        timeout_s: float | None = None,
        cap: OutputCap,
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """As `Shell.exec`; `env` comes on top of the session's."""
        self._check()
        chunks = iter(stdin)
        first = next(chunks, b"")

        def payload() -> Iterable[bytes]:
            yield first
            yield from chunks

        fields: dict[str, str | Sequence[str]] = {
            "cwd": cwd,
            "argv": list(argv),
            "env": environment({**self.env, **env}),
            "stdin": "1" if first else "",
        }
        began = time.monotonic()
        answer, ring = await self._job("exec", fields, payload() if first else (), timeout_s, cap, on_output=on_output)
        if answer.kind == "cwd":
            raise SandboxError(f"cannot run {argv[0]!r} in {cwd!r}: no such directory")
        if answer.kind != "ok":
            raise SandboxError(f"cannot run {argv[0]!r}: the directory of the session was removed")
        return _result(answer, ring, cap, answer.code, time.monotonic() - began, died=False)

    async def close(self) -> None:
        """Kill what the session has started and remove its directory: for a sandbox that itself lives on."""
        self.closed = True
        if self._directory:
            await self._ask("close", timeout_s=KILL_S)

    def _check(self) -> None:
        if self.closed:
            raise SandboxDead("the sandbox is closed")

    async def _open(self) -> None:
        answer, text = await self._ask("open", cwd=self.cwd)
        if answer is None:
            raise SandboxError(f"bash does not run in the sandbox, or printed something else: {text[:500]!r}")
        if answer.kind == "cwd":
            raise SandboxError(f"the working directory {self.cwd!r} cannot be made")
        if answer.kind == "tools":
            raise SandboxError("the image lacks bash, tar or GNU coreutils, which a session needs")
        if answer.kind != "opened":
            raise SandboxError("neither /dev/shm nor /tmp nor /var/tmp can be written to in the sandbox")
        self._directory = answer.status.decode()

    async def _start_shell(self) -> None:
        """A fresh shell, with the directory and exports that the last one left."""
        result = None
        for _ in range(2):  # the session's directory may be gone, and is then made anew
            first = self._exports == 0
            kept = f"{self._directory}/e.{self._exports}"
            self._shells += 1
            self._state = ShellState(self._state.directory)
            exports = b"" if first else b"\\builtin . " + quote(encode(kept)) + b" 2>/dev/null\n"
            text, env = prelude(self._state, exports), environment(self.env) if first else None
            result = await self._command(text, OPEN_S, OutputCap(4096, 0), fresh=True, env=env)
            if result is not None:
                break
        if result is None or result.died or result.timed_out:
            self._has_shell = False
            said = "" if result is None else f": {result.text.strip()!r}"
            raise SandboxDead(f"a fresh shell did not answer{said}")

    async def _command(
        self,
        text: bytes,
        timeout_s: float | None,
        cap: OutputCap,
        *,
        fresh: bool = False,
        env: Sequence[str] | None = None,
    ) -> ExecResult | None:
        """One command in the shell; None where there was no shell, and so nothing was run."""
        word = f"k{secrets.token_hex(8)}"
        state = self._state
        fields: dict[str, str | Sequence[str]] = {"shell": str(self._shells), "jobs": "1" if state.has_jobs else ""}
        if fresh:
            fields |= {"fresh": "1", "env": env or (), "empty": "1" if env is None else "", "cwd": self.cwd}
        began = time.monotonic()
        self._has_shell = False  # until it is known to have one: a cancelled command takes its shell along
        framed = shell_input(text, word, state, self._directory, self._jobs)
        answer, ring = await self._job("run", fields, (framed,), timeout_s, cap)
        if answer.kind == "gone":
            await self._open()
            self._exports = 0
            self._state = ShellState(self._state.directory)
            return None
        if answer.kind == "lost":
            return None
        took_s = time.monotonic() - began
        if answer.kind == "ok":
            status = StatusReader(word, state).feed(answer.status)
            if status is not None:
                self._has_shell = True
                self._exports = self._shells
                self._state = status.state
                return _result(answer, ring, cap, status.exit_code, took_s, died=False)
        self._state = ShellState(state.directory)
        code = answer.code if answer.kind == "died" else 137
        return _result(answer, ring, cap, code, took_s, died=True)

    async def _job(
        self,
        op: str,
        fields: Mapping[str, str | Sequence[str]],
        payload: Iterable[bytes],
        timeout_s: float | None,
        cap: OutputCap,
        *,
        on_output: Callable[[bytes], None] | None = None,
    ) -> tuple[Answer, OutputRing]:
        job, self._jobs = self._jobs, self._jobs + 1
        mark = secrets.token_hex(16)
        ring = OutputRing(cap)

        def take(data: bytes) -> None:
            ring.feed(data)
            if on_output is not None:
                on_output(data)

        limits = {"head": "", "tail": ""}
        if on_output is None:  # what will not be kept is not sent either
            limits = {"head": str(cap.head_bytes), "tail": str(cap.tail_bytes)}
        limit = "" if timeout_s is None else f"{max(timeout_s, 0.001):.3f}"
        known = {"dir": self._directory, "marker": self.marker, "job": str(job), "limit": limit, **limits}
        head = request(mark, op, {**known, **fields})
        reader = AnswerReader(mark, take)
        try:
            await self._exec(head, payload, reader.feed, timeout_s)
        except SandboxDead:
            raise
        except BaseException:
            await self._kill(job)
            raise
        answer = reader.finish()
        if answer is None:  # `kill -9 -1`, say: who would have answered is gone as well
            self._check()
            answer = Answer("died", 137)
        return answer, ring

    async def _exec(
        self, head: bytes, payload: Iterable[bytes], on_output: Callable[[bytes], None], timeout_s: float | None
    ) -> None:
        outer = None if timeout_s is None else timeout_s + GRACE_S

        def stdin() -> Iterable[bytes]:
            yield head
            yield from payload

        with anyio.move_on_after(outer) as scope:
            await self.channel.exec(_ARGV, stdin=stdin(), on_output=on_output, timeout_s=outer)
        if scope.cancelled_caught:
            raise SandboxError(f"no answer {GRACE_S:.0f} s after the limit of the command", retryable=True)

    async def _kill(self, job: int) -> None:
        """Kill a job whose answer nobody waits for, shielded, at most `KILL_S` seconds."""
        if self.closed:
            return
        with anyio.move_on_after(KILL_S, shield=True):
            with contextlib.suppress(SandboxError):  # the caller hears of the first one; the sandbox has a lifetime
                await self._ask("kill", job=str(job), timeout_s=KILL_S)

    async def _ask(
        self, op: str, *, timeout_s: float = OPEN_S, cwd: str = "", job: str = ""
    ) -> tuple[Answer | None, bytes]:
        mark = secrets.token_hex(16)
        ring = OutputRing(OutputCap(4096, 4096))
        reader = AnswerReader(mark, ring.feed)
        fields = {"dir": self._directory, "marker": self.marker, "cwd": cwd, "job": job}
        await self._exec(request(mark, op, fields), (), reader.feed, timeout_s)
        return reader.finish(), ring.text()


def _result(answer: Answer, ring: OutputRing, cap: OutputCap, code: int, took_s: float, *, died: bool) -> ExecResult:
    total = max(answer.total_bytes, ring.total_bytes)
    output = ring.text()
    if total > ring.total_bytes:  # the middle was left out inside
        note = f"\n[... {total - ring.total_bytes} bytes left out ...]\n".encode()
        output = output[: cap.head_bytes] + note + output[cap.head_bytes :]
    truncated = total > cap.head_bytes + cap.tail_bytes
    return ExecResult(code, output, total, truncated, answer.timed_out, died, took_s)
