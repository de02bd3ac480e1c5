"""Sandboxes in Volcengine's veFaaS, over its HTTP API.

A veFaaS sandbox is a container of a function; requests to the function's route reach it by its name. What answers
them here is a small server of ours, whose source is the container's command: it needs python3 (3.7) in the image, and
runs programs for `agentkit.sandbox.over_exec`. The token it asks for is made for this one sandbox.

Each sandbox is in the registry, and its metadata carry a name of ours, before it is asked for: whatever happens to that
call, it can be found by them and killed. veFaaS ends it at its lifetime, rounded up to minutes; the server inside ends
at its lifetime to the second.
"""

import asyncio
import base64
import logging
import math
import os
import secrets
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import count
from typing import Any, Self

import anyio

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox.collect import collect
from agentkit.sandbox.over_exec import ExecSandbox, Pace
from agentkit.sandbox.registry import Entry, Registry
from agentkit.sandbox.starts import Starts
from agentkit_vefaas.api import Control, UnknownSandbox, aiohttp_module
from agentkit_vefaas.channel import GuestChannel
from agentkit_vefaas.signing import Credentials

LOG = logging.getLogger("agentkit.sandbox")
DEFAULT_LIFETIME_S = 3600.0
LONGEST_LIFETIME_S = 86_400.0
END_S = 20.0
_LOOKS_S = (0.0, 0.5, 1.5)
_OVER = ("failed", "error", "terminat", "kill", "delet", "stop", "expired", "paus")


