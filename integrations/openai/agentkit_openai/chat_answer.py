"""One chat answer, put together from the events of a stream, however it was cut, or from one reply. Sans-IO."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentkit.errors import ModelError
from agentkit.parsing import HermesParser, Qwen3CoderParser, parse
from agentkit.protocols import (
    CallFault,
    EmitText,
    FaultStatus,
    Finish,
    FinishReason,
    Message,
    TextChunk,
    ToolCall,
    ToolSpec,
)
from agentkit_openai.chat_calls import CallPieces, paired
from agentkit_openai.faults import fault_of_event, plain

ANSWER_CHARS = 16 << 20
"""An answer of more characters is refused: no server may fill the memory."""

_REASONS: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,
    "abort": FinishReason.ABORTED,
    "cancelled": FinishReason.ABORTED,
}
_RAW_CALL = re.compile(r"<tool_call>\s*(?:\{|<function=|</tool_call>|\Z)")
_UNREAD = "the server did not read this as a tool call, so it was not run"
_LOST = "the answer announces a tool call and holds none"
_SWALLOWED = (
    "the server could read no tool call in this, and kept the text to itself: write the call as it is described"
)


class Answer:
    """What the policy says, passed on to `emit` piece by piece, and at the end whole.

    Of a refusal the text counts as content. `where` and `secrets` are for messages.
    """

    __slots__ = (
        "_calls", "_chars", "_content", "_emit", "_held", "_reason", "_reasoning", "_secrets", "_stopped_by", "_tools",
        "_where", "emitted", "has_raw_call", "unknown_reason", "usage",
    )  # fmt: skip

    def __init__(
        self, emit: EmitText, tools: Sequence[ToolSpec] = (), *, where: str = "", secrets: tuple[str, ...] = ()
    ) -> None:
        self._emit = emit
        self._tools = {tool.name: tool for tool in tools}
        self._where = where
        self._secrets = secrets
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls = CallPieces()
        self._reason: str | None = None
        self._stopped_by: object = "unknown"
        """vLLM says here which stop string or token ended the answer, None being the model's own."""
        self._chars = 0
        self._held: tuple[str, str] | None = None
        self.emitted = False
        """Whether any text was passed on."""
        self.usage: Mapping[str, Any] | None = None
        """What the server counted, as it sent it."""
        self.has_raw_call = False
        """Whether the content holds a tool call that the server did not take for one."""
        self.unknown_reason: str | None = None
        """The finish reason, if it is none that is known; it then counts as `stop`."""

    def feed(self, event: bytes) -> None:
        """Take an event of the stream, or a whole reply.

        Raises:
            ContextOverflow: the event says that the prompt leaves no room.
            ModelError: the event reports an error, or has not the shape of a chat answer with one choice.
            RolloutEnded: from `emit`: the generation is over.
        """
        try:
            chunk: object = json.loads(event.decode())
        except (ValueError, RecursionError):
            raise self._shape("an event", "JSON", plain(event[:400].decode("utf-8", "replace"))) from None
        if not isinstance(chunk, dict):
            raise self._shape("an event", "an object", chunk)
        chunk = cast("Mapping[str, Any]", chunk)
        if chunk.get("error") and (fault := fault_of_event(chunk, where=self._where, secrets=self._secrets)):
            raise fault
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = cast("Mapping[str, Any]", usage)
        choices = chunk.get("choices")
        if not choices:  # usage alone, or something that is no part of the answer
            return
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise self._shape("choices", "a list of objects", choices)
        choice = cast("Mapping[str, Any]", choices[0])
        if len(choices) > 1 or choice.get("index") not in (0, None):
            raise ModelError(f"{self._where}: the server sends several answers, expected one: leave n out of params")
        delta = choice.get("delta")
        if not delta and not self._chars:  # some end a stream with the whole message, which was read by then
            delta = choice.get("message")
        if delta:
            if not isinstance(delta, dict):
                raise self._shape("choices[0].delta", "an object", delta)
            self._take(cast("Mapping[str, Any]", delta), event)
        reason = choice.get("finish_reason")
        if reason:
            self._reason = reason if isinstance(reason, str) else repr(reason)
            self._stopped_by = choice.get("stop_reason", "unknown")

    def _take(self, delta: Mapping[str, Any], event: bytes) -> None:
        content, reasoning = delta.get("content"), ""
        if not isinstance(content, str):
            text, reasoning = _parts(content) if content else ("", "")
            if text is None:
                raise self._shape("content", "a text or a list of texts", content)
            content = text
        if refusal := delta.get("refusal"):
            content += self._text("refusal", refusal)
        # Some servers send the same text under both names.
        if said := delta.get("reasoning_content") or delta.get("reasoning"):
            reasoning += self._text("reasoning", said)
        if content or reasoning:
            self._push(content, reasoning)
        if calls := delta.get("tool_calls"):
            if not isinstance(calls, list):
                raise self._shape("tool_calls", "a list", calls)
            for call in calls:
                self._grow(64 + self._calls.add(call, event))
        if function := delta.get("function_call"):
            self._grow(64 + self._calls.add_legacy(function, event))

    def _push(self, content: str, reasoning: str) -> None:
        self._grow(len(content) + len(reasoning))
        if self._held or not (content.isascii() and reasoning.isascii()):
            before, thought_before = self._held or ("", "")
            content, kept = _whole(before + content)
            reasoning, thought_kept = _whole(thought_before + reasoning)
            self._held = (kept, thought_kept) if kept or thought_kept else None
            if not content and not reasoning:
                return
        if content:
            self._content.append(content)
        if reasoning:
            self._reasoning.append(reasoning)
        self.emitted = True
        self._emit(TextChunk(content, reasoning))

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._shape(name, "a text", value)
        return value

    def _grow(self, chars: int) -> None:
        self._chars += chars
        if self._chars > ANSWER_CHARS:
            raise ModelError(f"{self._where}: the answer is longer than {ANSWER_CHARS} characters")

    def _shape(self, what: str, expected: str, found: object) -> ModelError:
        said = plain(repr(found)[:400], secrets=self._secrets, limit=80)
        return ModelError(f"{self._where}: {what} of the answer must be {expected}, found {said}")

    @property
    def has_ended(self) -> bool:
        """Whether an event has said how the answer ended."""
        return self._reason is not None

    def finish(self) -> Finish:
        """The whole answer, once the stream has ended.

        Raises:
            ModelError: the answer did not come to its own end, was withheld by the server's filter, or failed.
        """
        found = self._reason
        if found is None:
            raise ModelError(f"{self._where}: the stream ended before the answer did", retryable=True)
        if found == "content_filter":
            raise ModelError(f"{self._where}: the server's content filter cut the answer")
        if found == "error":
            raise ModelError(f"{self._where}: the server failed in the middle of the answer", retryable=True)
        reason = _REASONS.get(found)
        if reason is None:
            self.unknown_reason = plain(found, secrets=self._secrets, limit=80)
            reason = FinishReason.STOP
        if self._held:  # half of a pair, whose other half never came
            content, reasoning = self._held
            self._content.append(content)
            self._reasoning.append(reasoning)
            self._emit(TextChunk(content, reasoning))
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        attempts = self._calls.read(self._tools, is_cut=reason is not FinishReason.STOP)
        if not attempts and self._tools and (raw := _RAW_CALL.search(content)):
            self.has_raw_call = True
            attempts = _unread(content[raw.start() :], reason)
        elif not attempts and found in ("tool_calls", "function_call"):
            attempts = (CallFault(FaultStatus.MALFORMED, _LOST),)
        elif not attempts and self._is_swallowed(content + reasoning):
            attempts = (CallFault(FaultStatus.MALFORMED, _SWALLOWED),)
        calls = tuple(attempt for attempt in attempts if isinstance(attempt, ToolCall))
        message = Message("assistant", content, calls, reasoning=reasoning or None)
        return Finish(reason, message, attempts or None)

    def _is_swallowed(self, said: str) -> bool:
        """Whether tokens were sampled of which nothing came.

        Streaming, vLLM's parsers drop an empty call without a word. The rollout would be taken for finished.
        """
        tokens = (self.usage or {}).get("completion_tokens")
        sampled = isinstance(tokens, int) and tokens > 1  # one is the end of the turn
        return sampled and not said and bool(self._tools) and self._stopped_by is None and self._reason == "stop"


