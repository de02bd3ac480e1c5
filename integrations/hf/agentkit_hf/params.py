"""How to sample, read from a request's parameters."""

import math
from collections.abc import Mapping
from difflib import get_close_matches

from attrs import fields, frozen

from agentkit.errors import ConfigError
from agentkit.protocols import Json

_ONE = (
    "one continuation is sampled at a time: for several of one task set the pool's group_size, for several of one turn "
    "call rollout.candidates"
)
_SCORED = "every sampled token comes with its log-probability, and no other token is scored"
_ELSEWHERE = {
    "n": _ONE,
    "best_of": _ONE,
    "num_return_sequences": _ONE,
    "num_beams": _ONE,
    "logprobs": _SCORED,
    "prompt_logprobs": _SCORED,
    "output_logits": _SCORED,
    "output_scores": _SCORED,
    "echo": "the chain holds the prompt already",
    "stop": "text is decoded from whole generations; the renderer's stop_ids end a turn",
    "stop_token_ids": "the renderer's stop_ids end a turn",
}


@frozen(kw_only=True)
class SamplingParams:
    """How one generation is sampled.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. With `seed`, the same prompt gives the same tokens, for
    every rollout of a group as well. `max_tokens` narrows the room the request gives.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None

    def __attrs_post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf)
        _check("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ConfigError("params.top_p must be above 0, found 0: temperature 0 is greedy")
        _check("top_k", self.top_k, 0, math.inf, whole=True)
        if self.seed is not None:
            _check("seed", self.seed, 0, 2**63 - 1, whole=True)
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, 1, math.inf, whole=True)

    @classmethod
    def read(cls, params: Mapping[str, Json]) -> "SamplingParams":
        """The parameters of a request; those that are None are left at their defaults.

        Raises:
            ConfigError: one is unknown here, or out of range.
        """
        names = [each.name for each in fields(cls)]
        for key in params:
            if key in _ELSEWHERE:
                raise ConfigError(f"params.{key} is not for an HFModel: {_ELSEWHERE[key]}; leave it out")
            if key not in names:
                near = get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"an HFModel knows {', '.join(names)}"
                raise ConfigError(f"params has {key!r}, which an HFModel does not know: {hint}")
        return cls(**{key: value for key, value in params.items() if value is not None})  # type: ignore[arg-type]


def _check(name: str, value: object, lowest: float, highest: float, *, whole: bool = False) -> None:
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not lowest <= value <= highest or value == math.inf:
        bounds = f">= {lowest:g}" if highest == math.inf else f"between {lowest:g} and {highest:g}"
        raise ConfigError(
            f"params.{name} must be {'a whole number' if whole else 'a number'} {bounds}, found {value!r}"
        )
