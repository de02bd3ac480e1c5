"""Containers by docker, with a daemon on this machine."""

import shutil
import subprocess
from collections.abc import Sequence
from typing import ClassVar

from agentkit.sandbox.containers.client import environment
from agentkit.sandbox.containers.engine import Engine, Pull


class DockerBackend(Engine):
    """Sandboxes in docker containers. The daemon must share this machine's kernel and see `directory`.

    The options are those of `Engine`. `async with` keeps the process that runs docker's command line between sandboxes.
    """

    name: ClassVar[str] = "docker"
    _looks_after_kill: ClassVar[int] = 3

    def __init__(
        self,
        *,
        command: str = "docker",
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
        """Why no container can be started here, or None. Asks the daemon, so it blocks for some 100 ms."""
        words = self._client.words
        if shutil.which(words[0]) is None:
            return f"{words[0]!r} is not installed"
        try:
            done = subprocess.run(
                [*words, "version"], capture_output=True, timeout=20, stdin=subprocess.DEVNULL, env=environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{words[0]!r} does not run: {error}"
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()[-500:]
            return f"{words[0]!r} has no daemon to talk to: {said}"
        return None
