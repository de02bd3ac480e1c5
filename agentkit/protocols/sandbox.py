"""Where commands run: small Protocols by capability, and the values in their signatures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from attrs import field, frozen


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


@frozen
class SandboxSpec:
    """What a sandbox should be like.

    `cwd` is the working directory inside, made if need be; `env` is all of the environment a command sees beside a
    minimal PATH and HOME; nothing is inherited from the host process. `network` false means none but loopback.
    """

    cwd: str = "/work"
    env: Mapping[str, str] = field(factory=dict)
    network: bool = False
    read_only: tuple[tuple[str, str], ...] = ()
    """(host path, path inside) pairs mounted read-only."""
    read_limit_bytes: int = 64 * 1024 * 1024


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
