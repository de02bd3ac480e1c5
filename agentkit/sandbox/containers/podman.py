"""Containers by podman."""

import shlex
import shutil
from collections.abc import Sequence
from typing import ClassVar

from agentkit.sandbox.containers.engine import Engine, Pull


class PodmanBackend(Engine):
    """Sandboxes in podman containers, of images or of directories (`rootfs`), by root or by any user.

    The options are those of `Engine`. `async with` keeps the process that runs podman's command line between sandboxes.
    """

    name: ClassVar[str] = "podman"
    _run_flags: ClassVar[tuple[str, ...]] = ("--http-proxy=false",)  # it would pass our proxies on, passwords and all
    _remove_flags: ClassVar[tuple[str, ...]] = ("--force", "--time", "0", "--ignore", "--volumes")
    _takes_rootfs: ClassVar[bool] = True

    def __init__(
        self,
        *,
        command: str = "podman",
        image: str | None = None,
        pull: Pull = "never",
        user: str | None = None,
        network: str = "host",
        arguments: Sequence[str] = (),
        directory: str | None = None,
        max_starts: int = 8,
        start_timeout_s: float = 120.0,
    ) -> None:
        super().__init__(
            command=command,
            image=image,
            pull=pull,
            user=user,
            network=network,
            arguments=arguments,
            directory=directory,
            max_starts=max_starts,
            start_timeout_s=start_timeout_s,
        )

    def available(self) -> str | None:
        """Why no container can be started here, or None. Starts one, so it blocks for some 200 ms."""
        from agentkit.sandbox.containers.doctor import obstacles

        if shutil.which(self._client.words[0]) is None:
            return f"{self._client.words[0]!r} is not installed (Debian, Fedora, Arch: the package podman)"
        found = obstacles(shlex.join(self._client.words))
        return "\n".join(f"{one.found}\ncure: {one.cure}" for one in found) or None

    def shortcomings(self) -> tuple[str, ...]:
        """What these sandboxes cannot give here, each with its cure. Starts containers: blocks for some 400 ms."""
        from agentkit.sandbox.containers.doctor import obstacles

        if self.available() is not None:
            return ()
        found = obstacles(shlex.join(self._client.words), limits=True)
        return tuple(f"limits: {one.found}\ncure: {one.cure}" for one in found)
