"""Sandboxes in Modal's cloud, through Modal's own client.

Each one is named, and its name is in the registry, before it is asked for: whatever happens then, to the call or to
this process, it can be found and terminated by that name. It carries tags with its owner and its deadline, and Modal
ends it at its lifetime by itself. Commands run over `agentkit.sandbox.over_exec`.

The client finds its credentials itself (`MODAL_TOKEN_ID` and `MODAL_TOKEN_SECRET`, or ~/.modal.toml); none passes
through here, and nothing of the caller's environment goes to the sandbox.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Self

import anyio

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols.sandbox_spec import Allow, Capabilities, SandboxSpec
from agentkit.sandbox.collect import collect
from agentkit.sandbox.over_exec import ExecSandbox, Pace
from agentkit.sandbox.registry import Entry, Registry
from agentkit.sandbox.starts import Starts
from agentkit_modal.channel import ModalChannel
from agentkit_modal.faults import modal_module, told

LOG = logging.getLogger("agentkit.sandbox")
DEFAULT_LIFETIME_S = 3600.0
LONGEST_LIFETIME_S = 86_400.0
END_S = 20.0
_LOOKS_S = (0.0, 0.5, 1.5)
"""When a name is looked up after a call that was cut short: the sandbox may come to be a moment later."""


class ModalBackend:
    """Starts Modal sandboxes, on asyncio only.

    `app` is the Modal app that they belong to, made if there is none; `image` of a spec is pulled from its registry by
    Modal, and `modal_image` (a `modal.Image`) stands for a spec without one. `max_starts` are started at a time,
    `starts_per_s` asked for in a second: what Modal documents for most plans is some 5 to 30.
    """

    isolated = True

    def __init__(
        self,
        *,
        app: str = "agentkit",
        environment: str | None = None,
        region: str | None = None,
        modal_image: Any = None,
        max_starts: int = 32,
        starts_per_s: float = 20.0,
    ) -> None:
        self._app = app
        self._environment = environment
        self._region = region
        self._image = modal_image
        self._starts = Starts(max_starts)
        self._pace = Pace(starts_per_s)
        self._numbers = count()
        self._built: dict[str, Any] = {}
        self._collected = False
        self._registry = Registry()

    @property
    def capabilities(self) -> Capabilities:
        """What Modal can do for us: images, limits of processors and memory, and a network of named hosts."""
        return Capabilities(
            isolated=True,
            image=True,
            networks=frozenset({"none", "host", "allow"}),
            limits=frozenset({"cpus", "memory_bytes"}),
            lifetime=True,
        )

    def available(self) -> str | None:
        """Why it cannot run here: no client, or no credentials. Whether those are good, only a start tells."""
        try:
            config = modal_module().config.config
        except ConfigError as error:
            return str(error)
        if config.get("token_id") or config.get("oauth_refresh_token") or config.get("oauth_jwt_key"):
            return None
        return "Modal has no credentials here: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Nothing to let go of: sandboxes are closed one by one, and Modal's client is the process's."""

    async def start(self, spec: SandboxSpec, /) -> ExecSandbox:
        """A started sandbox; its shell answers. The first one also removes what killed processes of ours left behind.

        Raises:
            ConfigError: Modal cannot give what `spec` asks for, or takes no credentials from here.
            SandboxError: it could not be started; retryable where Modal was busy or not to be reached.
        Cancellation: the sandbox that may have come to be is found by its name and terminated.
        """
        self.capabilities.check(spec, "modal")
        _asyncio_only("Modal's client")
        lifetime_s = _lifetime(spec)
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        if not self._collected:
            self._collected = True
            await collect(types=("modal",), registry=self._registry)
        async with self._starts.here():
            with told("look up the app"):
                app = await modal_module().App.lookup.aio(
                    self._app, create_if_missing=True, environment_name=self._environment
                )
            image = await self._built_image(spec, app)
            await self._pace.turn()
            return await self._create(spec, app, image, lifetime_s)

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Terminate what `entry` is about; nothing to do where it is gone.

        Raises:
            SandboxError: Modal could not be asked.
        Cancellation: it may not be terminated; ask again.
        """
        _asyncio_only("Modal's client")
        found = await _find(entry)
        if found is not None:
            with told(f"terminate the sandbox {entry.name}"):
                await _terminate(found)

    async def _built_image(self, spec: SandboxSpec, app: Any) -> Any:
        modal = modal_module()
        key = spec.image or ""
        if key not in self._built:
            with told(f"make the image {spec.image or 'of the back end'!r}"):
                image = modal.Image.from_registry(spec.image) if spec.image else self._image
                if image is None:
                    image = modal.Image.debian_slim()
                await image.build.aio(app)
            self._built[key] = image
        return self._built[key]

    async def _create(self, spec: SandboxSpec, app: Any, image: Any, lifetime_s: float) -> ExecSandbox:
        name = f"agentkit-{next(self._numbers)}-{os.urandom(6).hex()}"
        data = {"app": self._app, "environment": self._environment or ""}
        entry = self._registry.add("modal", name, lifetime_s=lifetime_s, data=data)
        try:
            sandbox = await self._ask(spec, app, image, entry, lifetime_s)
            entry = self._registry.update(entry, id=sandbox.object_id)
            channel = ModalChannel(sandbox)
            started = ExecSandbox(
                name,
                spec,
                channel,
                poll=lambda: _state(sandbox),
                end=lambda: self._end(entry, channel),
            )
            await started.open()
        except BaseException as error:
            refused = isinstance(error, ConfigError) or (isinstance(error, SandboxError) and not error.retryable)
            await self._undo(entry, _LOOKS_S[:1] if refused else _LOOKS_S)
            raise
        return started

    async def _ask(self, spec: SandboxSpec, app: Any, image: Any, entry: Entry, lifetime_s: float) -> Any:
        modal = modal_module()
        options: dict[str, Any] = {**_network(spec), **_limits(spec)}
        tags = {**spec.labels, "agentkit-owner": entry.owner, "agentkit-deadline": str(math.ceil(entry.deadline or 0))}
        lasting = math.ceil(lifetime_s)
        with told("create a sandbox"):
            try:
                return await modal.Sandbox.create.aio(
                    "sleep",
                    str(lasting + 60),
                    app=app,
                    name=entry.name,
                    tags=tags,
                    image=image,
                    timeout=lasting,
                    region=self._region,
                    **options,
                )
            except modal.exception.AlreadyExistsError:  # a call whose answer was lost made it: the name is ours alone
                found = await _find(entry)
                if found is None:
                    raise
                return found

    async def _undo(self, entry: Entry, looks_s: Sequence[float]) -> None:
        """Terminate what may have come of a start that failed or was cancelled, shielded, at most `END_S` seconds."""
        why: object = f"not within {END_S:.0f} s"
        with anyio.move_on_after(END_S, shield=True):
            try:
                for wait_s in looks_s:
                    await anyio.sleep(wait_s)
                    found = await _find(entry)
                    if found is not None:
                        await _terminate(found)
                        break
            except Exception as error:  # the error of the start is what the caller hears of
                why = error
            else:
                self._registry.forget(entry)
                return
        LOG.error("sandbox %s could not be terminated (%s); it stays registered and ends by itself", entry.name, why)

    async def _end(self, entry: Entry, channel: ModalChannel) -> None:
        why: object = f"not within {END_S:.0f} s"
        with anyio.move_on_after(END_S):
            try:
                with told(f"terminate the sandbox {entry.name}"):
                    await _terminate(channel.sandbox)
                self._registry.forget(entry)
                await channel.settle()
                return
            except (SandboxError, ConfigError) as error:
                why = error
        LOG.error("sandbox %s could not be terminated (%s); it stays registered and ends by itself", entry.name, why)


def _asyncio_only(what: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise ConfigError(
            f"{what} runs on asyncio alone: start the run with anyio.run(..., backend='asyncio')"
        ) from error


def _lifetime(spec: SandboxSpec) -> float:
    lifetime_s = DEFAULT_LIFETIME_S if spec.lifetime_s is None else spec.lifetime_s
    if lifetime_s > LONGEST_LIFETIME_S:
        raise ConfigError(f"lifetime_s of modal sandboxes is at most {LONGEST_LIFETIME_S:.0f}, found {lifetime_s!r}")
    return lifetime_s


def _network(spec: SandboxSpec) -> Mapping[str, Any]:
    if spec.network == "none":
        return {"block_network": True}
    if not isinstance(spec.network, Allow):
        return {}
    blocks, names = [], []
    for host in spec.network.hosts:
        try:
            blocks.append(str(ipaddress.ip_network(host)))
        except ValueError:
            names.append(host)
    return {"outbound_cidr_allowlist": blocks, "outbound_domain_allowlist": names}


def _limits(spec: SandboxSpec) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    if spec.limits.cpus is not None:
        found["cpu"] = (spec.limits.cpus, spec.limits.cpus)
    if spec.limits.memory_bytes is not None:
        mebibytes = max(1, spec.limits.memory_bytes // 2**20)
        found["memory"] = (mebibytes, mebibytes)
    return found


async def _state(sandbox: Any) -> str | None:
    """Why `sandbox` does not run, or None."""
    try:
        with told("ask for the state of the sandbox", inside=True):
            code = await sandbox.poll.aio()
    except SandboxDead:
        return "is not known to Modal any more"
    if code is None:
        return None
    reasons = {124: "ended at its lifetime", 137: "was terminated, or ran out of memory"}
    return reasons.get(code, f"ended: its main process exited with {code}")


async def _find(entry: Entry) -> Any:
    """The sandbox that `entry` is about, as Modal knows it, or None."""
    modal = modal_module()
    with told(f"look up the sandbox {entry.name}"):
        try:
            if "id" in entry.data:
                return await modal.Sandbox.from_id.aio(entry.data["id"])
            environment = entry.data.get("environment") or None
            return await modal.Sandbox.from_name.aio(entry.data["app"], entry.name, environment_name=environment)
        except modal.exception.NotFoundError:
            return None


async def _terminate(sandbox: Any) -> None:
    exception = modal_module().exception
    with contextlib.suppress(exception.NotFoundError, exception.ConflictError):  # it has ended
        await sandbox.terminate.aio()
    await sandbox.detach.aio()
