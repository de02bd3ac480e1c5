"""SWE-ReX's DockerDeployment, started and ended by us."""

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import anyio

from agentkit.errors import SandboxError
from agentkit.extras import require
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.leaks import owner
from agentkit.sandbox.registry import Entry
from agentkit_swerex.launch import Address, Note, Starting, configured, hushed, quiet
from agentkit_swerex.through import through

CLI_S = 60.0
KEPT_BYTES = 4096
RETRIES = 5


class Loopback(int):
    """A port that is published on the loopback interface alone: SWE-ReX has `-p {port}:8000`, which is all of them."""

    def __format__(self, spec: str) -> str:
        return f"127.0.0.1:{int(self)}"

    def __str__(self) -> str:
        return format(self)


class DockerServer:
    """A container with a server, and the client that is attached to it.

    SWE-ReX never reads what the client prints. The server logs each request; once the pipe was full the server would
    wait in the middle of one for good. Here it is read, and the end of it kept to say why a server did not start.
    """

    def __init__(
        self, command: str, container: str, address: Address, client: "subprocess.Popen[bytes] | None"
    ) -> None:
        self.address = address
        self._command = command
        self._container = container
        self._client = client
        self._said = bytearray()
        self._loop = asyncio.get_running_loop()
        self._pipes = [pipe for pipe in (client.stdout, client.stderr) if pipe is not None] if client else []
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
            self._loop.add_reader(pipe.fileno(), self._read, pipe.fileno())

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(fd)
        self._said += data
        del self._said[:-KEPT_BYTES]

    async def ended(self) -> str | None:
        """As `Launched.ended`."""
        if self._client is None or self._client.poll() is None:
            return None
        said = self._said.decode("utf-8", "replace").replace(self.address.token, "***").strip()
        return f"container {self._container} ended with exit code {self._client.returncode}: {said[-500:]}"

    async def remove(self) -> None:
        """As `Launched.remove`."""
        try:
            await remove_container(self._command, self._container)
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        for pipe in self._pipes:
            self._loop.remove_reader(pipe.fileno())
        for wait_s in (2.0, 5.0):
            gave_up = time.monotonic() + wait_s
            while client.poll() is None and time.monotonic() < gave_up:  # noqa: ASYNC110  # no event tells
                await anyio.sleep(0.01)
            client.kill()
        client.poll()
        for pipe in self._pipes:
            pipe.close()


