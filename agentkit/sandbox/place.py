"""Where programs run, as Protocols: a place starts them, a process is one that was started."""

import signal
from collections.abc import Mapping
from typing import Any, Protocol

from attrs import field, frozen

from agentkit.errors import SandboxError


@frozen
class Program:
    """What to start. `cwd` lists directories to try in order; `targets` are the descriptors it sees."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: tuple[str, ...] = ("/",)
    options: Mapping[str, Any] = field(factory=dict)


class StartFailed(SandboxError):
    """A program could not be started; `stage` is `cwd`, `exec`, `enter`, `privileges` or `fork`."""

    def __init__(self, message: str, stage: str = "exec", number: int = 0) -> None:
        super().__init__(message)
        self.stage = stage
        self.number = number


class Process(Protocol):
    """A program that runs somewhere. Closing it kills it."""

    @property
    def pid(self) -> int:
        """Its number where it runs."""
        ...

    @property
    def exit_code(self) -> int | None:
        """How it ended, 128 + signal for a death by signal; None while it runs."""
        ...

    @property
    def lost(self) -> bool:
        """Whether what it ran in is gone, and the program with it."""
        ...

    @property
    def signalled(self) -> int | None:
        """How many processes the last `kill` reached, once that is known."""
        ...

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to hear of it."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to take; -1 once closed."""
        ...

    def poll(self) -> bool:
        """Take what has been said of it; whether it has ended."""
        ...

    def kill(self, number: int = signal.SIGKILL, *, since: int | None = None, itself: bool = True) -> None:
        """Signal what the program has started, since a `boot_ticks` where given, and itself where asked."""
        ...

    def count(self, since: int) -> None:
        """Ask how many processes `kill` would reach; the answer comes as `signalled`."""
        ...

    def end(self) -> None:
        """Kill the program and all it holds."""
        ...

    async def gone(self) -> None:
        """Wait until it has ended. Cancellation: the program goes on."""
        ...

    def close(self) -> None:
        """Let go of the program; it is killed if it still runs."""
        ...


class Kept(Protocol):
    """A file for one shell to write to, which outlives the shell."""

    def give(self, program: Program, fds: dict[int, int], target: int) -> Program:
        """`program`, changed so that it sees the file as descriptor `target`; ours to close is what `fds` got."""
        ...

    async def read(self) -> bytes:
        """What is in it; empty where it cannot be read."""
        ...

    def close(self) -> None:
        """Let go of it; safe to call twice."""
        ...


class Place(Protocol):
    """Where programs are started: the host, or the inside of one sandbox."""

    @property
    def takes_descriptors(self) -> bool:
        """Whether `spawn` takes any descriptor of ours, not only those `pipe` made."""
        ...

    def pipe(self, fds: dict[int, int], target: int, *, ours_writes: bool = False) -> int:
        """Make a pipe: the far end goes into `fds` as descriptor `target`, the near end is returned."""
        ...

    def keep(self) -> Kept:
        """An empty file for a shell."""
        ...

    async def spawn(self, program: Program, fds: Mapping[int, int]) -> Process:
        """Start `program`; `fds` maps the descriptors it sees to ours, which stay ours to close.

        Raises:
            StartFailed: it could not be started.
            SandboxDead: the place is gone.
        Cancellation: the program is killed.
        """
        ...
