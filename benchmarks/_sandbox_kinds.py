"""The back ends that the benchmark of sandboxes takes, each with how much of it can be borne."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from attrs import field, frozen

from agentkit.protocols import SandboxBackend, SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend


@frozen
class Kind:
    """One back end: `open` gives it, `most_alive` of it fit on this machine, `starts` and `commands` are timed."""

    name: str
    open: Callable[[], AbstractAsyncContextManager[SandboxBackend]]
    why_not: Callable[[], str | None]
    spec: SandboxSpec = field(factory=SandboxSpec)
    most_alive: int = 1000
    starts: int = 60
    commands: int = 500
    between_s: float = 0.0
    """Waited for after each start, a warm pool needs time to fill."""


def _opened(
    make: Callable[[], BwrapBackend | HostBackend],
) -> Callable[[], AbstractAsyncContextManager[SandboxBackend]]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[SandboxBackend]:
        async with make() as backend:
            yield backend

    return opened


def _bwrap() -> Kind:
    return Kind("bwrap", _opened(BwrapBackend), BwrapBackend().available)


def _host() -> Kind:
    return Kind("host", _opened(HostBackend), lambda: None)


_MAKERS: dict[str, Callable[[], Kind]] = {"bwrap": _bwrap, "host": _host}
KINDS = tuple(_MAKERS)


def kinds_here(names: Sequence[str]) -> list[Kind]:
    """Those of `names` that run here; says why of the others."""
    found = []
    for name in names:
        if name not in _MAKERS:
            sys.exit(f"no kind {name!r}: there are {', '.join(KINDS)}")
        try:
            kind = _MAKERS[name]()
            reason = kind.why_not()
        except (ImportError, OSError, subprocess.SubprocessError) as error:
            print(f"  {name}: left out: {error}")
            continue
        if reason is None:
            found.append(kind)
        else:
            print(f"  {name}: left out: {reason}")
    return found
