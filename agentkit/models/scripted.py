"""Models that say what a script says: no weights, no server, token-exact all the same."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.models.sampling import position_logprob, sampled_ids, stop_id_of, tokenizer_of
from agentkit.models.turns import Turns
from agentkit.protocols.messages import FinishReason, Message
from agentkit.protocols.model import EmitText, EmitTokens, Finish, MessageRequest, TextChunk, TokenChunk, TokenRequest
from agentkit.protocols.tokens import Renderer, ToolParser

Script: TypeAlias = "Sequence[str] | Callable[[str], str]"
MessageScript: TypeAlias = "Sequence[Message | str] | Callable[[Sequence[Message]], Message | str]"


class ScriptedModel:
    """A token-level policy that samples the next text of a script, or what a function of the decoded prompt returns.

    A sequence is played from its start for every `request_id`, so that one model serves many rollouts. Text that
    spells a control token becomes that token. `chunk_tokens` are pushed at a time, `token_s` after one another and the
    first after `first_token_s`; with no such times, other tasks run between chunks. `policy_version` may be a function,
    asked at every chunk; `logprob` takes a token's position in the chain and its id. Without `append_stop` a turn ends
    as at a stop string, with no stop token sampled.
    """

    takes_media = True
    """What is shown changes nothing here."""

    def __init__(
        self,
        script: Script,
        *,
        renderer: Renderer | None = None,
        parser: ToolParser | None = None,
        chunk_tokens: int = 8,
        token_s: float = 0.0,
        first_token_s: float = 0.0,
        policy_version: int | Callable[[], int | None] | None = None,
        logprob: Callable[[int, int], float] = position_logprob,
        append_stop: bool = True,
    ) -> None:
        if isinstance(script, str):
            raise ConfigError(f"script must be a sequence of texts or a function, found the text {script[:40]!r}")
        if chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens must be >= 1, found {chunk_tokens!r}")
        self._renderer = renderer or _default_renderer()
        self._parser = parser
        self._tokenizer = tokenizer_of(self._renderer)
        self._stop_id = stop_id_of(self._renderer) if append_stop else None
        self._function = script if callable(script) else None
        self._turns: Turns[str] = Turns(() if callable(script) else script)
        self._chunk_tokens = chunk_tokens
        self._token_s = token_s
        self._first_token_s = first_token_s
        self._policy_version = policy_version
        self._logprob = logprob

    @property
    def renderer(self) -> Renderer:
        """How messages become token ids for this policy."""
        return self._renderer

    @property
    def parser(self) -> ToolParser:
        """How this policy writes its tool calls."""
        if self._parser is None:
            from agentkit.parsing import HermesParser  # most models bring their own

            self._parser = HermesParser()
        return self._parser

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        """Push the ids of the script's next text, a chunk at a time.

        Raises:
            ContextOverflow: `max_tokens` is below 1.
            ModelError: the script has no text left for this `request_id`.
        Cancellation: nothing more is pushed; the next request of this `request_id` gets the text after this one.
        """
        if request.max_tokens < 1:
            raise ContextOverflow(f"max_tokens must be >= 1, found {request.max_tokens!r}")
        ids, reason = self._continuation(request)
        start = len(request.prompt_ids)
        await _pause(self._first_token_s)
        for first in range(0, len(ids), self._chunk_tokens):
            chunk = ids[first : first + self._chunk_tokens]
            await _pause(self._token_s * len(chunk))
            logprobs = [self._logprob(start + first + offset, token_id) for offset, token_id in enumerate(chunk)]
            version = self._policy_version() if callable(self._policy_version) else self._policy_version
            emit(TokenChunk(chunk, logprobs, version))
        return Finish(reason)

    def _continuation(self, request: TokenRequest) -> tuple[list[int], FinishReason]:
        if self._function is None:
            text = self._turns.next(request.request_id)
        else:
            text = self._function(self._tokenizer.decode(request.prompt_ids))
        ids = sampled_ids(self._tokenizer, text)
        stops = request.stop_ids | self._renderer.stop_ids
        end = next((position + 1 for position, token_id in enumerate(ids) if token_id in stops), None)
        if end is not None:  # the script spelled the stop token itself
            ids = ids[:end]
        elif self._stop_id is not None:
            ids.append(self._stop_id)
        if len(ids) > request.max_tokens:
            return ids[: request.max_tokens], FinishReason.LENGTH
        return ids, FinishReason.STOP


class ScriptedMessageModel:
    """A message-level policy that says the next message of a script, or what a function of the history returns.

    A text is an assistant message. A sequence is played from its start for every `request_id`. Text is pushed
    `chunk_chars` at a time, reasoning first, `chunk_s` after one another. `max_tokens` is not counted: there are no
    tokens.
    """

    def __init__(self, script: MessageScript, *, chunk_chars: int = 32, chunk_s: float = 0.0) -> None:
        if isinstance(script, str):
            raise ConfigError(f"script must be a sequence of messages or a function, found the text {script[:40]!r}")
        if chunk_chars < 1:
            raise ConfigError(f"chunk_chars must be >= 1, found {chunk_chars!r}")
        self._function = script if callable(script) else None
        self._turns: Turns[Message | str] = Turns(() if callable(script) else script)
        self._chunk_chars = chunk_chars
        self._chunk_s = chunk_s

    async def sample_message(self, request: MessageRequest, emit: EmitText, /) -> Finish:
        """Push the text of the script's next message, a chunk at a time, and return the message.

        Raises:
            ContextOverflow: `max_tokens` is below 1.
            ModelError: the script has no message left for this `request_id`, or its message is not the assistant's.
        Cancellation: nothing more is pushed; the next request of this `request_id` gets the message after this one.
        """
        if request.max_tokens < 1:
            raise ContextOverflow(f"max_tokens must be >= 1, found {request.max_tokens!r}")
        said = self._turns.next(request.request_id) if self._function is None else self._function(request.messages)
        message = Message("assistant", said) if isinstance(said, str) else said
        if message.role != "assistant":
            raise ModelError(f"a scripted message must have the role 'assistant', found {message.role!r}")
        await checkpoint()
        for piece in self._pieces(message.reasoning or ""):
            await _pause(self._chunk_s)
            emit(TextChunk(reasoning=piece))
        for piece in self._pieces(message.content):
            await _pause(self._chunk_s)
            emit(TextChunk(content=piece))
        return Finish(FinishReason.STOP, message)

    def _pieces(self, text: str) -> list[str]:
        return [text[first : first + self._chunk_chars] for first in range(0, len(text), self._chunk_chars)]


async def _pause(seconds: float) -> None:
    await (anyio.sleep(seconds) if seconds > 0 else checkpoint())


def _default_renderer() -> Renderer:
    from agentkit.tokens import byte_chatml  # building it takes a while, and most models bring their own

    return byte_chatml()
