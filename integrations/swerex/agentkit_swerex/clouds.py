"""SWE-ReX's Fargate and Daytona deployments, started and ended by us: blocking clients, so everything is in threads."""

import math
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar

from anyio import to_thread

from agentkit.errors import MissingExtraError, SandboxError
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.registry import Entry
from agentkit_swerex.launch import Address, Note, Starting, configured, hushed, quiet
from agentkit_swerex.through import through

STOP_S = 20.0


def cloud(kind: str) -> Any:
    """SWE-ReX's module for deployments of `kind`.

    Raises:
        MissingExtraError: the cloud's own client is not installed.
    """
    try:
        return import_module(f"swerex.deployment.{kind}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"swerex {kind} sandboxes need {error.name!r}, which is not installed: pip install 'swe-rex[{kind}]'"
        ) from error


def missing(kind: str) -> str | None:
    """Why deployments of `kind` cannot be used here, or None."""
    try:
        cloud(kind)
    except MissingExtraError as error:
        return str(error)
    return None


async def in_thread(call: Callable[[], Any], what: str) -> Any:
    """`call()`, with whatever a cloud's client raises as a `SandboxError`. Cancellation: it goes on, unseen."""
    try:
        return await to_thread.run_sync(call, abandon_on_cancel=True)
    except SandboxError:
        raise
    except Exception as error:
        raise SandboxError(f"{what}: {type(error).__name__}: {str(error)[:500]}", retryable=True) from error


class FargateServer:
    """A task with a server."""

    def __init__(self, address: Address, cluster: str, task: str) -> None:
        self.address = address
        self._cluster = cluster
        self._task = task

    async def ended(self) -> str | None:
        """As `Launched.ended`."""
        status = await in_thread(lambda: _status(self._cluster, self._task), "the task cannot be asked for")
        return None if status in ("PROVISIONING", "PENDING", "ACTIVATING", "RUNNING") else f"its task is {status}"

    async def remove(self) -> None:
        """As `Launched.remove`."""
        await _stop_task(self._cluster, self._task)


class Fargate:
    """`{type: fargate, image, cluster_name, ...}`: one task for each sandbox; credentials as boto3 finds them."""

    kind: ClassVar[str] = "fargate"
    isolated: ClassVar[bool] = True
    limits: ClassVar[frozenset[str]] = frozenset()
    has_image: ClassVar[bool] = True
    is_ours: ClassVar[bool] = True
    outlives: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = dict(options)
        self.startup_s = float(configured("FargateDeploymentConfig", self._options).runtime_timeout)

    def available(self) -> str | None:
        """Why it cannot run here, or None."""
        return missing("fargate")

    async def launch(self, name: str, spec: SandboxSpec, note: Note) -> FargateServer:
        """As `Deployment.launch`."""
        del name
        module = cloud("fargate")
        options = self._options | ({} if spec.image is None else {"image": spec.image})
        if spec.lifetime_s is not None:
            options["container_timeout"] = math.ceil(spec.lifetime_s)
        plain = quiet(module.FargateDeployment)

        def command(deployment: Any, *, token: str) -> Any:
            bare = f"swerex-remote --port {deployment._config.port} ||"  # in 1.4.0: without the token it ends at once
            told = bare.replace(" ||", f" --auth-token {token} ||")
            return [text.replace(bare, told) for text in plain._get_command(deployment, token=token)]

        config = configured("FargateDeploymentConfig", options)
        ours: Any = type("OurFargateDeployment", (plain,), {"_get_command": command})
        deployment = hushed(ours.from_config(config))
        starting = Starting()
        try:
            await starting.run(deployment.start)
            note(task=deployment._task_arn, cluster=deployment._cluster_arn)
            found = deployment.runtime._config
            address = Address(f"{found.host}:{found.port}", str(found.auth_token))
            return FargateServer(address, deployment._cluster_arn, deployment._task_arn)
        except BaseException as error:
            await through(self._undo(starting, deployment, note))
            if isinstance(error, Exception) and not isinstance(error, SandboxError):
                raise SandboxError(f"no Fargate task could be started: {error}", retryable=True) from error
            raise

    async def _undo(self, starting: Starting, deployment: Any, note: Note) -> None:
        settled = await starting.settle(within_s=STOP_S, until=lambda: deployment._task_arn is not None)
        if deployment._task_arn is not None:
            note(left="maybe", task=deployment._task_arn, cluster=deployment._cluster_arn)
            await _stop_task(deployment._cluster_arn, deployment._task_arn)
            note(left="no")
        elif not settled:
            note(left="maybe")

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """As `Deployment.remove`."""
        task = entry.data.get("task")
        if task is not None:
            await _stop_task(entry.data["cluster"], task)
        elif entry.deadline is None or time.time() < entry.deadline:
            raise SandboxError(
                f"the task of {entry.name} is not known: look into the cluster; it ends at its own time limit"
            )


