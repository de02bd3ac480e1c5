"""Containers by apptainer (singularity): no daemon, so the container is a child of ours, with the same guest in it."""

import errno
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import ClassVar, Self

import anyio

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox import OutputCap
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox.containers.client import Client, environment
from agentkit.sandbox.containers.opening import INSIDE, Opening
from agentkit.sandbox.embedded import LOG, EmbeddedSandbox
from agentkit.sandbox.leaks import MARKER, PREFIX, owner
from agentkit.sandbox.output import OutputRing
from agentkit.sandbox.pump import Pump
from agentkit.sandbox.spawner import CLOSE_S, HostPlace, Program, Spawner, StartFailed, hold_spawner
from agentkit.sandbox.starts import Starts


class ApptainerBackend:
    """Sandboxes in apptainer containers: `image` is a .sif file, a directory, or what apptainer itself fetches.

    What is written inside is kept in memory until the end. Limits of cgroups are not set: `arguments` are added to
    apptainer's `exec`, for machines where it may set them, and for GPUs. The other options are those of
    `PodmanBackend`.
    """

    name: ClassVar[str] = "apptainer"
    isolated = True

    def __init__(
        self,
        *,
        command: str = "apptainer",
        image: str | None = None,
        arguments: Sequence[str] = (),
        directory: str | None = None,
        max_starts: int = 8,
        start_timeout_s: float = 120.0,
    ) -> None:
        self._client = Client(command)
        self._image = image
        self._arguments = tuple(arguments)
        self._directory = directory
        self._timeout_s = start_timeout_s
        self._starts = Starts(max_starts)
        self._numbers = count()
        self._kept: list[Spawner] = []

    @property
    def capabilities(self) -> Capabilities:
        """What these sandboxes can do here."""
        return Capabilities(
            isolated=True,
            image=True,
            rootfs=True,
            read_only=True,
            networks=frozenset({"none", "host"}),
            lifetime=True,
        )

    async def __aenter__(self) -> Self:
        self._kept.append(hold_spawner())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._kept.pop().release()

    def available(self) -> str | None:
        """Why no container can be started here, or None. Runs a program, so it blocks for a moment."""
        words = self._client.words
        if shutil.which(words[0]) is None:
            return f"{words[0]!r} is not installed"
        try:
            done = subprocess.run(
                [*words, "version"], capture_output=True, timeout=20, stdin=subprocess.DEVNULL, env=environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{words[0]!r} does not run: {error}"
        return f"{words[0]!r} does not run: exit code {done.returncode}" if done.returncode else None

    async def start(self, spec: SandboxSpec, /) -> EmbeddedSandbox:
        """A started container; its shell answers.

        Raises:
            ConfigError: the spec asks for what cannot be, or names no image.
            SandboxError: it could not be started.
        Cancellation: nothing is left behind.
        """
        self.capabilities.check(spec, self.name)
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        image = spec.rootfs or spec.image or self._image
        if not image or image.startswith("-"):
            raise ConfigError(f"apptainer sandboxes need the name of an image, found {image!r}: set image")
        async with self._starts.here():
            return await self._start(spec, image)

    async def _start(self, spec: SandboxSpec, image: str) -> EmbeddedSandbox:
        name = f"{PREFIX}{owner()}-{os.urandom(4).hex()}-{next(self._numbers)}"
        spawner = hold_spawner()
        opening: Opening | None = None
        pump: Pump | None = None
        made: list[EmbeddedSandbox] = []

        async def after() -> None:
            if opening is not None:
                opening.guest.end()
            if pump is not None:
                await _end(pump, name)
            if opening is not None:
                await opening.remove()
            await spawner.release()

        try:
            opening = Opening.make(name, self._directory)
            argv = (*self._client.words, "exec", *self._words(spec, opening), image, "bash", *opening.command(spec))
            pump = await _spawn(HostPlace(spawner.main), Program(argv, environment() | {MARKER: name}))
            said = OutputRing(OutputCap(4096, 4096))

            async def open_it(opening: Opening = opening) -> None:
                made.append(await opening.sandbox(name, spec, timeout_s=self._timeout_s, after=after))

            await self._answer(open_it, made, pump, said)
            pump.release()
            return made[0]
        except BaseException:
            with anyio.CancelScope(shield=True):
                await (made[0].close() if made else after())
            raise

    async def _answer(
        self, open_it: Callable[[], Awaitable[None]], made: list[EmbeddedSandbox], pump: Pump, said: OutputRing
    ) -> None:
        """Wait until the sandbox is made, or raise why there is none: apptainer ended first."""
        errors: list[SandboxError] = []

        async def opened(scope: anyio.CancelScope) -> None:
            try:
                await open_it()
            except SandboxError as error:
                errors.append(error)
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(opened, group.cancel_scope)
            while not pump.process.ended:
                await pump.step(said.feed, None)
            group.cancel_scope.cancel()
        if made:
            return
        pump.drain(said.feed)
        text = said.text().decode("utf-8", "replace").strip()
        if not errors or pump.process.ended:
            code = pump.process.exit_code
            if code in (126, 127, 255) and "bash" in text and "not found" in text:
                raise SandboxError("the image has no bash, which apptainer sandboxes need: install it in the image")
            raise SandboxError(f"apptainer could not start a container: exit code {code}, {text[-1000:]!r}")
        raise errors[0]

    def _words(self, spec: SandboxSpec, opening: Opening) -> list[str]:
        words = ["--containall", "--cleanenv", "--pid", "--no-init", "--writable-tmpfs", "--no-privs"]
        words += ["--hostname", "sandbox"] if os.geteuid() == 0 else []
        words += ["--net", "--network", "none"] if spec.network == "none" else []
        for outside, inside in ((opening.source, INSIDE), *spec.read_only):
            if set(outside + inside) & set(":,\n\r"):
                raise SandboxError(
                    f"a mounted path must have no colon, comma or newline, found {outside!r}, {inside!r}"
                )
            words += ["--bind", f"{outside}:{inside}:ro"]
        return [*words, *self._arguments]


async def _spawn(place: HostPlace, program: Program) -> Pump:
    far: dict[int, int] = {}
    output = place.pipe(far, 1)
    far[2] = far[1]
    try:
        process = await place.spawn(program, far)
    except BaseException as error:
        os.close(output)
        if isinstance(error, StartFailed) and error.number == errno.ENOENT:
            raise SandboxError(f"{program.argv[0]!r} is not installed") from error
        if isinstance(error, StartFailed):
            raise SandboxError(f"{program.argv[0]!r} could not be started: {error}") from error
        raise
    finally:
        for fd in set(far.values()):
            os.close(fd)
    return Pump(process, output=output)


async def _end(pump: Pump, name: str) -> None:
    """Wait for a container's process, whose guest was told to leave; kill it where it does not."""
    for kills in (False, True):
        with anyio.move_on_after(CLOSE_S, shield=True):
            if kills:
                pump.process.kill()
            await pump.process.gone()
        if pump.process.ended:
            break
    else:
        LOG.error("container %s did not end within %s s of being killed", name, CLOSE_S)
    pump.close()
