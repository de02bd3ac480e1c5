"""SWE-ReX servers that somebody else started: we use them, and leave them as they were."""

from collections.abc import Mapping
from typing import ClassVar

from attrs import frozen

from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.registry import Entry
from agentkit_swerex.launch import Address, Note, configured


@frozen
class RemoteServer:
    """A server that is not ours to end: what we started there ends with its guest."""

    address: Address

    async def ended(self) -> str | None:
        """None: only its silence can tell."""
        return None

    async def remove(self) -> None:
        """Nothing: it was there before us."""


class Remote:
    """`{type: remote, host, port, auth_token}`: any server that is running already.

    Several sandboxes on one server share its file system, and wait for one another.
    """

    kind: ClassVar[str] = "remote"
    isolated: ClassVar[bool] = False
    limits: ClassVar[frozenset[str]] = frozenset()
    has_image: ClassVar[bool] = False
    is_ours: ClassVar[bool] = False
    outlives: ClassVar[bool] = False
    startup_s = 30.0

    def __init__(self, options: Mapping[str, object]) -> None:
        config = configured("RemoteDeploymentConfig", options)
        url = config.host if config.port is None else f"{config.host}:{config.port}"
        self._address = Address(url, config.auth_token)

    def available(self) -> str | None:
        """None: whether the server is there is seen at the start."""
        return None

    async def launch(self, name: str, spec: SandboxSpec, note: Note) -> RemoteServer:
        """As `Deployment.launch`."""
        del name, spec, note
        return RemoteServer(self._address)

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Nothing we may end: the guest ends by itself, at its lifetime or when nobody asks it anything."""
        del entry
