"""SWE-ReX's Modal deployment, started and ended by us."""

import asyncio
import inspect
import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import anyio

from agentkit.errors import SandboxError
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.registry import Entry
from agentkit_swerex.clouds import STOP_S, cloud, in_thread, missing
from agentkit_swerex.launch import Address, Note, configured, hushed, quiet
from agentkit_swerex.through import through

APP = "swe-rex"
CREATE_S = 60.0
MEBIBYTE = 1 << 20


class ModalServer:
    """A Modal sandbox with a server. SWE-ReX's stop leaves one that runs; this terminates it, and sees that it did."""

    def __init__(self, address: Address, sandbox: Any) -> None:
        self.address = address
        self._sandbox = sandbox

    async def ended(self) -> str | None:
        """As `Launched.ended`."""
        code = await self._sandbox.poll.aio()
        return None if code is None else f"its Modal sandbox ended with exit code {code}"

    async def remove(self) -> None:
        """As `Launched.remove`."""
        await terminate(self._sandbox)


async def terminate(sandbox: Any) -> None:
    """Terminate a Modal sandbox and see it end.

    Raises:
        SandboxError: it may still run.
    Cancellation: it may still run.
    """
    try:
        if await sandbox.poll.aio() is not None:
            return
        await sandbox.terminate.aio()
        with anyio.move_on_after(STOP_S):
            while await sandbox.poll.aio() is None:  # noqa: ASYNC110  # nothing tells
                await anyio.sleep(0.1)
            return
    except Exception as error:
        raise SandboxError(f"the Modal sandbox could not be terminated: {error}", retryable=True) from error
    raise SandboxError(f"the Modal sandbox still runs {STOP_S:.0f} s after it was terminated", retryable=True)


class Modal:
    """`{type: modal, image, modal_sandbox_kwargs, ...}`: a Modal sandbox for each; credentials as modal finds them."""

    kind: ClassVar[str] = "modal"
    isolated: ClassVar[bool] = True
    limits: ClassVar[frozenset[str]] = frozenset({"cpus", "memory_bytes"})
    has_image: ClassVar[bool] = True
    is_ours: ClassVar[bool] = True
    outlives: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = dict(options)
        self.startup_s = float(configured("ModalDeploymentConfig", self._options).startup_timeout)

    def available(self) -> str | None:
        """Why it cannot run here, or None."""
        return missing("modal")

    async def launch(self, name: str, spec: SandboxSpec, note: Note) -> ModalServer:
        """As `Deployment.launch`."""
        module = cloud("modal")
        config = configured("ModalDeploymentConfig", self._asked(module, name, spec))
        note(
            app=APP, **({"name": config.modal_sandbox_kwargs["name"]} if "name" in config.modal_sandbox_kwargs else {})
        )
        deployment = await in_thread(lambda: quiet(module.ModalDeployment).from_config(config), "Modal was not reached")
        task = asyncio.get_running_loop().create_task(hushed(deployment).start())
        try:
            await asyncio.wait([task])
            task.result()
            note(sandbox=str(deployment._sandbox.object_id))
            found = deployment.runtime._config
            url = str(found.host) if found.port is None else f"{found.host}:{found.port}"
            return ModalServer(Address(url, str(found.auth_token)), deployment._sandbox)
        except BaseException as error:
            await through(self._undo(task, deployment, note))
            if isinstance(error, Exception) and not isinstance(error, SandboxError):
                raise SandboxError(f"no Modal sandbox could be started: {error}", retryable=True) from error
            raise

    async def _undo(self, task: "asyncio.Task[None]", deployment: Any, note: Note) -> None:
        note(left="maybe")
        # A sandbox that is being created has no handle yet: cancelling now is what would leak it.
        await asyncio.wait([task], timeout=CREATE_S)
        task.cancel()
        if deployment._sandbox is not None:
            await terminate(deployment._sandbox)
        if task.done() or deployment._sandbox is not None:
            note(left="no")

    def _asked(self, module: Any, name: str, spec: SandboxSpec) -> dict[str, Any]:
        given: Any = self._options.get("modal_sandbox_kwargs") or {}
        more: dict[str, Any] = dict(given)
        if "name" in inspect.signature(module.modal.Sandbox.create).parameters:  # newer clients: found again by it
            more.setdefault("name", f"agentkit-{name}")
        if spec.limits.cpus is not None:
            more["cpu"] = (min(0.125, spec.limits.cpus), spec.limits.cpus)
        if spec.limits.memory_bytes is not None:
            mebibytes = max(1, spec.limits.memory_bytes // MEBIBYTE)
            more["memory"] = (min(128, mebibytes), mebibytes)
        options = self._options | {"modal_sandbox_kwargs": more}
        if spec.image is not None:
            options["image"] = spec.image
        if spec.lifetime_s is not None:
            options["deployment_timeout"] = math.ceil(spec.lifetime_s)
        return options

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """As `Deployment.remove`."""
        client = import_module("modal")
        number, name = entry.data.get("sandbox"), entry.data.get("name")
        try:
            if number is not None:
                sandbox = await client.Sandbox.from_id.aio(number)
            elif name is not None:
                sandbox = await client.Sandbox.from_name.aio(entry.data["app"], name)
            else:
                raise SandboxError(f"the Modal sandbox of {entry.name} is not known; it ends at its own time limit")
        except Exception as error:
            if type(error).__name__ == "NotFoundError":
                return
            raise SandboxError(f"the Modal sandbox of {entry.name} was not found: {error}", retryable=True) from error
        await terminate(sandbox)
