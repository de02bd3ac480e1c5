"""How text becomes tokens, messages become a prompt, and sampled text becomes calls."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from agentkit.protocols.actions import Parsed
from agentkit.protocols.messages import FinishReason, Message, ToolSpec


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back, with the control tokens kept apart from plain text."""

    @property
    def control(self) -> Mapping[str, int]:
        """Every added token by its text, whether the tokenizer calls it special or not."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """The ids of `text` as plain text: no control token can come out, whatever the text says."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included, bytes that are no UTF-8 as U+FFFD."""
        ...


@runtime_checkable
class ChatTemplate(Protocol):
    """Messages to text, as the family's own template renders them."""

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The full rendering; with `generation_prompt`, up to where the policy starts to sample."""
        ...


@runtime_checkable
class Renderer(Protocol):
    """Messages to token ids: the first prompt, and the bridge from a sampled turn to the next prompt.

    Pure: no method keeps state between calls, and each costs O(new text).
    """

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn when sampled."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Sequence[int]:
        """The ids of a full rendering up to where the policy starts to sample."""
        ...

    def bridge(
        self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], *, sampled: Sequence[int]
    ) -> "tuple[Sequence[int], Sequence[int]]":
        """The ids to append after a sampled turn: (those that close it, those that lead to the next generation).

        `action` is the sampled turn as parsed (its calls, their ids and names), `new` every message since, in one
        batch. `sampled` are the ids of the turn, verbatim: where the last is no stop id, the first part closes the turn
        and what is open in it, else the first part is empty.

        Raises:
            NotAppendable: the template would rewrite what is already in the chain.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids with control tokens kept, without a final stop token."""
        ...


@runtime_checkable
class Dated(Protocol):
    """A renderer whose template may read the clock."""

    def dated(self, now: datetime, /) -> Renderer:
        """The same renderer for which it is always `now`: what one trajectory renders must not change at midnight."""
        ...


@runtime_checkable
class HoldsOneCall(Protocol):
    """A renderer that knows whether its template can hold several calls in a turn."""

    @property
    def holds_one_call(self) -> bool:
        """Whether a turn with two calls cannot be rendered: then it is a fault of the policy to make two."""
        ...


class ParseSession(Protocol):
    """One generation being parsed. Total: any text gives a result, none raises."""

    def feed(self, text: str, /) -> None:
        """Take the next piece of sampled text; where the text is split makes no difference."""
        ...

    def finish(self, reason: FinishReason, /) -> Parsed:
        """What was found. A call that is open when `reason` is `length` or `aborted` is a fault, never a call."""
        ...


@runtime_checkable
class ToolParser(Protocol):
    """How a model family writes tool calls."""

    def begin(self, tools: Sequence[ToolSpec], /) -> ParseSession:
        """Start on a new generation; `tools` are those the policy was shown."""
        ...