class Docker:
    """`{type: docker, image, docker_args, container_runtime, ...}`: one container for each sandbox.

    `limits` become arguments of the container command. Its network is what the engine gives, which is to all.
    """

    kind: ClassVar[str] = "docker"
    isolated: ClassVar[bool] = True
    limits: ClassVar[frozenset[str]] = frozenset({"cpus", "memory_bytes", "processes"})
    has_image: ClassVar[bool] = True
    is_ours: ClassVar[bool] = True
    outlives: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = dict(options)
        config = configured("DockerDeploymentConfig", self._options)
        self._command = str(config.container_runtime)
        self._args = tuple(config.docker_args)
        self._platform = config.platform
        self.startup_s = float(config.startup_timeout)

    def available(self) -> str | None:
        """Why it cannot run here, or None."""
        if shutil.which(self._command) is None:
            return f"{self._command} is not installed, or not on PATH"
        return None

    async def launch(self, name: str, spec: SandboxSpec, note: Note) -> DockerServer:
        """As `Deployment.launch`. Pulling an image that is not there is part of it."""
        container = f"agentkit-{name}"
        note(command=self._command, container=container)
        config = self._configured(name, spec)
        await self._pull(config)
        module = require("swerex.deployment.docker", extra="swerex", purpose="a swerex docker sandbox")
        starting = Starting()

        def start_command(deployment: Any, token: str) -> Any:
            if starting.given_up.is_set():  # an image was still being built when nobody wanted it any more
                raise SandboxError("given up")
            return plain._get_swerex_start_cmd(deployment, token)

        def named(_: object) -> str:
            return container

        plain = quiet(module.DockerDeployment)
        body = {"_get_container_name": named, "_get_swerex_start_cmd": start_command}
        ours: Any = type("OurDockerDeployment", (plain,), body)
        deployment = hushed(ours.from_config(config))
        if isinstance(deployment._config.port, int) and config.port is not None:
            deployment._config.port = Loopback(deployment._config.port)

        try:
            await starting.run(deployment.start)
            runtime = deployment.runtime._config
            address = Address(f"{runtime.host}:{int(runtime.port)}", str(runtime.auth_token))
            return DockerServer(self._command, container, address, deployment._container_process)
        except BaseException as error:
            await through(self._undo(starting, deployment, container, note))
            if isinstance(error, Exception) and not isinstance(error, SandboxError):
                raise SandboxError(f"no container could be started: {error}", retryable=True) from error
            raise

    async def _undo(self, starting: Starting, deployment: Any, container: str, note: Note) -> None:
        if not await starting.settle(within_s=10.0):
            note(left="maybe")
        client = getattr(deployment, "_container_process", None)
        if client is None:
            return
        note(left="maybe")
        client.kill()
        await DockerServer(self._command, container, Address("", ""), client)._let_go()
        await remove_container(self._command, container)
        await anyio.sleep(0.5)  # a daemon may go on with what its client had asked for
        await remove_container(self._command, container)
        note(left="no")

    def _configured(self, name: str, spec: SandboxSpec) -> Any:
        """The configuration of one container."""
        made = list(self._args)
        made += [] if "--init" in made else ["--init"]
        labels = {"agentkit.owner": owner(), "agentkit.name": name, **spec.labels}
        if spec.lifetime_s is not None:
            labels["agentkit.deadline"] = f"{time.time() + spec.lifetime_s:.0f}"
        for key, value in labels.items():
            made += ["--label", f"{key}={value}"]
        limits = spec.limits
        if limits.cpus is not None:
            made += ["--cpus", f"{limits.cpus:g}"]
        if limits.memory_bytes is not None:
            made += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)]
        if limits.processes is not None:
            made += ["--pids-limit", str(limits.processes)]
        options = self._options | {"docker_args": made, "platform": self._platform}
        if spec.image is not None:
            options["image"] = spec.image
        if not options.get("port"):
            options["port"] = _free_port()
        return configured("DockerDeploymentConfig", options)

    async def _pull(self, config: Any) -> None:
        """Pull the image where it is wanted, by a program that can be ended, and not again by SWE-ReX."""
        wanted, config.pull = config.pull, "never"
        if wanted == "never":
            return
        if wanted == "missing" and (await cli(self._command, "image", "inspect", config.image))[0] == 0:
            return
        platform = ["--platform", self._platform] if self._platform else []
        code, said = await cli(self._command, "pull", *platform, config.image, timeout_s=3600.0)
        if code:
            raise SandboxError(f"image {config.image!r} could not be pulled: {said[-500:]}", retryable=True)

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """As `Deployment.remove`."""
        container = entry.data.get("container")
        if container is not None:
            await remove_container(entry.data["command"], container)


async def cli(*argv: str, timeout_s: float = CLI_S) -> tuple[int, str]:
    """The exit code of a program, and what it said. Cancellation: it is killed."""
    try:
        with anyio.fail_after(timeout_s):
            done = await anyio.run_process(argv, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    except TimeoutError:
        return 124, f"{argv[0]} took longer than {timeout_s:g} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


async def remove_container(command: str, container: str) -> None:
    """Kill and remove a container; one that is not there is fine.

    Raises:
        SandboxError: it may still be there.
    Cancellation: it may still be there.
    """
    now = ("-t", "0") if command.endswith("podman") else ()
    said = ""
    for attempt in range(RETRIES):
        await anyio.sleep(0.2 * attempt)
        code, said = await cli(command, "rm", "-f", *now, container)
        if code == 0:
            return
        # A container that has just been killed removes itself: both may be at it, and one then fails.
        code, seen = await cli(command, "container", "inspect", container)
        if code and "no such" in seen.lower():
            return
    raise SandboxError(f"container {container} could not be removed: {said[-500:]}", retryable=True)


def _free_port() -> int:
    """A port that is free now. Should another take it before the container does, the start may be tried again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
