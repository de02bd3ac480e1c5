"""A trajectory as the conversation it was, in OpenAI messages, from the record alone.

Messages are those of the record, verbatim: the prompt, then for each turn what the parser made of the sampled text and
the observations that it caused. Nothing is ever parsed back from decoded tokens.

What a loop or a user said between two turns is there too; where a history was rewritten or turns were rolled back, the
messages are those that it ended with. An older record lacks both: where that can be told, `Conversation.gaps` says so.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from attrs import frozen

from agentkit.journal.export.text import arguments_of, clean, to_json
from agentkit.protocols import Action, Message, ToolCall, Trajectory

Reasoning: TypeAlias = Literal["field", "inline", "drop"]
"""Where reasoning goes: into `reasoning_content`, into the content between `<think>` tags, or nowhere."""

Arguments: TypeAlias = Literal["string", "object"]
"""Arguments of calls: a JSON text, as the OpenAI API has it, or an object, as most chat templates want it."""

_NAMELESS = "nameless"


@frozen
class Conversation:
    """OpenAI messages, and what the record lacks of them: empty where it is the whole conversation."""

    messages: tuple[dict[str, Any], ...]
    gaps: tuple[str, ...]


def conversation(
    trajectory: Trajectory, *, reasoning: Reasoning = "field", arguments: Arguments = "string"
) -> Conversation:
    """The messages of a trajectory, without those of its sub-agents.

    Every answer to a call has its call: where the policy wrote one that could not be parsed, its arguments are empty.
    """
    said = (_message(each, reasoning, arguments) for each in _history(trajectory))
    return Conversation(tuple(said), tuple(_gaps(trajectory)))


def shown(trajectory: Trajectory) -> int:
    """How many media the policy was shown; messages here hold text alone."""
    return sum(len(message.media) for message in _history(trajectory) if message.parts)


def openai_message(
    message: Message, *, reasoning: Reasoning = "field", arguments: Arguments = "string"
) -> dict[str, Any]:
    """One message in OpenAI form; lone surrogates become U+FFFD."""
    return _message(message, reasoning, arguments)


def _history(trajectory: Trajectory) -> list[Message]:
    history = list(trajectory.prompt)
    for turn in trajectory.path():
        if turn.is_rewrite:
            history.clear()
        history += turn.heard
        history.append(_answer(turn.action))
        history += [observation.message() for observation in turn.observations]
    return history


def _answer(action: Action) -> Message:
    calls = tuple(
        attempt if isinstance(attempt, ToolCall) else ToolCall(attempt.id, attempt.name or _NAMELESS)
        for attempt in action.attempts
    )
    return Message("assistant", action.content, calls, reasoning=action.reasoning)


def _gaps(trajectory: Trajectory) -> Iterator[str]:
    if any(not last.observations and not turn.heard for last, turn in pairwise(trajectory.path())):
        yield "something was said between two turns"
    if count := shown(trajectory):
        yield f"{count} media were shown"


def _message(message: Message, reasoning: Reasoning, arguments: Arguments) -> dict[str, Any]:
    content, thought = clean(message.content), message.reasoning
    if thought and reasoning == "inline":
        content = f"<think>\n{clean(thought)}\n</think>\n\n{content}"
    said: dict[str, Any] = {"role": message.role, "content": content}
    if thought and reasoning == "field":
        said["reasoning_content"] = clean(thought)
    if message.tool_calls:
        said["tool_calls"] = [_call(call, arguments) for call in message.tool_calls]
    if message.tool_call_id is not None:
        said["tool_call_id"] = clean(message.tool_call_id)
    if message.name is not None:
        said["name"] = clean(message.name)
    return said


def _call(call: ToolCall, arguments: Arguments) -> dict[str, Any]:
    plain = arguments_of(call.arguments)
    given = to_json(plain) if arguments == "string" else plain
    return {
        "id": clean(call.id),
        "type": "function",
        "function": {"name": clean(call.name), "arguments": given},
    }