def _whole(text: str) -> tuple[str, str]:
    """`text` with its surrogate pairs put together, and the half of one at its end, which waits for the other."""
    if text and "\ud800" <= text[-1] <= "\udbff":
        return paired(text[:-1]), text[-1]
    return paired(text), ""


def _parts(content: object) -> tuple[str | None, str]:
    """The text and the thinking in content that came as a list of parts; (None, "") for any other shape."""
    if not isinstance(content, list):
        return None, ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        said = part.get(kind) if isinstance(kind, str) else None  # {"type": "text", "text": ...}
        if kind == "thinking" and isinstance(said, list):
            said, _ = _parts(said)
        if kind not in ("text", "refusal", "thinking") or not isinstance(said, str):
            return None, ""
        (thoughts if kind == "thinking" else texts).append(said)
    return "".join(texts), "".join(thoughts)


def _unread(raw: str, reason: FinishReason) -> tuple[ToolCall | CallFault, ...]:
    """Calls that the server left in the content, as faults: with what is wrong with each, as far as can be told.

    A whole call among them does not run either: what a server leaves in the content it did not mean to be one.
    """
    parser = Qwen3CoderParser() if "<function=" in raw else HermesParser()
    found = parse(parser, raw, finish=reason).attempts
    return tuple(
        CallFault(FaultStatus.MALFORMED, _UNREAD, raw, attempt.name, "")
        if isinstance(attempt, ToolCall)
        else CallFault(attempt.status, attempt.reason, attempt.raw, attempt.name, "")
        for attempt in found
    ) or (CallFault(FaultStatus.MALFORMED, _UNREAD, raw),)
