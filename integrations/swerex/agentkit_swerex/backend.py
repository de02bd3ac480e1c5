"""Sandboxes that SWE-ReX starts."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import count
from typing import Any, Self, TypeAlias

import anyio

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.extras import require
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox.bwrap import programs_env
from agentkit.sandbox.embedded import LOG
from agentkit.sandbox.leaks import MARKER, owner
from agentkit.sandbox.registry import Entry, Registry
from agentkit.sandbox.starts import Starts
from agentkit_swerex.bridge import Bridge
from agentkit_swerex.clouds import Daytona, Fargate
from agentkit_swerex.docker import Docker
from agentkit_swerex.launch import Deployment, Launched, wait_alive
from agentkit_swerex.local import Local
from agentkit_swerex.modal import Modal
from agentkit_swerex.remote import Remote
from agentkit_swerex.rex import Rex
from agentkit_swerex.sandbox import SwerexSandbox, move_in
from agentkit_swerex.through import through

Plain: TypeAlias = str | int | float | bool | None
Option: TypeAlias = Plain | Sequence[Plain] | Mapping[str, Plain | Sequence[Plain]]
KINDS: Mapping[str, type[Any]] = {cls.kind: cls for cls in (Local, Docker, Remote, Modal, Fargate, Daytona)}
REMOVE_S = 30.0


class SwerexBackend:
    """Sandboxes that a SWE-ReX deployment starts: `{type: docker, image: ...}` as SWE-ReX's own configuration has it.

    `deployment` is the type alone (`local`, `docker`, `remote`, `modal`, `fargate`, `daytona`), or a mapping with the
    options of SWE-ReX's configuration of that type. Runs on asyncio only, as SWE-ReX's client and clouds do.
    """

    def __init__(self, *, deployment: str | Mapping[str, Option] = "local", max_starts: int = 8) -> None:
        given = {"type": deployment} if isinstance(deployment, str) else dict(deployment)
        self._deployment = _deployment(given)
        self._starts = Starts(max_starts)
        self._numbers = count()
        self._announced = False

    @property
    def isolated(self) -> bool:
        """Whether commands see only the sandbox."""
        return self._deployment.isolated

    @property
    def capabilities(self) -> Capabilities:
        """What these sandboxes can do. A server needs a network: `none` is listed only where nothing is isolated."""
        it = self._deployment
        networks = {"host"} if it.isolated else {"none", "host"}
        return Capabilities(
            isolated=it.isolated, image=it.has_image, networks=frozenset(networks), limits=it.limits, lifetime=True
        )

    def available(self) -> str | None:
        """Why it cannot run here, or None. Blocks, shortly."""
        for module in ("swerex", "aiohttp"):
            if find_spec(module) is None:
                return f"{module} is not installed: pip install 'agentkit-rl[swerex]'"
        return self._deployment.available()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return None

    async def start(self, spec: SandboxSpec, /) -> SwerexSandbox:
        """A started sandbox; its shell answers. The first one also removes what killed processes of ours left behind.

        Raises:
            ConfigError: the deployment cannot give what `spec` asks for, or the event loop is not asyncio's.
            SandboxError: it could not be started.
        Cancellation: nothing is left behind.
        """
        self.capabilities.check(spec, "swerex")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "swerex sandboxes run on asyncio, found another event loop (trio?): use asyncio.run, or anyio's asyncio"
            ) from None
        require("swerex", extra="swerex", purpose="a swerex sandbox")
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        await self._first()
        it = self._deployment
        name = f"{owner()}-{next(self._numbers)}-{os.urandom(3).hex()}"
        registry = Registry()
        entry: Entry | None = None
        if it.outlives:
            entry = registry.add("swerex", name, lifetime_s=spec.lifetime_s, data={"deployment": it.kind})
        launched: Launched | None = None
        rex: Rex | None = None
        bridge: Bridge | None = None
        sandbox: SwerexSandbox | None = None

        def note(**known: str) -> None:
            nonlocal entry
            if entry is not None:
                entry = registry.update(entry, **known)

        async def after() -> None:
            if launched is not None:
                gone = await _removed(name, launched)
            else:
                gone = entry is None or entry.data.get("left", "no") == "no"
            if gone and entry is not None:
                registry.forget(entry)

        async def undo() -> None:
            if sandbox is not None:
                await sandbox.close()
                return
            if bridge is not None:
                await bridge.close()
            if rex is not None:
                await rex.close()
            await after()

        try:
            async with self._starts.here():
                launched = await it.launch(name, spec, note)
                address = launched.address
                rex = Rex(address.url, address.token, headers=address.headers)
                await wait_alive(rex, launched, within_s=it.startup_s)
            root = str(getattr(launched, "root", ""))
            pid, directory, found = await move_in(rex, name, spec, root=root, owns=it.outlives)
            bridge = Bridge(rex, name, directory, pid, launched.ended)
            bridge.open()
            sandbox = SwerexSandbox(
                name,
                spec,
                rex,
                bridge,
                launched,
                isolated=it.isolated,
                is_ours=it.is_ours,
                root=root,
                env=_env(found, root, name),
                after=after,
            )
            await sandbox.start()
            return sandbox
        except BaseException as error:
            await through(undo())
            if isinstance(error, SandboxDead):
                raise SandboxError(f"the sandbox ended while it was being started: {error}", retryable=True) from error
            raise

    async def _first(self) -> None:
        if self._announced:
            return
        self._announced = True
        if not self.isolated:
            LOG.warning(
                "swerex %s sandboxes: NO ISOLATION of commands from where the server runs", self._deployment.kind
            )
        from agentkit.sandbox.collect import collect

        await collect(types=("swerex",))

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Remove what a killed process left.

        Raises:
            SandboxError: it may still be there.
        Cancellation: it may still be there.
        """
        kind = KINDS.get(entry.data.get("deployment", ""))
        if kind is None:
            raise SandboxError(f"entry {entry.name!r} names no deployment of SWE-ReX: {dict(entry.data)!r}")
        await kind.remove(entry)


async def _removed(name: str, launched: Launched) -> bool:
    """Whether it is gone for sure; what is not stays registered, so that the reaper goes on trying."""
    began = time.monotonic()
    try:
        with anyio.move_on_after(REMOVE_S, shield=True) as scope:
            await launched.remove()
        if not scope.cancelled_caught:
            return True
        why = f"not done after {time.monotonic() - began:.0f} s"
    except (SandboxError, OSError) as error:
        why = str(error)
    LOG.error("sandbox %s could not be removed and stays registered: %s", name, why)
    return False


def _env(found: Mapping[str, str], root: str, name: str) -> dict[str, str]:
    """What a command sees beside the spec's: the image's own PATH and HOME, and what keeps programs from waiting."""
    env = programs_env() | {"HOME": "/"} | {key: value for key, value in found.items() if key in ("PATH", "HOME")}
    return env | ({"TMPDIR": f"{root}/tmp", MARKER: name} if root else {})  # noqa: S108  # below a directory of ours


def _deployment(given: dict[str, Any]) -> Deployment:
    kind = given.pop("type", None)
    cls: Callable[[Mapping[str, Any]], Deployment] | None = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ConfigError(f"deployment.type must be one of {', '.join(sorted(KINDS))}, found {kind!r}")
    return cls(given)
