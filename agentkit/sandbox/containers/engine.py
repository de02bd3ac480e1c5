"""Containers by an engine with docker's command line. A container lives as long as its guest, and that as long as we.

No client stays behind for a container and none is started for a command: the engine is asked to run the guest and to
remove it, the rest goes through the guest (`guest.py`). A container is written down before it is made; its name, its
labels and its directory carry its owner.
"""

import shutil
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal, Self

import anyio

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox.completion import finish
from agentkit.sandbox.containers.client import Client, as_data, from_data
from agentkit.sandbox.containers.opening import INSIDE, Opening, directory_of, remove_directory
from agentkit.sandbox.embedded import LOG, EmbeddedSandbox
from agentkit.sandbox.leaks import PREFIX, owner
from agentkit.sandbox.registry import Entry, Registry
from agentkit.sandbox.spawner import Spawner, hold_spawner
from agentkit.sandbox.starts import Starts

TIDY_S = 30.0
GRACE_S = 10.0
PULL_S = 3600.0
NOT_NEEDED = ("AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP")
"""Of an engine's default capabilities, those that package managers in images do without. None is added by name: engines
would give it to users other than root as well."""

Pull = Literal["never", "missing", "always"]
_NO_BASH = ("executable file not found", "no such file or directory", "stat bash")
_NO_IMAGE = ("image not known", "no such image", "unable to find image", "reference does not exist")
_NO_DAEMON = ("cannot connect to the docker daemon", "while trying to connect to the docker daemon")
"""Nothing was made, so nothing is to be removed: a later collection could not reach the daemon either."""


