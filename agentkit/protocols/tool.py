"""What an agent can do."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from attrs import frozen

from agentkit.protocols.actions import Observation
from agentkit.protocols.messages import Json, ToolCall, ToolSpec


@frozen
class ToolContext:
    """What a tool may know about the rollout that calls it.

    `env` satisfies every Protocol in the tool's `needs`. `deadline` is an `anyio.current_time()` value: the call is
    cancelled then.
    """

    call: ToolCall
    env: object
    rollout_id: str
    deadline: float


@runtime_checkable
class Tool(Protocol):
    """Any object of this shape; `agentkit.tool` makes one from a typed function."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description, schema, and what the tool needs."""
        ...

    async def call(self, arguments: Mapping[str, Json], context: ToolContext, /) -> Observation:
        """Do it. `arguments` fit the schema.

        Raises:
            ToolError: the policy should read the message.
            SandboxDead: the world is gone; ends the rollout.
        """
        ...