class VefaasBackend:
    """Starts veFaaS sandboxes, on asyncio only.

    `function_id` and `route` (the URL under which the function is reached) are those of a sandbox function of yours, by
    default `VEFAAS_FUNCTION_ID` and `VEFAAS_FUNCTION_ROUTE` of the environment. A start may take `start_s` seconds.

    With a spec's `network` at `none`, outgoing traffic is denied, and each start checks that `probe` ("host:port")
    cannot be reached from inside; a sandbox that reaches it is refused. An empty `probe` checks nothing.
    """

    isolated = True

    def __init__(
        self,
        *,
        function_id: str = "",
        route: str = "",
        region: str = "cn-beijing",
        endpoint: str = "https://open.volcengineapi.com",
        port: int = 8000,
        probe: str = "open.volcengineapi.com:443",
        start_s: float = 300.0,
        max_starts: int = 32,
        starts_per_s: float = 20.0,
    ) -> None:
        self._function_id = function_id or os.environ.get("VEFAAS_FUNCTION_ID", "")
        self._route = (route or os.environ.get("VEFAAS_FUNCTION_ROUTE", "")).rstrip("/")
        self._region = region
        self._endpoint = endpoint.rstrip("/")
        self._port = port
        self._probe = probe
        self._start_s = start_s
        self._starts = Starts(max_starts)
        self._pace = Pace(starts_per_s)
        self._numbers = count()
        self._collected = False
        self._registry = Registry()

    @property
    def capabilities(self) -> Capabilities:
        """What veFaaS can do for us: images, limits of processors and memory, a network or none."""
        return Capabilities(
            isolated=True,
            image=True,
            networks=frozenset({"none", "host"}),
            limits=frozenset({"cpus", "memory_bytes"}),
            lifetime=True,
        )

    def available(self) -> str | None:
        """Why it cannot run here: no aiohttp, credentials or function. Whether they are good, only a start tells."""
        try:
            aiohttp_module()
            Credentials.found()
        except ConfigError as error:
            return str(error)
        if not self._function_id or not self._route:
            return "veFaaS has no function here: set VEFAAS_FUNCTION_ID and VEFAAS_FUNCTION_ROUTE"
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Nothing to let go of: each sandbox has connections of its own, closed with it."""

    async def start(self, spec: SandboxSpec, /) -> ExecSandbox:
        """A started sandbox; its shell answers. The first one also removes what killed processes of ours left behind.

        Raises:
            ConfigError: veFaaS cannot give what `spec` asks for, or takes no credentials from here.
            SandboxError: it could not be started; retryable where veFaaS was busy or not to be reached.
        Cancellation: the sandbox that may have come to be is found by its metadata and killed.
        """
        self.capabilities.check(spec, "vefaas")
        _asyncio_only()
        missing = self.available()
        if missing is not None:
            raise ConfigError(missing)
        if not spec.image:
            raise ConfigError("image of vefaas sandboxes must name an image that veFaaS can pull, found None")
        lifetime_s = _lifetime(spec)
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        if not self._collected:
            self._collected = True
            await collect(types=("vefaas",), registry=self._registry)
        async with self._starts.here():
            await self._pace.turn()
            return await self._create(spec, lifetime_s)

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Kill what `entry` is about; nothing to do where it is gone.

        Raises:
            SandboxError: veFaaS could not be asked.
            ConfigError: there are no credentials here, or veFaaS does not take them.
        Cancellation: it may not be killed; ask again.
        """
        _asyncio_only()
        async with _control(entry.data, Credentials.found()) as control:
            await _kill(control, entry)

    async def _create(self, spec: SandboxSpec, lifetime_s: float) -> ExecSandbox:
        name = f"agentkit-{next(self._numbers)}-{os.urandom(6).hex()}"
        data = {"function": self._function_id, "endpoint": self._endpoint, "region": self._region}
        entry = self._registry.add("vefaas", name, lifetime_s=lifetime_s, data=data)
        token = secrets.token_urlsafe(24)
        session = aiohttp_module().ClientSession()
        control = Control(session, self._function_id, self._endpoint, self._region, Credentials.found())
        try:
            request = self._request(spec, entry, token, lifetime_s)
            entry = self._registry.update(entry, id=await control.create(request))
            sandbox_id = entry.data["id"]

            async def state() -> str | None:
                return await _state(control, sandbox_id)

            channel = GuestChannel(session, self._route, sandbox_id, token, state)
            started = ExecSandbox(
                name,
                spec,
                channel,
                poll=state,
                end=lambda: self._end(control, entry),
            )
            await self._ready(control, channel, sandbox_id)
            await started.open()
            if spec.network == "none" and self._probe:
                await self._check_network(started)
        except BaseException as error:
            refused = isinstance(error, ConfigError) or (isinstance(error, SandboxError) and not error.retryable)
            await self._undo(control, entry, _LOOKS_S[:1] if refused else _LOOKS_S)
            raise
        return started

    def _request(self, spec: SandboxSpec, entry: Entry, token: str, lifetime_s: float) -> dict[str, Any]:
        metadata = {
            **spec.labels,
            "agentkit-name": entry.name,
            "agentkit-owner": entry.owner,
            "agentkit-deadline": str(math.ceil(entry.deadline or 0)),
        }
        envs = {"AGENTKIT_GUEST_TOKEN": token, "AGENTKIT_GUEST_SERVES": f"{self._port} {math.ceil(lifetime_s)}"}
        request: dict[str, Any] = {
            "InstanceImageInfo": {"Image": spec.image, "Port": self._port, "Command": guest_command()},
            "Envs": [{"Key": key, "Value": value} for key, value in envs.items()],
            "Metadata": metadata,
            "Timeout": math.ceil(lifetime_s / 60),
        }
        if spec.network == "none":
            request["NetworkRules"] = {"AllowEgressAccess": False}
        if spec.limits.cpus is not None:
            request["CpuMilli"] = math.ceil(spec.limits.cpus * 1000)
        if spec.limits.memory_bytes is not None:
            request["MemoryMB"] = max(1, spec.limits.memory_bytes // 2**20)
        return request

    async def _ready(self, control: Control, channel: GuestChannel, sandbox_id: str) -> None:
        wait_s = 0.1
        with anyio.move_on_after(self._start_s):
            while not await channel.alive():
                why = await _state(control, sandbox_id)
                if why is not None:
                    raise SandboxError(f"sandbox {sandbox_id} {why} before it answered", retryable=True)
                await anyio.sleep(wait_s)
                wait_s = min(2.0, 1.5 * wait_s)
            return
        raise SandboxError(
            f"sandbox {sandbox_id} did not answer within {self._start_s:.0f} s; it needs python3 in its image",
            retryable=True,
        )

    async def _check_network(self, sandbox: ExecSandbox) -> None:
        host, _, port = self._probe.rpartition(":")
        script = 'timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" && echo reached'
        said = await sandbox.exec(["bash", "-c", script, "probe", host, port], timeout_s=10.0)
        if "reached" in said.text:
            raise SandboxError(f"a vefaas sandbox without a network reached {self._probe}: veFaaS does not deny it")

    async def _undo(self, control: Control, entry: Entry, looks_s: Sequence[float]) -> None:
        """Kill what may have come of a start that failed or was cancelled, shielded, at most `END_S` seconds."""
        why: object = f"not within {END_S:.0f} s"
        with anyio.move_on_after(END_S, shield=True):
            try:
                for wait_s in looks_s:
                    await anyio.sleep(wait_s)
                    if await _kill(control, entry):
                        break
                self._registry.forget(entry)
                why = None
            except Exception as error:  # the error of the start is what the caller hears of
                why = error
        with anyio.CancelScope(shield=True):
            await control.session.close()
        if why is not None:
            LOG.error("sandbox %s could not be killed (%s); it stays registered and ends by itself", entry.name, why)

    async def _end(self, control: Control, entry: Entry) -> None:
        why: object = f"not within {END_S:.0f} s"
        with anyio.move_on_after(END_S):
            try:
                await _kill(control, entry)
                self._registry.forget(entry)
                why = None
            except (SandboxError, ConfigError) as error:
                why = error
        await control.session.close()
        if why is not None:
            LOG.error("sandbox %s could not be killed (%s); it stays registered and ends by itself", entry.name, why)


def guest_command() -> str:
    """The command of a sandbox: the server inside, as one line that means the same with and without a shell."""
    source = files("agentkit_vefaas").joinpath("guest.py").read_bytes()
    packed = base64.b64encode(zlib.compress(source, 9)).decode()
    return f"python3 -c \"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))\""


@asynccontextmanager
async def _control(data: Mapping[str, str], credentials: Credentials) -> AsyncIterator[Control]:
    async with aiohttp_module().ClientSession() as session:
        yield Control(session, data["function"], data["endpoint"], data["region"], credentials)


async def _kill(control: Control, entry: Entry) -> bool:
    """Kill what `entry` is about; whether there was anything."""
    found = [entry.data["id"]] if "id" in entry.data else await control.find({"agentkit-name": entry.name})
    for sandbox_id in found:
        await control.kill(sandbox_id)
    return bool(found)


async def _state(control: Control, sandbox_id: str) -> str | None:
    """Why a sandbox does not run, or None."""
    try:
        said = await control.describe(sandbox_id)
    except UnknownSandbox:
        return "is not known to veFaaS any more"
    status, code = str(said.get("Status") or ""), str(said.get("ErrorCode") or "")
    if code or any(word in status.lower() for word in _OVER):
        return f"has ended: {status} {code} {str(said.get('ErrorMessage') or '')[:300]}".rstrip()
    return None


def _asyncio_only() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise ConfigError(
            "aiohttp runs on asyncio alone: start the run with anyio.run(..., backend='asyncio')"
        ) from error


def _lifetime(spec: SandboxSpec) -> float:
    lifetime_s = DEFAULT_LIFETIME_S if spec.lifetime_s is None else spec.lifetime_s
    if lifetime_s > LONGEST_LIFETIME_S:
        raise ConfigError(f"lifetime_s of vefaas sandboxes is at most {LONGEST_LIFETIME_S:.0f}, found {lifetime_s!r}")
    return lifetime_s
