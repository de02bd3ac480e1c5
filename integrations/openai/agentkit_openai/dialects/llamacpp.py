"""llama.cpp's own `/completion`, the only endpoint of its server that returns ids.

What was seen of it (build 11434): the sampled end-of-turn token is among the ids and has its log-probability; there are
no stop ids, so the client cuts at them; while a character of several bytes is incomplete, the ids and log-probabilities
of its first tokens are held back and never sent, which `tokens_predicted` gives away. An answer with such a gap is
refused here: it is not what was sampled. So is one with tokens accepted from a draft: the server writes 0 for their
log-probability, and nothing in the list of the likeliest tokens, which it fills for every token that it scored.
"""

import json
from collections.abc import Mapping, Sequence

from agentkit.errors import ConfigError, ModelError
from agentkit.protocols import Finish, FinishReason, Json
from agentkit_openai.dialects.dialect import check_alone, checked_tokens, encoded
from agentkit_openai.faults import fault_of_event, plain

# The server's own defaults cut the distribution (top_k 40, top_p 0.95, min_p 0.05, temperature 0.8).
_NEUTRAL: Mapping[str, Json] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
}
_UNKNOWN = frozenset({"min_tokens", "allowed_token_ids", "bad_words", "structured_outputs", "priority", "cache_salt"})
_SETTING = (
    "each id needs one, which llama.cpp gives for n_probs=1 (sent with each request), but not for tokens accepted from "
    "a draft: start it without --model-draft and --spec-type"
)
_FINISH = {"eos": FinishReason.STOP, "word": FinishReason.STOP, "limit": FinishReason.LENGTH}


class LlamaCppDialect:
    """Ids in and out over llama.cpp's native endpoint."""

    path = "/completion"

    def body(
        self, prompt: Sequence[bytes], *, max_tokens: int, stop_ids: frozenset[int], params: Mapping[str, Json]
    ) -> list[bytes]:
        tail = b'],"n_predict":%d,"stream":true,"return_tokens":true,"n_probs":1,"cache_prompt":true%b}' % (
            max_tokens,
            encoded({**_NEUTRAL, **_translated(params)}),
        )
        return [b'{"prompt":[', *prompt, tail]

    def reader(self, prompt: Sequence[bytes], prompt_tokens: int) -> "LlamaCppReader":
        return LlamaCppReader(prompt_tokens)


def _translated(params: Mapping[str, Json]) -> dict[str, object]:
    for name in params.keys() & _UNKNOWN:
        raise ConfigError(f"params[{name!r}] is not known to llama.cpp, which would ignore it")
    translated: dict[str, object] = {
        "repeat_penalty" if name == "repetition_penalty" else name: value for name, value in params.items()
    }
    bias = translated.get("logit_bias")
    if isinstance(bias, dict):
        try:
            translated["logit_bias"] = [[int(token_id), value] for token_id, value in bias.items()]
        except (TypeError, ValueError):
            raise ConfigError(f"params['logit_bias'] must have token ids as keys, found {list(bias)[:3]!r}") from None
    return translated


class LlamaCppReader:
    """Reads the events of one completion."""

    __slots__ = ("_count", "_finish", "_prompt_tokens", "_stop_string")

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._count = 0
        self._finish: FinishReason | None = None
        self._stop_string: str | None = None

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    def read(self, data: bytes, /) -> tuple[list[int], list[float]] | None:
        try:
            event = json.loads(data)
            check_alone(event.get("index"))
            ids, is_last, predicted = event["tokens"], event["stop"], event["tokens_predicted"]
            found = event.get("completion_probabilities") or []
            logprobs = [each["logprob"] for each in found]
            if [each["id"] for each in found] != ids and len(found) == len(ids):
                raise ModelError(f"the server sent ids with the logprobs of others: {plain(repr(ids), limit=80)}")
            if not all(each["top_logprobs"] for each in found):
                raise ModelError(f"the server sent ids without their logprobs: {_SETTING}")
            evaluated = event["tokens_evaluated"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._odd(data) from None
        ids, logprobs = checked_tokens(ids, logprobs, setting=_SETTING)
        if self._finish is not None:
            raise ModelError("the server went on after it had ended the generation")
        self._count += len(ids)
        if predicted != self._count:
            raise ModelError(
                f"the server sampled {plain(repr(predicted), limit=40)} tokens and sent the ids of {self._count}: "
                "llama.cpp holds back ids inside a character of several bytes, so such an answer is not token-exact; "
                "sample with vLLM, or evaluate with ChatModel"
            )
        if evaluated != self._prompt_tokens:
            raise ModelError(
                f"the server went on from a prompt of {plain(repr(evaluated), limit=40)} ids, sent were "
                f"{self._prompt_tokens}"
            )
        if is_last:
            reason: object = event.get("stop_type")
            finish = _FINISH.get(reason) if isinstance(reason, str) else None
            if finish is None:
                raise ModelError(f"the server ended the generation with {plain(repr(reason), limit=80)}")
            self._finish = finish
            if reason == "word" and isinstance(word := event.get("stopping_word"), str):
                self._stop_string = word
        return (ids, logprobs) if ids else None

    def finish(self) -> Finish:
        if self._finish is None:
            raise ModelError("the stream ended before the generation did", retryable=True)
        return Finish(self._finish, stop_string=self._stop_string)

    def _odd(self, data: bytes) -> ModelError:
        try:
            event: object = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        said = plain(data[:1000].decode("utf-8", "replace"), limit=200)
        return fault_of_event(event, where="completion") or ModelError(f"an event of the answer cannot be read: {said}")