def _status(cluster: str, task: str) -> str:
    tasks = import_module("boto3").client("ecs").describe_tasks(cluster=cluster, tasks=[task])["tasks"]
    return str(tasks[0]["lastStatus"]) if tasks else "STOPPED"  # forgotten about an hour after its end


async def _stop_task(cluster: str, task: str) -> None:
    def stop() -> None:
        if _status(cluster, task) != "STOPPED":
            import_module("boto3").client("ecs").stop_task(cluster=cluster, task=task)

    await in_thread(stop, "the Fargate task could not be stopped")


class DaytonaServer:
    """A Daytona sandbox with a server. SWE-ReX logs a failed removal and goes on; here it is an error."""

    def __init__(self, address: Address, client: Any, sandbox: Any) -> None:
        self.address = address
        self._client = client
        self._sandbox = sandbox

    async def ended(self) -> str | None:
        """None: only its silence can tell."""
        return None

    async def remove(self) -> None:
        """As `Launched.remove`."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await in_thread(lambda: self._client.delete(sandbox), "the Daytona sandbox could not be deleted")


class Daytona:
    """`{type: daytona, api_key, image, ...}`: one Daytona sandbox for each; the key may come from `DAYTONA_API_KEY`."""

    kind: ClassVar[str] = "daytona"
    isolated: ClassVar[bool] = True
    limits: ClassVar[frozenset[str]] = frozenset()
    has_image: ClassVar[bool] = True
    is_ours: ClassVar[bool] = True
    outlives: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = dict(options)
        self.startup_s = float(configured("DaytonaDeploymentConfig", self._options).runtime_timeout)

    def available(self) -> str | None:
        """Why it cannot run here, or None."""
        return missing("daytona")

    async def launch(self, name: str, spec: SandboxSpec, note: Note) -> DaytonaServer:
        """As `Deployment.launch`. Not SWE-ReX's start: it takes all answers to an asynchronous command for failures."""
        module = cloud("daytona")
        options = self._options | ({} if spec.image is None else {"image": spec.image})
        if spec.lifetime_s is not None:
            options["container_timeout"] = math.ceil(spec.lifetime_s)
        config = configured("DaytonaDeploymentConfig", options)
        deployment = hushed(quiet(module.DaytonaDeployment).from_config(config))
        starting = Starting()
        found: list[Address] = []

        def start() -> None:
            deployment._init_daytona()
            asked: dict[str, Any] = {"image": config.image}
            labels = {"agentkit.name": name, **spec.labels}
            if "labels" in getattr(module.CreateSandboxFromImageParams, "model_fields", {"labels": None}):
                asked["labels"] = labels
            if starting.given_up.is_set():
                return
            deployment._sandbox = sandbox = deployment._daytona.create(module.CreateSandboxFromImageParams(**asked))
            token = deployment._get_token()
            sandbox.process.create_session(name)
            request = module.SessionExecuteRequest(command=deployment._get_command(token=token), runAsync=True)
            answer = sandbox.process.execute_session_command(name, request)
            if answer.exit_code not in (None, 0):
                raise SandboxError(f"the server did not start in Daytona: exit code {answer.exit_code}", retryable=True)
            link = sandbox.get_preview_link(config.port)
            key = getattr(link, "token", None)
            headers = {"x-daytona-preview-token": str(key)} if key else {}
            found.append(Address(str(getattr(link, "url", link)), token, headers))

        try:
            await starting.run(start)
            note(sandbox=str(deployment._sandbox.id))
            return DaytonaServer(found[0], deployment._daytona, deployment._sandbox)
        except BaseException as error:
            await through(self._undo(starting, deployment, note))
            if isinstance(error, Exception) and not isinstance(error, SandboxError):
                raise SandboxError(f"no Daytona sandbox could be started: {error}", retryable=True) from error
            raise

    async def _undo(self, starting: Starting, deployment: Any, note: Note) -> None:
        settled = await starting.settle(within_s=STOP_S)
        if deployment._sandbox is not None:
            note(left="maybe", sandbox=str(deployment._sandbox.id))
            await DaytonaServer(Address("", ""), deployment._daytona, deployment._sandbox).remove()
            note(left="no")
        elif not settled:
            note(left="maybe")

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """As `Deployment.remove`; the key must be in `DAYTONA_API_KEY`."""
        number = entry.data.get("sandbox")
        if number is None:
            if entry.deadline is None or time.time() < entry.deadline:
                raise SandboxError(f"the Daytona sandbox of {entry.name} is not known: look for that label")
            return

        def delete() -> None:
            client = import_module("daytona_sdk").Daytona()
            try:
                sandbox = client.get(number)
            except Exception as error:
                if "not found" in str(error).lower():
                    return
                raise
            client.delete(sandbox)

        await in_thread(delete, "the Daytona sandbox could not be deleted")
