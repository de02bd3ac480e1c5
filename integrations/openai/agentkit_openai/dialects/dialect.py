"""What a dialect is: the body of a request, and a reader for the events of its answer."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from agentkit.errors import ConfigError, ModelError
from agentkit.protocols import Finish, Json

_HIGHEST_LOGPROB = 1e-3  # engines round log(1) to slightly above zero

_LIMIT = "max_tokens of the model (one generation) and of the budget (the whole chain)"
_ONE = (
    "the rollout, which samples one continuation at a time: for several of one task set the pool's group_size, for "
    "several of one turn call rollout.candidates"
)
_UNSCORED = "the client: only sampled tokens are scored; to score a whole chain, send its ids in a request of your own"
# Fields that would change what is asked for behind the client's back, and where each is set instead.
_OWN_FIELDS = {
    "model": "the client's model argument",
    "prompt": "the chain",
    "prompt_embeds": "the chain",
    "suffix": "the chain",
    "echo": "the chain, which holds what was sent already",
    "truncate_prompt_tokens": "the chain, which is never shortened",
    "add_special_tokens": "the renderer",
    "n": _ONE,
    "n_cmpl": _ONE,
    "best_of": _ONE,
    "use_beam_search": _ONE,
    "max_tokens": _LIMIT,
    "max_completion_tokens": _LIMIT,
    "n_predict": _LIMIT,
    "stop_token_ids": "the renderer's stop_ids",
    "stream": "the client, which always streams",
    "stream_options": "the client, which always streams",
    "logprobs": "the client, which always asks for those of the sampled tokens",
    "n_probs": "the client, which always asks for those of the sampled tokens",
    "prompt_logprobs": _UNSCORED,
    "post_sampling_probs": "the client's logprobs argument",
    "return_token_ids": "the client, which always asks for ids",
    "return_tokens_as_token_ids": "the client, which always asks for ids",
    "return_tokens": "the client, which always asks for ids",
    "request_id": "the client, one for each try",
    "session_id": "the client, one for each trajectory",
}


class Reader(Protocol):
    """One answer being read. A fault is a ModelError; nothing in an answer, however odd, raises anything else."""

    def read(self, data: bytes, /) -> tuple[list[int], list[float]] | None:
        """The ids in this event and their log-probabilities, equally many; None for an event without any."""
        ...

    def finish(self) -> Finish:
        """How the generation ended, once the events have; a fault if they do not say, or do not add up."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether an event has said how the generation ended."""
        ...


class Dialect(Protocol):
    """How one kind of server is asked."""

    @property
    def path(self) -> str:
        """Where requests go, as `Transport.url` takes it."""
        ...

    def body(
        self,
        prompt: Sequence[bytes],
        *,
        max_tokens: int,
        stop_ids: frozenset[int],
        params: Mapping[str, Json],
    ) -> list[bytes]:
        """The pieces of a request's JSON; `prompt` is the inside of its list of ids."""
        ...

    def reader(self, prompt: Sequence[bytes], prompt_tokens: int) -> Reader:
        """A reader for the answer to a request with this prompt."""
        ...


def check_params(params: Mapping[str, Json], *, name: str = "params") -> None:
    """Refuse params that cannot be passed on.

    Raises:
        ConfigError: the client sets such a field itself; the message says where it is set.
    """
    for field in params.keys() & _OWN_FIELDS.keys():
        raise ConfigError(f"{name}[{field!r}] cannot be passed on: it is set by {_OWN_FIELDS[field]}")


def check_alone(index: object) -> None:
    """Refuse a part of another continuation than the first: tokens of two must never mix.

    Raises:
        ModelError: `index`, that of the continuation, is neither 0 nor None.
    """
    if index is not None and (type(index) is not int or index != 0):
        raise ModelError(
            f"the server sends several continuations of one prompt (index {_short(index)}), asked for was one: "
            "something between here and the model sets n"
        )


def encoded(params: Mapping[str, object]) -> bytes:
    """`params` as the inside of a JSON object, with a comma before each; those that are None are left out.

    Raises:
        ConfigError: a value has no JSON form.
    """
    try:
        text = json.dumps(
            {name: value for name, value in params.items() if value is not None},
            separators=(",", ":"),
            allow_nan=False,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"params must be JSON values: {error}") from error
    return b"," + text[1:-1].encode() if len(text) > 2 else b""


def checked_tokens(ids: object, logprobs: object, *, setting: str) -> tuple[list[int], list[float]]:
    """`ids` and `logprobs` as they came, if they are what they should be; `setting` says what makes the server do so.

    Raises:
        ModelError: they are not lists of equal length, or something in them is no id or no log-probability.
    """
    if type(ids) is not list or type(logprobs) is not list:
        raise ModelError(f"expected lists of ids and logprobs, found {_kind(ids)} and {_kind(logprobs)}: {setting}")
    if len(ids) != len(logprobs):
        raise ModelError(f"the server sent {len(ids)} ids with {len(logprobs)} logprobs: {setting}")
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < 2147483648:
            raise ModelError(f"a token id must be a whole number >= 0 and < 2**31, found {_short(token_id)}")
    for index, logprob in enumerate(logprobs):
        if type(logprob) is int:  # -1 and 0 are written without a point by some
            logprob = logprobs[index] = float(logprob) if abs(logprob) < 1 << 53 else math.nan
        if type(logprob) is not float or not -math.inf < logprob <= _HIGHEST_LOGPROB:
            raise ModelError(f"a logprob must be finite and <= 0, found {_short(logprob)} for token {ids[index]}")
    return ids, logprobs


def _kind(value: object) -> str:
    return "none" if value is None else type(value).__name__


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
    return text if len(text) <= 40 else text[:40] + "..."
