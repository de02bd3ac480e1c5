"""What samples: token-level and message-level models, pushing what they sample as it arrives.

A model pushes chunks into `emit` instead of yielding them: a deadline, a cancellation or a crash in mid-generation then
loses nothing that was pushed, and no generator is left half-closed. `emit` is synchronous, cheap, and raises
`RolloutEnded` once the generation is over, so that code which outlives its deadline cannot add to the record.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias, cast, runtime_checkable

from attrs import field, frozen

from agentkit.errors import ModelError
from agentkit.protocols.actions import CallFault
from agentkit.protocols.media import Placed
from agentkit.protocols.messages import FinishReason, Json, Message, ToolCall, ToolSpec
from agentkit.protocols.tokens import Renderer, ToolParser


@frozen
class TokenChunk:
    """Sampled tokens, in order: `token_ids[t]` with `logprobs[t]`, and the policy version that sampled them."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_version: int | None = None


@frozen
class TextChunk:
    """A piece of an API answer, in order."""

    content: str = ""
    reasoning: str = ""


@frozen
class Finish:
    """How a generation ended. Message-level models give the whole answer as `message`.

    `attempts` is for a message-level model that looked into the calls itself: those that can run, and a `CallFault` for
    each that cannot, in the order written. With None they are the message's `tool_calls`, of which the last does not
    run where the answer was cut. Ids that are empty or repeated are replaced.

    `stop_string` is for a token-level model that ended at a stop string: which one, looked for once `min_tokens` were
    sampled. Its ids go on to the end of the token in which it was found; what is read as an action ends with it.
    """

    reason: FinishReason = FinishReason.STOP
    message: Message | None = None
    attempts: tuple[ToolCall | CallFault, ...] | None = None
    stop_string: str | None = None
    min_tokens: int = 0

    def __attrs_post_init__(self) -> None:
        reason, message = cast("object", self.reason), cast("object", self.message)  # as user code built it
        if not isinstance(reason, FinishReason) or not isinstance(message, Message | None):
            raise ModelError(
                f"a Finish has a FinishReason and a Message or None, found {self.reason!r} and {self.message!r:.200}"
            )
        if not isinstance(cast("object", self.stop_string), str | None) or type(self.min_tokens) is not int:
            raise ModelError(
                "the stop_string of a Finish is a text or None, and its min_tokens a whole number, found "
                f"{self.stop_string!r:.200} and {self.min_tokens!r:.200}"
            )
        attempts = cast("object", self.attempts)
        if attempts is None:
            return
        if not isinstance(attempts, tuple) or not all(isinstance(each, ToolCall | CallFault) for each in attempts):
            raise ModelError(f"the attempts of a Finish are a tuple of ToolCall and CallFault, found {attempts!r:.200}")
        if message is None:
            raise ModelError("a Finish with attempts needs the message that made them, found None")


EmitTokens: TypeAlias = Callable[[TokenChunk], None]
EmitText: TypeAlias = Callable[[TextChunk], None]


@frozen
class TokenRequest:
    """Ask for a continuation of `prompt_ids`.

    `request_id` is one per trajectory, so that servers and routers keep its prefix warm. `prompt_ids` is a view of the
    live chain, not a copy; the first `len(prompt_ids) - new_ids` are what the previous request of this chain ended
    with, so a client can grow its wire form instead of rebuilding it. `deadline` is an `anyio.current_time()` value.
    `media` are all that the prompt shows, in order; only a model whose `takes_media` is true is asked with any. Time
    within `with request.waiting():` is spent waiting for the trainer, which exchanges weights, say: the budget's
    `count_waiting` decides whether it counts, and the trajectory's timings tell it apart.
    """

    request_id: str
    prompt_ids: Sequence[int]
    new_ids: int
    max_tokens: int
    stop_ids: frozenset[int]
    deadline: float
    params: Mapping[str, Json] = field(factory=dict)
    media: Sequence[Placed] = ()
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext


@frozen
class MessageRequest:
    """Ask for the next message of a conversation. `messages` is a view of the live history, not a copy."""

    request_id: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...]
    max_tokens: int
    deadline: float
    params: Mapping[str, Json] = field(factory=dict)


@runtime_checkable
class TokenModel(Protocol):
    """A policy that takes token ids and gives token ids with log-probabilities."""

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        """Push what is sampled into `emit`, as it arrives, and say how it ended.

        Raises:
            ContextOverflow: no room for one more token.
            ModelError: anything else the model's side did wrong.
        Cancellation: stop the work and let the cancellation through; what was pushed is kept.
        """
        ...


@runtime_checkable
class MessageModel(Protocol):
    """A policy behind a chat API: messages in, message out, no tokens."""

    async def sample_message(self, request: MessageRequest, emit: EmitText, /) -> Finish:
        """Push the answer's text into `emit`, as it arrives, and return it whole.

        Raises:
            ContextOverflow: no room for one more token.
            ModelError: anything else the model's side did wrong.
        Cancellation: stop the work and let the cancellation through; what was pushed is kept.
        """
        ...


Model: TypeAlias = TokenModel | MessageModel


@runtime_checkable
class HasRenderer(Protocol):
    """A token-level model that knows its renderer and parser, so that the agent need not be told."""

    @property
    def renderer(self) -> Renderer:
        """How messages become token ids for this policy."""
        ...

    @property
    def parser(self) -> ToolParser:
        """How this policy writes its tool calls."""
        ...
