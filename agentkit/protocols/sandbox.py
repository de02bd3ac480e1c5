"""Where commands run: small Protocols by capability. What a sandbox should be like: `sandbox_spec`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from attrs import frozen

from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec, Snapshot


@frozen
class OutputCap:
    """How much of a command's output is kept: the first `head_bytes` and the last `tail_bytes`."""

    head_bytes: int = 50_000
    tail_bytes: int = 50_000


@frozen
class ExecResult:
    """How a command ended. Output is raw bytes, capped; `total_bytes` is how much there was.

    `exit_code` is what the shell would report (128 + signal for a death by signal). A timeout is a result, with what
    was printed until then. `died` says that the command took its shell along: the next command gets a fresh one with
    the same working directory and environment, functions and aliases lost.
    """

    exit_code: int
    output: bytes
    total_bytes: int = 0
    truncated: bool = False
    timed_out: bool = False
    died: bool = False
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """The output as text, with U+FFFD for bytes that are no UTF-8."""
        return self.output.decode("utf-8", "replace")


@runtime_checkable
class Shell(Protocol):
    """Runs commands. `run` keeps state between commands (directory, environment, functions), `exec` does not."""

    async def run(
        self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()
    ) -> ExecResult:  # frozen
        """Run `command` in the sandbox's shell session, standard input empty, stderr and stdout in one stream.

        Raises:
            SandboxDead: the sandbox is gone.
        Cancellation: the command and all it started are killed; the session goes on with a fresh shell.
        """
        ...

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cap: OutputCap = OutputCap(),  # frozen
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run one program, on its own. Raises and cancels as `run`."""
        ...


@runtime_checkable
class Files(Protocol):
    """Bytes in and out of the sandbox. Paths are the sandbox's own; relative ones start at its working directory."""

    async def read(self, path: str, /) -> bytes:
        """The content of a file.

        Raises:
            SandboxError: no such file, a directory, or larger than the sandbox's `read_limit_bytes`.
            SandboxDead: the sandbox is gone.
        """
        ...

    async def write(self, path: str, data: bytes, /) -> None:
        """Write a file, making the directories above it. Raises as `read`."""
        ...


@runtime_checkable
class Transfer(Protocol):
    """Whole trees in and out, as tar streams that cannot write outside their destination."""

    async def upload(self, source: Path, destination: str, /) -> None:
        """Copy a file or tree from the host into the sandbox, modes and symlinks kept."""
        ...

    async def download(self, source: str, destination: Path, /) -> None:
        """Copy a file or tree from the sandbox to the host; hostile archives are a SandboxError, nothing written."""
        ...


@runtime_checkable
class Lifecycle(Protocol):
    """The life of a sandbox."""

    async def alive(self) -> bool:
        """Whether commands can still run."""
        ...

    async def close(self) -> None:
        """Kill everything in it and leave nothing behind; safe to call twice."""
        ...


@runtime_checkable
class Sandbox(Shell, Files, Transfer, Lifecycle, Protocol):
    """A started sandbox with everything the embedded back ends can do."""


@runtime_checkable
class SandboxBackend(Protocol):
    """Makes sandboxes."""

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        """A started sandbox.

        Raises:
            SandboxError: it could not be started.
        Cancellation: nothing is left behind.
        """
        ...


@runtime_checkable
class Capable(Protocol):
    """A back end that says what it can do; a spec that asks for more is refused before anything starts."""

    @property
    def capabilities(self) -> Capabilities:
        """What this back end can do on this machine."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """A sandbox whose files can be kept and multiplied. Processes, shells and memory are never part of it."""

    async def snapshot(self) -> Snapshot:
        """The files as they are now; `SandboxSpec.snapshot` starts others from it. The caller closes it.

        Raises:
            SandboxError: the files could not be kept.
            SandboxDead: the sandbox is gone.
        Cancellation: nothing is kept.
        """
        ...

    async def fork(self) -> "Sandbox":
        """Another sandbox with the same spec and, at first, the same files. Raises and cancels as `start`."""
        ...


@frozen
class Screen:
    """What a terminal shows: `lines` without trailing blanks, and the cursor's (row, column), counted from 0.

    `exit_code` is None while the program runs.
    """

    lines: tuple[str, ...]
    cursor: tuple[int, int]
    exit_code: int | None = None

    @property
    def text(self) -> str:
        """The lines, without the empty ones at the end."""
        return "\n".join(self.lines).rstrip("\n")


@runtime_checkable
class Terminal(Protocol):
    """An interactive program on a terminal of its own."""

    async def send(self, keys: str, /) -> None:
        """Type `keys`; control characters as themselves: U+0003 is Ctrl-C, a carriage return is Enter."""
        ...

    async def read(self, *, settle_s: float = 0.2, timeout_s: float = 5.0) -> Screen:
        """The screen once it has not changed for `settle_s` seconds, at most `timeout_s` seconds from now."""
        ...

    async def close(self) -> None:
        """Kill the program and all it started; safe to call twice."""
        ...


@runtime_checkable
class Interactive(Protocol):
    """A sandbox that runs programs on a terminal, for those that draw. The plain path is `Shell`."""

    async def terminal(
        self,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> Terminal:
        """Start `argv` on a terminal. Raises and cancels as `Shell.exec`."""
        ...
