"""What an agent lives in."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentkit.protocols.actions import Action, Observation
from agentkit.protocols.messages import Message
from agentkit.protocols.task import Task


@runtime_checkable
class Env(Protocol):
    """One world, for one rollout. Any object with these two methods; nothing to inherit."""

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Make the world and say what opens the conversation; None stands for the task's own messages.

        Cancellation: `close` is called afterwards, also when `start` was cancelled or failed half way.
        """
        ...

    async def close(self) -> None:
        """Leave nothing behind. Called exactly once, also after a failed or cancelled `start`."""
        ...


@runtime_checkable
class Steps(Protocol):
    """An env that answers actions which call no tool."""

    async def step(self, action: Action, /) -> Observation:
        """What the action caused; `done` ends the rollout."""
        ...
