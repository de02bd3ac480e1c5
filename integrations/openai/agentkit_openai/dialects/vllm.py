"""vLLM's `/v1/completions` with `return_token_ids` (0.10.2 and later).

What was seen of it: the sampled stop token is among the ids and has its log-probability; a stop string can match inside
a token, whose whole id is kept, and `stop_reason` then names the string; the first event quotes the whole prompt; an
engine's refusal of a parameter comes as an event after a 200; `abort` as a finish reason comes with what was sampled
until then.
"""

import json
from collections.abc import Mapping, Sequence

from agentkit.errors import ModelError
from agentkit.protocols import Finish, FinishReason, Json
from agentkit_openai.dialects.dialect import check_alone, checked_tokens, encoded
from agentkit_openai.faults import fault_of_event, plain

_ECHO = b'"prompt_token_ids":['  # its quotes are bare, so no text in the event can spell it

# A model's own generation_config.json must not change what is sampled from: where nobody asked for anything, the
# policy's own distribution is. None in params asks for the server's default.
_NEUTRAL: Mapping[str, Json] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
_SETTING = (
    "each id needs one, which vLLM gives for logprobs=0 and return_token_ids=true (sent with each request); something "
    "between here and it drops some, or adds those of the prompt"
)
_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORTED,
    "repetition": FinishReason.LENGTH,  # vLLM's repetition_detection: cut, not ended
}


class VLLMDialect:
    """Ids in and out over the completions endpoint."""

    path = "completions"

    def __init__(self, model: str) -> None:
        self._head = b'{"model":' + json.dumps(model).encode() + b',"prompt":['

    def body(
        self, prompt: Sequence[bytes], *, max_tokens: int, stop_ids: frozenset[int], params: Mapping[str, Json]
    ) -> list[bytes]:
        stops = b",".join(b"%d" % stop_id for stop_id in sorted(stop_ids))
        tail = (
            b'],"max_tokens":%d,"stop_token_ids":[%b],"stream":true,"stream_options":{"include_usage":true},'
            b'"logprobs":0,"return_token_ids":true%b}' % (max_tokens, stops, encoded({**_NEUTRAL, **params}))
        )
        return [self._head, *prompt, tail]

    def reader(self, prompt: Sequence[bytes], prompt_tokens: int) -> "VLLMReader":
        return VLLMReader(prompt, prompt_tokens)


class VLLMReader:
    """Reads the events of one completion."""

    __slots__ = ("_count", "_echo_due", "_finish", "_prompt", "_prompt_tokens", "_stop_string", "_usage")

    def __init__(self, prompt: Sequence[bytes], prompt_tokens: int) -> None:
        self._prompt = prompt
        self._prompt_tokens = prompt_tokens
        self._echo_due = True
        self._count = 0
        self._finish: FinishReason | None = None
        self._stop_string: str | None = None
        self._usage: tuple[object, object] | None = None

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    def read(self, data: bytes, /) -> tuple[list[int], list[float]] | None:
        if self._echo_due:
            data = self._without_echo(data)
        try:
            event = json.loads(data)
            choices = event["choices"]
            self._read_usage(event)  # on its own at the end; some count in every event, or in the one that ends
            if not choices:
                if event.get("error"):
                    raise self._odd(data)
                return None
            for choice in choices:
                check_alone(choice.get("index"))
            (choice,) = choices
            ids, logprobs, reason = choice["token_ids"], choice["logprobs"], choice["finish_reason"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._odd(data) from None
        if self._finish is not None and ids:
            raise ModelError("the server sent tokens after it had ended the generation")
        if reason is not None:
            self._end(reason, choice.get("stop_reason"))
        if not ids and (logprobs is None or not self._logprobs(logprobs, data)):
            return None  # a finish, or text that was held back, without a token
        found = checked_tokens(ids, self._logprobs(logprobs, data), setting=_SETTING)
        self._count += len(ids)
        return found

    def _logprobs(self, logprobs: object, data: bytes) -> object:
        if logprobs is None:
            return None
        try:
            return logprobs["token_logprobs"]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
        except (KeyError, TypeError):
            raise self._odd(data) from None

    def _end(self, reason: object, stopped_by: object) -> None:
        finish = _FINISH.get(reason) if isinstance(reason, str) else None
        if finish is None:
            is_error = reason == "error"  # the engine's own fault, at this request
            raise ModelError(f"the server ended the generation with {plain(repr(reason))}", retryable=is_error)
        self._finish = finish
        if isinstance(stopped_by, str) and finish is FinishReason.STOP:  # an id where a stop id ended it
            self._stop_string = stopped_by

    def _read_usage(self, event: Mapping[str, object]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage = usage.get("prompt_tokens"), usage.get("completion_tokens")

    def _without_echo(self, data: bytes) -> bytes:
        """The event without the prompt that it quotes, which is compared as it is: a long one takes long to parse."""
        start = data.find(_ECHO)
        if start < 0:
            return data
        start += len(_ECHO)
        stop = data.find(b"]", start)
        if stop < 0:
            return data
        self._echo_due = False
        at, quoted = start, memoryview(data)
        for piece in self._prompt:
            if quoted[at : min(at + len(piece), stop)] != piece:
                return self._compared(data, start, stop)
            at += len(piece)
        return data[:start] + data[stop:] if at == stop else self._compared(data, start, stop)

    def _compared(self, data: bytes, start: int, stop: int) -> bytes:
        """The same where the server writes its lists in another way."""
        try:
            quoted, sent = json.loads(data[start - 1 : stop + 1]), json.loads(b"[" + b"".join(self._prompt) + b"]")
        except (ValueError, RecursionError):
            raise self._odd(data) from None
        if quoted != sent:
            raise ModelError(
                f"the server went on from another prompt ({len(quoted)} ids) than was sent ({len(sent)} ids): "
                "something between here and the model rewrites prompts"
            )
        return data[:start] + data[stop:]

    def finish(self) -> Finish:
        if self._finish is None:
            raise ModelError("the stream ended before the generation did", retryable=True)
        if self._usage is not None and self._usage != (self._prompt_tokens, self._count):
            raise ModelError(
                f"the stream held {self._count} ids after a prompt of {self._prompt_tokens}, but the server counts "
                f"{plain(repr(self._usage[1]))} after {plain(repr(self._usage[0]))}: tokens were lost on the way"
            )
        return Finish(self._finish, stop_string=self._stop_string)

    def _odd(self, data: bytes) -> ModelError:
        try:
            event: object = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        fault = fault_of_event(event, where="completions")
        if fault is not None:
            return fault
        said = plain(data[:1000].decode("utf-8", "replace"), limit=200)
        if isinstance(event, dict) and isinstance(event.get("choices"), list) and b'"token_ids"' not in data:
            return ModelError(f"the answer holds no token_ids, which return_token_ids asks for: {said}")
        return ModelError(f"an event of the answer cannot be read: {said}")
