"""The command line of a container engine, run off the event loop, with no more of our environment than it needs."""

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.sandbox.execution import execute
from agentkit.sandbox.registry import Entry
from agentkit.sandbox.spawner import HostPlace, Program, hold_spawner

CALL_S = 60.0
REMOVE_S = 15.0
_PASSED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "SSH_AUTH_SOCK",
    "DBUS_SESSION_BUS_ADDRESS",
    "REGISTRY_AUTH_FILE",
)
_PASSED_FAMILIES = ("XDG_", "DOCKER_", "CONTAINER_", "CONTAINERS_", "STORAGE_", "PODMAN_", "APPTAINER_", "SINGULARITY_")
_ABSENT = ("no such container", "no container with name or id", "does not exist")
_BUSY = ("already in progress", "is being removed", "container state improper")


class Client:
    """An engine's command line; `command` may be several words, a wrapper and what it wraps."""

    def __init__(self, command: str) -> None:
        words = tuple(shlex.split(command))
        if not words:
            raise ConfigError(f"command must name a container engine's command line, found {command!r}")
        found = shutil.which(words[0])  # at once: a relative path means what it means here and now
        self.words = (words[0] if found is None else str(Path(found).absolute()), *words[1:])

    async def call(self, *arguments: str, timeout_s: float = CALL_S) -> ExecResult:
        """Run it, standard input empty; output and errors in one stream, of which the last 32 KiB matter.

        Raises:
            SandboxError: it did not end in time.
        Cancellation: it is killed; what it asked a daemon for may happen yet.
        """
        spawner = hold_spawner("clients")
        try:
            program = Program((*self.words, *arguments), environment())
            place = HostPlace(spawner.main)
            result = await execute(place, program, timeout_s=timeout_s, cap=OutputCap(32_768, 32_768))
        finally:
            with anyio.CancelScope(shield=True):
                await spawner.release()
        if result.timed_out:
            raise SandboxError(f"{self.shown(arguments)} did not end within {timeout_s:g} s", retryable=True)
        return result

    async def remove(self, name: str, flags: Sequence[str], *, looks: int = 1) -> None:
        """Remove a container with all that runs in it, or see `looks` times that there is none.

        Raises:
            SandboxError: it is still there.
        Cancellation: it may still be there.
        """
        said = ""
        while True:
            result = await self.call("rm", *flags, name, timeout_s=REMOVE_S)
            said = result.text.strip()
            absent = any(sign in said.lower() for sign in _ABSENT)
            if result.exit_code == 0 or absent:
                looks -= 1
                if looks <= 0 or (result.exit_code == 0 and name in said):
                    return
            elif not any(sign in said.lower() for sign in _BUSY):
                raise SandboxError(f"container {name} could not be removed: {said[-500:]!r}", retryable=True)
            await anyio.sleep(0.2)

    def shown(self, arguments: Sequence[str]) -> str:
        """A call as a message names it: its values may be secrets."""
        return " ".join((*self.words, *arguments[:1]))


def as_data(client: Client) -> Mapping[str, str]:
    """What a registry entry says of a client."""
    return {"command": json.dumps(client.words)}


def from_data(entry: Entry, default: str) -> Client:
    """The client that made what `entry` names."""
    try:
        words = json.loads(entry.data["command"])
    except (KeyError, ValueError):
        words = [default]
    return Client(shlex.join(map(str, words)))


def environment() -> dict[str, str]:
    """What of our environment a client gets: what it finds its files, its daemon and its registries by."""
    return {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_FAMILIES)}
