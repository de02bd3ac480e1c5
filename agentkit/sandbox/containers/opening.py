"""The directory of a container before it exists, and the sandbox once its guest answers."""

import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import define

from agentkit.errors import SandboxError
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.containers.guest import Guest, GuestPlace, Shared
from agentkit.sandbox.embedded import LOG, EmbeddedSandbox, absolute
from agentkit.sandbox.leaks import PREFIX, remove_tree
from agentkit.sandbox.shell import ShellSession

INSIDE = "/.agentkit"
"""Where a container has the directory."""
_DEFAULTS = {"LANG": "C.UTF-8", "HOME": "/", "PATH": os.defpath}
_OURS = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
_GUESTS = ("HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "container")


@define(eq=False)
class Opening:
    """A container that is being started: its directory `top`, of which it sees `shared` alone."""

    top: Path
    guest: Guest

    @classmethod
    def make(cls, name: str, base: str | None) -> "Opening":
        """Make the directory; nobody else on this machine can look into it.

        Raises:
            SandboxError: it cannot be made.
        """
        top = directory_of(name, base)
        try:
            top.mkdir(mode=0o700)
            return cls(top, Guest(Shared(top / "shared")))
        except OSError as error:
            remove_tree(top)
            raise SandboxError(f"no directory for a container: {error}") from error

    @property
    def source(self) -> str:
        """What to mount at `INSIDE`."""
        return str(self.guest.shared.directory)

    def command(self, spec: SandboxSpec) -> tuple[str, ...]:
        """What bash in the container is given."""
        life = 0 if spec.lifetime_s is None or spec.lifetime_s > 1e9 else -int(-spec.lifetime_s // 1)
        return ("--noprofile", "--norc", "-p", f"{INSIDE}/guest", INSIDE, str(life), spec.cwd)

    async def sandbox(
        self, name: str, spec: SandboxSpec, *, timeout_s: float, after: Callable[[], Awaitable[None]]
    ) -> EmbeddedSandbox:
        """The sandbox, its shell answering; `after` removes what is left when it is closed.

        Raises:
            SandboxError: the guest did not answer in time, or cannot work.
        Cancellation: the caller removes what there is.
        """
        found = None
        with anyio.move_on_after(timeout_s) as scope:
            found = await self.guest.first()
        if scope.cancelled_caught:
            raise SandboxError(
                f"container {name} does not answer within {timeout_s:g} s: can it read {self.source!r}, "
                "which is mounted into it?",
                retryable=True,
            )
        if found is None or found.failure is not None:
            why = "its first process ended at once" if found is None else found.failure
            raise SandboxError(f"container {name} cannot be used: {why}")
        env = environment(found.env, spec.env)
        place = GuestPlace(self.guest, found.keep)
        session = ShellSession(place, spec.cwd, env)
        await session.start()  # leaves nothing where it fails
        return EmbeddedSandbox(
            name,
            spec,
            place,
            self.guest,
            isolated=True,
            cwd=spec.cwd,
            env=env,
            session=session,
            locate=lambda path: absolute(spec.cwd, path),
            after=after,
        )

    async def remove(self) -> None:
        """End the guest, and take the directory away. Cancellation: shielded."""
        self.guest.close()
        await remove_directory(self.top)


def directory_of(name: str, base: str | None) -> Path:
    """Where the directory of container `name` is; a reaper knows its owner by its name."""
    return Path(base or tempfile.gettempdir()) / f"{PREFIX}{name.removeprefix(PREFIX)}"


async def remove_directory(top: Path) -> None:
    """Remove a container's directory. Cancellation: shielded."""

    def remove() -> bool:
        remove_tree(top)
        return not top.exists()

    with anyio.CancelScope(shield=True):
        if not await to_thread.run_sync(remove):
            LOG.error("directory %s could not be removed", top)


def environment(image: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """What a command in a container sees: the image's variables, ours for programs without a terminal, the spec's."""
    own = {name: value for name, value in image.items() if name not in _GUESTS}
    return _DEFAULTS | own | _OURS | dict(asked)