class Engine:
    """What podman and docker have in common.

    `image` is for specs that name none; `pull` says when images are fetched. `user` is whom commands run as, the
    image's own where None. `network` is what the engine calls the network of specs that ask for `host`. `arguments` are
    added to the engine's `run`. `directory` is where the FIFOs of containers are, on a file system that the engine
    sees; the system's for temporary files where None. At most `max_starts` containers are being started at a time, as
    many are being removed, and each must answer within `start_timeout_s`.
    """

    name: ClassVar[str]
    isolated = True
    _run_flags: ClassVar[tuple[str, ...]] = ()
    _remove_flags: ClassVar[tuple[str, ...]] = ("--force", "--volumes")
    _takes_rootfs: ClassVar[bool] = False
    _looks_after_kill: ClassVar[int] = 1
    """How often to look for a container whose client was killed: a daemon may make it yet."""

    def __init__(
        self,
        *,
        command: str,
        image: str | None,
        pull: Pull,
        user: str | None,
        network: str,
        arguments: Sequence[str],
        directory: str | None,
        max_starts: int,
        start_timeout_s: float,
    ) -> None:
        self._client = Client(command)
        self._image = image
        self._pull = pull
        self._user = user
        self._network = network
        self._arguments = tuple(arguments)
        self._directory = directory
        self._timeout_s = start_timeout_s
        self._starts = Starts(max_starts)
        self._removals = Starts(max_starts)
        self._numbers = count()
        self._kept: list[Spawner] = []
        self._collected = False

    @property
    def capabilities(self) -> Capabilities:
        """What these sandboxes can do here; whether the engine may set limits shows when a container is started."""
        return Capabilities(
            isolated=True,
            image=True,
            rootfs=self._takes_rootfs,
            read_only=True,
            networks=frozenset({"none", "host"}),
            limits=frozenset({"cpus", "memory_bytes", "processes"}),
            lifetime=True,
        )

    async def __aenter__(self) -> Self:
        self._kept.append(hold_spawner("clients"))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._kept.pop().release()

    async def start(self, spec: SandboxSpec, /) -> EmbeddedSandbox:
        """A started container; its shell answers. The first one also removes what killed processes of ours left.

        Raises:
            ConfigError: the spec asks for what cannot be, or names no image.
            SandboxError: it could not be started.
        Cancellation: nothing is left behind; takes at most `TIDY_S` seconds where the engine is slow.
        """
        self.capabilities.check(spec, self.name)
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        words = self._what(spec)
        if shutil.which(self._client.words[0]) is None:
            raise SandboxError(f"{self._client.words[0]!r} is not installed")
        if not self._collected:
            self._collected = True
            from agentkit.sandbox.collect import collect  # it knows all back ends, this one as well

            await collect(types=(self.name,))
        async with self._starts.here():
            return await self._start(spec, words)

    def _what(self, spec: SandboxSpec) -> tuple[str, ...]:
        """The image or root directory, as the last words before bash's own."""
        if spec.rootfs is not None:
            return ("--rootfs", f"{spec.rootfs}:O")
        image = spec.image or self._image
        if not image or image.startswith("-"):
            raise ConfigError(f"{self.name} sandboxes need the name of an image, found {image!r}: set image")
        return (image,)

    async def _start(self, spec: SandboxSpec, words: tuple[str, ...]) -> EmbeddedSandbox:
        name = f"{PREFIX}{owner()}-{id(self) % 0x10000:04x}-{next(self._numbers)}"
        data = {**as_data(self._client), "directory": self._directory or ""}
        spawner = hold_spawner("clients")
        entry: Entry | None = None
        opening: Opening | None = None

        async def after(looks: int = 1) -> None:
            if opening is not None:
                opening.guest.end()
            if entry is not None:
                await self._remove(entry, looks, opening)
            elif opening is not None:
                await opening.remove()
            await spawner.release()

        called = False
        try:
            entry = Registry().add(self.name, name, lifetime_s=spec.lifetime_s, data=data)
            opening = Opening.make(name, self._directory)
            arguments = (*self._run(name, spec, opening), *words, *opening.command(spec))
            if spec.rootfs is None:
                await self._fetch(words[-1])
            called = True
            result = await finish(  # an engine killed half way may keep what no name leads to
                lambda: self._client.call("run", *arguments, timeout_s=self._timeout_s), grace_s=GRACE_S
            )
            if result.exit_code:
                called = not any(sign in result.text.lower() for sign in _NO_DAEMON)
                raise self._refused(result.exit_code, result.text.strip(), words[-1])
            return await opening.sandbox(name, spec, timeout_s=self._timeout_s, after=after)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await after(self._looks_after_kill if called else 0)
            raise

    async def _fetch(self, image: str) -> None:
        """Pull an image where it was said to; `run` itself never does, for that may take minutes."""
        if self._pull == "missing":
            found = await self._client.call("image", "inspect", "--format", "{{.Id}}", image)
            if found.exit_code == 0:
                return
        if self._pull != "never":
            pulled = await self._client.call("pull", "--quiet", image, timeout_s=PULL_S)
            if pulled.exit_code:
                raise SandboxError(
                    f"{self.name} could not pull {image!r}: {pulled.text.strip()[-500:]!r}", retryable=True
                )

    def _run(self, name: str, spec: SandboxSpec, opening: Opening) -> list[str]:
        words = ["--detach", "--rm", "--name", name, "--hostname", "sandbox", "--log-driver", "none"]
        words += ["--label", f"agentkit.owner={owner()}"]
        if spec.lifetime_s is not None:
            words += ["--label", f"agentkit.deadline={time.time() + spec.lifetime_s:.0f}"]
        for label, value in spec.labels.items():
            words += ["--label", f"{label}={value}"]
        words += ["--network", "none" if spec.network == "none" else self._network]
        words += ["--security-opt", "no-new-privileges"]
        for capability in NOT_NEEDED:
            words += ["--cap-drop", capability]
        words += ["--pull", "never", "--no-healthcheck", *self._run_flags]
        words += [] if self._user is None else ["--user", self._user]
        words += mount(opening.source, INSIDE)
        for outside, inside in spec.read_only:
            words += mount(outside, inside)
        if spec.limits.cpus is not None:
            words += ["--cpus", f"{spec.limits.cpus:g}"]
        if spec.limits.memory_bytes is not None:  # as much with swap: none of it
            words += ["--memory", str(spec.limits.memory_bytes), "--memory-swap", str(spec.limits.memory_bytes)]
        if spec.limits.processes is not None:
            words += ["--pids-limit", str(spec.limits.processes)]
        return [*words, *self._arguments, "--entrypoint", "bash"]

    def _refused(self, code: int, said: str, what: str) -> SandboxError:
        low = said.lower()
        if any(sign in low for sign in _NO_IMAGE):
            cure = f"fetch it ({' '.join(self._client.words)} pull {what}) or set pull to 'missing'"
            return SandboxError(f"{self.name} has no image {what!r}: {cure}")
        if code in (126, 127) and "bash" in low and any(sign in low for sign in _NO_BASH):
            return SandboxError(f"{what!r} has no bash, which {self.name} sandboxes need: install it in the image")
        cure = f"agentkit sandbox doctor {self.name} says what this machine lacks"
        return SandboxError(f"{self.name} could not start {what!r}: {said[-1000:]!r}; {cure}", retryable=code == 125)

    async def _remove(self, entry: Entry, looks: int, opening: Opening | None) -> None:
        """Remove the container of `entry`, then its directory, and strike it out last.

        Or leave it to the next collection and say so.
        """
        try:
            with anyio.move_on_after(TIDY_S, shield=True) as scope:
                if looks:
                    async with self._removals.here():
                        await self._client.remove(entry.name, self._remove_flags, looks=looks)
                if opening is not None:
                    await opening.remove()
                Registry().forget(entry)
                return
            why = f"no answer within {TIDY_S:g} s" if scope.cancelled_caught else ""
        except SandboxError as error:
            why = str(error)
        LOG.error("container %s is left to the next collection: %s", entry.name, why)
        if opening is not None:
            await opening.remove()
        Registry().add(entry.type, entry.name, lifetime_s=0.0, data=entry.data)

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Remove what an owner left.

        Raises:
            SandboxError: it is still there.
        Cancellation: it may still be there; its entry stays.
        """
        client = from_data(entry, cls.name)
        await client.remove(entry.name, cls._remove_flags)
        directory = directory_of(entry.name, entry.data.get("directory") or None)
        if entry.name.startswith(PREFIX) and Path(entry.name).name == entry.name:
            await remove_directory(directory)


def mount(outside: str, inside: str) -> list[str]:
    """The words that mount a path of this machine read-only.

    Raises:
        SandboxError: the paths cannot be written so.
    """
    for path in (outside, inside):
        if set(path) & set(',"\n\r') or not path.startswith("/"):
            raise SandboxError(f"a mounted path must be absolute, without comma, quote or newline, found {path!r}")
    return ["--mount", f"type=bind,source={outside},destination={inside},readonly"]
