"""What is said: messages, tool calls, and the tools a policy may call."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

from attrs import field, frozen

from agentkit.errors import ConfigError
from agentkit.protocols.media import Medium, Part, check_parts, text_of

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A JSON value."""


def _no_calls() -> "tuple[ToolCall, ...]":
    return ()


@frozen
class ToolCall:
    """One call the policy asked for, as parsed and not yet validated against the tool's schema."""

    id: str
    name: str
    arguments: Mapping[str, Json] = field(factory=dict)


ROLES = ("system", "user", "assistant", "tool")


@frozen
class Message:
    """One message of a conversation.

    `reasoning` is the thinking of an assistant message, kept apart from `content` because many templates treat it
    apart; `tool_call_id` and `name` belong to messages of role `tool`. Where media are shown, `parts` are texts and
    media in order, and `content` is their texts, one after another; without media `parts` is empty.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = field(factory=_no_calls)
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    parts: tuple[Part, ...] = ()

    def __attrs_post_init__(self) -> None:
        # A role is written by the template as it stands, so it must be one that templates know, and nothing else.
        if self.role not in ROLES or not isinstance(self.content, str):
            raise ConfigError(
                f"a message has a role ({', '.join(ROLES)}) and a text, found {self.role!r} and {self.content!r:.200}"
            )
        if self.parts:
            check_parts(self.content, self.parts)
            if self.role == "assistant":
                raise ConfigError("an assistant message has no media: a policy samples text")

    @property
    def media(self) -> tuple[Medium, ...]:
        """What it shows, in order."""
        return tuple(part for part in self.parts if isinstance(part, Medium)) if self.parts else ()


def as_message(said: object) -> Message:
    """A message as it is, a string as a user message.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(said, Message):
        return said
    if isinstance(said, str):
        return Message("user", said)
    raise ConfigError(f"a message must be a Message or a string, found {said!r:.200}")


def system(content: str) -> Message:
    """A system message."""
    return Message("system", content)


def user(content: Part, *more: Part) -> Message:
    """A user message: a text, or texts and media in the order in which they are shown."""
    if not more and isinstance(content, str):
        return Message("user", content)
    parts = (content, *more)
    return Message("user", text_of(parts), parts=() if all(isinstance(part, str) for part in parts) else parts)


def assistant(content: str, *tool_calls: ToolCall) -> Message:
    """An assistant message."""
    return Message("assistant", content, tool_calls=tool_calls)


@frozen
class ToolSpec:
    """What a tool is to the policy and to the loop.

    `parameters` is a JSON schema of type `object`. `parallel` declares that calls of this tool may run side by side
    with other parallel calls of the same turn. `timeout_s` narrows the budget's `tool_s`, never extends it. `needs`
    are the runtime-checkable Protocols that the env must satisfy.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    parallel: bool = False
    timeout_s: float | None = None
    needs: tuple[type, ...] = ()


class FinishReason(StrEnum):
    """Why one generation ended."""

    STOP = "stop"
    """A stop token or stop string, or the end of an API answer."""
    LENGTH = "length"
    """Cut by a token limit: an open tool call in it never runs."""
    ABORTED = "aborted"
    """Cut by a deadline, an interrupt or the server; what was sampled is kept."""
