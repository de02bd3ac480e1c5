"""The back ends that the benchmark of sandboxes takes, each with how much of it can be borne."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from agentkit.protocols import SandboxBackend, SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend, WarmPool
from agentkit.sandbox.containers import PodmanBackend

ROOT = Path(__file__).resolve().parents[1]


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


def _opened(make: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[SandboxBackend]]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[SandboxBackend]:
        async with make() as backend:
            yield backend

    return opened


def _bwrap() -> Kind:
    return Kind("bwrap", _opened(BwrapBackend), BwrapBackend().available)


def _overlay() -> Kind:
    def make() -> BwrapBackend:
        return BwrapBackend(overlay=True)

    return Kind("overlay", _opened(make), make().available)


def _warm() -> Kind:
    spec = SandboxSpec()

    def make() -> WarmPool:
        return WarmPool(BwrapBackend(), spec, size=8)

    return Kind("warm", _opened(make), BwrapBackend().available, spec, most_alive=0, between_s=0.15)


def _host() -> Kind:
    return Kind("host", _opened(HostBackend), lambda: None)


@cache
def rig() -> tuple[str, Path]:
    """A podman that works here, and the name of an image made offline (some minutes, the first time)."""
    done = subprocess.run(
        [ROOT / "tests/sandbox/rig/image.sh"], capture_output=True, text=True, check=True, timeout=900
    )
    return done.stdout.split()[0], ROOT / "scripts/podman-here.sh"


def _podman() -> Kind:
    image, command = rig()

    def make() -> PodmanBackend:
        return PodmanBackend(command=str(command), image=image)

    return Kind("podman", _opened(make), make().available, most_alive=50, starts=15, commands=300)


def _swerex() -> Kind:
    from agentkit_swerex import SwerexBackend

    return Kind("swerex", _opened(SwerexBackend), SwerexBackend().available, SandboxSpec(network="host"), 50, 10, 300)


_MAKERS: dict[str, Callable[[], Kind]] = {
    "bwrap": _bwrap,
    "overlay": _overlay,
    "warm": _warm,
    "host": _host,
    "podman": _podman,
    "swerex": _swerex,
}
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
