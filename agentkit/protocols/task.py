"""What is asked of an agent."""

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from agentkit.protocols.messages import Message


def _messages(value: Sequence[Message] | str) -> tuple[Message, ...]:
    return (Message("user", value),) if isinstance(value, str) else tuple(value)


@frozen
class Task:
    """One task: the messages that open it, and whatever the env and the reward need to know.

    `id` names the task within a run; the rollouts of one task form a group. A plain string as `messages` is one user
    message. `data` is for the env and the reward (as `trajectory.task.data`) and is never shown to the policy.
    `budget` overrides fields of the agent's budget. `metadata` is for whoever reads the trajectory.
    """

    id: str
    messages: tuple[Message, ...] = field(default=(), converter=_messages)
    data: Mapping[str, object] = field(factory=dict)
    budget: Mapping[str, float] = field(factory=dict)
    metadata: Mapping[str, object] = field(factory=dict)
