"""What is asked of an agent."""

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from agentkit.errors import ConfigError
from agentkit.protocols.budget import Budget
from agentkit.protocols.messages import ROLES, Message


def _messages(value: "Sequence[Message | Mapping[str, str]] | str") -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message("user", value),)
    if isinstance(value, Message):
        raise ConfigError("task.messages must be a list of messages or a string, found one message: wrap it in a list")
    return tuple(_message(item, index) for index, item in enumerate(value))


def _message(item: object, index: int) -> Message:
    if isinstance(item, Message):
        return item
    if isinstance(item, Mapping) and item.get("role") in ROLES and isinstance(item.get("content"), str):
        if unknown := set(item) - {"role", "content", "name", "tool_call_id"}:
            raise ConfigError(
                f"task.messages[{index}] has the keys {sorted(unknown)}: build a Message to say more than a role, "
                "a content, a name and a tool_call_id"
            )
        return Message(**item)
    raise ConfigError(
        f"task.messages[{index}] must be a Message or a mapping with a role ({', '.join(ROLES)}) and a text as "
        f"content, found {item!r}"
    )


@frozen
class Task:
    """One task: the messages that open it, and whatever the env and the reward need to know.

    `id` names the task within a run; the rollouts of one task form a group. A plain string as `messages` is one user
    message; messages may be given as mappings with a role and a content. `data` is for the env and the reward (as
    `trajectory.task.data`) and is never shown to the policy. `budget` overrides fields of the agent's budget.
    `metadata` is for whoever reads the trajectory.
    """

    id: str
    messages: tuple[Message, ...] = field(default=(), converter=_messages)
    data: Mapping[str, object] = field(factory=dict)
    budget: Mapping[str, float] = field(factory=dict)
    metadata: Mapping[str, object] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.budget:
            Budget().override(self.budget)  # a wrong key is the caller's to mend now, not a rollout's to end with
