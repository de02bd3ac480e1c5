"""What the policy did in one generation, and what came back."""

from collections.abc import Mapping
from enum import StrEnum
from typing import cast

from attrs import field, frozen

from agentkit.errors import ConfigError, ToolError
from agentkit.protocols.media import Part, check_parts, text_of
from agentkit.protocols.messages import FinishReason, Json, Message, ToolCall


class FaultStatus(StrEnum):
    """What is wrong with an attempted tool call."""

    INVALID_JSON = "invalid_json"
    UNCLOSED = "unclosed"
    TRUNCATED = "truncated"
    MISSING_NAME = "missing_name"
    MALFORMED = "malformed"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"


@frozen
class CallFault:
    """An attempted call that cannot run; `reason` is what the policy is told, `raw` is the text it wrote."""

    status: FaultStatus
    reason: str
    raw: str = ""
    name: str | None = None
    id: str = ""


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def call_id(turn: int, number: int) -> str:
    """The id a rollout gives to call `number` of turn `turn`: nine letters and digits, as Mistral's templates want."""
    return f"call{_in_36(turn, 3)}{_in_36(number, 2)}"


def _in_36(value: int, width: int) -> str:
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return digits.rjust(width, "0")


def with_id(attempt: ToolCall | CallFault, call_id: str) -> ToolCall | CallFault:
    """The attempt under another id; `attrs.evolve` does the same in five times the time."""
    if isinstance(attempt, ToolCall):
        return ToolCall(call_id, attempt.name, attempt.arguments)
    return CallFault(attempt.status, attempt.reason, attempt.raw, attempt.name, call_id)


@frozen
class Parsed:
    """What a parser found in one generation: text, reasoning, and every attempted call in the order written."""

    content: str = ""
    reasoning: str | None = None
    attempts: tuple[ToolCall | CallFault, ...] = ()


@frozen
class Action:
    """One generation of the policy.

    `text` is the sampled text, verbatim; `content`, `reasoning` and `attempts` are what the parser made of it. Behind a
    stop string that ended in the middle of a token, `text` goes on to the end of the token, the others do not.
    """

    text: str
    content: str = ""
    reasoning: str | None = None
    attempts: tuple[ToolCall | CallFault, ...] = ()
    finish: FinishReason = FinishReason.STOP

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that parsed."""
        return tuple(attempt for attempt in self.attempts if isinstance(attempt, ToolCall))

    @property
    def faults(self) -> tuple[CallFault, ...]:
        """The attempts that did not parse."""
        return tuple(attempt for attempt in self.attempts if isinstance(attempt, CallFault))

    def message(self) -> Message:
        """The assistant message to put in a message history."""
        return Message("assistant", self.content, tool_calls=self.calls, reasoning=self.reasoning)


class ObservationStatus(StrEnum):
    """How an observation came about."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    FORMAT_ERROR = "format_error"
    SKIPPED = "skipped"
    """A call that was not run because the rollout ended before its turn came."""


def _no_metadata() -> Mapping[str, Json]:
    return {}


@frozen
class Observation:
    """What an action caused.

    `content` is what the policy reads. `done` ends the rollout as `finished`. `call_id` is set by the loop for
    answers to calls; `role` is `tool` for those and `user` for what an env says unasked. Where it shows media, `parts`
    are texts and media in order, and `content` is their texts: `Observation.of` sets both.
    """

    content: str
    done: bool = False
    status: ObservationStatus = ObservationStatus.OK
    call_id: str | None = None
    name: str | None = None
    metadata: Mapping[str, Json] = field(factory=_no_metadata)
    parts: tuple[Part, ...] = ()

    def __attrs_post_init__(self) -> None:
        content, status = cast("object", self.content), cast("object", self.status)  # as user code built it
        if not isinstance(content, str) or not isinstance(status, ObservationStatus):
            raise ToolError(
                f"an observation has a text and an ObservationStatus, found {self.content!r:.200} and {self.status!r}"
            )
        if self.parts:
            try:
                check_parts(self.content, self.parts)
            except ConfigError as error:
                raise ToolError(f"an observation cannot be shown: {error}") from None

    @classmethod
    def of(
        cls,
        *parts: Part,
        done: bool = False,
        status: ObservationStatus = ObservationStatus.OK,
        metadata: Mapping[str, Json] | None = None,
    ) -> "Observation":
        """An observation of texts and media, in the order in which they are shown."""
        shown = () if all(isinstance(part, str) for part in parts) else parts
        return cls(text_of(parts), done, status, metadata={} if metadata is None else metadata, parts=shown)

    def message(self) -> Message:
        """The message to put in a message history."""
        if self.call_id is None:
            return Message("user", self.content, parts=self.parts)
        return Message("tool", self.content, tool_call_id=self.call_id, name=self.name, parts=self.parts)
