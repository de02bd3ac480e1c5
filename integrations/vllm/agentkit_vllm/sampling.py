"""What vLLM is told about one generation, from an agent's `params` and what the rollout itself decides. Pure."""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from agentkit.errors import ConfigError
from agentkit.protocols import Json

_ONE = (
    "one continuation is sampled at a time: for several of one task set the pool's group_size, for several of one turn "
    "call rollout.candidates"
)
_OWN = {
    "max_tokens": "it follows from budget.max_tokens and the engine's window",
    "stop_token_ids": "the renderer says which ids end a turn",
    "n": _ONE,
    "best_of": _ONE,
    "use_beam_search": _ONE,
    "logprobs": "every sampled token comes with its log-probability",
    "prompt_logprobs": "only sampled tokens are scored; model.engine scores a whole chain in a request of your own",
    "echo": "the chain holds the prompt already",
    "flat_logprobs": "how log-probabilities are passed on is no choice",
    "logprob_token_ids": "only the sampled token's log-probability is recorded",
    "output_kind": "what is sampled is streamed",
    "detokenize": "text is decoded by the renderer",
    "skip_clone": "parameters belong to one request",
}

Field = object
"""A value of a field of vLLM's SamplingParams."""


def check_params(params: Mapping[str, Json], *, known: Collection[str] | None = None) -> None:
    """See that `params` can go to vLLM: nothing that the rollout decides and, given `known`, nothing vLLM lacks.

    Raises:
        ConfigError: a name is not for the caller to set, or unknown.
    """
    for name in params:
        if (reason := _OWN.get(name)) is not None:
            raise ConfigError(f"params.{name} is set by the model itself: {reason}; leave it out")
        if known is not None and (name not in known or name.startswith("_")):
            near = get_close_matches(name, known, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"params.{name} is no sampling parameter of this vLLM{hint}")


def sampling_fields(params: Mapping[str, Json], *, stop_ids: Iterable[int], max_tokens: int) -> dict[str, Field]:
    """The fields of vLLM's SamplingParams for one generation of at most `max_tokens`, `output_kind` left out.

    Keys of `logit_bias` may be strings, as JSON has them. Text is decoded by the engine only where `stop` needs it.

    Raises:
        ConfigError: a value has another shape than vLLM takes.
    """
    fields: dict[str, Field] = dict(params)
    if (bias := params.get("logit_bias")) is not None:
        fields["logit_bias"] = _bias(bias)
    return fields | {
        "max_tokens": max_tokens,
        "stop_token_ids": sorted(stop_ids),
        "logprobs": 0,  # of the sampled token, and of no other
        "detokenize": bool(params.get("stop")),
    }


def held_tokens(params: Mapping[str, Json]) -> int:
    """How many tokens are sampled before stop strings are looked for."""
    held = params.get("min_tokens")
    return held if isinstance(held, int) else 0


def _bias(bias: Json) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise ConfigError(f"params.logit_bias must map token ids to numbers, found {bias!r:.200}")
    found: dict[int, float] = {}
    for key, value in bias.items():
        try:
            token_id = int(key)
        except ValueError:
            raise ConfigError(f"params.logit_bias must have token ids as keys, found {key!r:.100}") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"params.logit_bias[{token_id}] must be a number, found {value!r:.100}")
        found[token_id] = float(value)
    return found
