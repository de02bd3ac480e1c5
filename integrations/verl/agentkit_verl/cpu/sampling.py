"""How a request wants to be sampled, and sampling for many requests at once."""
# pyright: basic, reportMissingImports=false
# torch is not installed where pyright runs.

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen

_LOG = logging.getLogger("agentkit.verl.cpu")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "min_p": (0, None),
    "min_tokens": (0, None),
    "n": (1, None),
    "stop": (None, [], ()),
    "bad_words": (None, [], ()),
    "logit_bias": (None, {}),
}
"""Parameters that would change what is sampled and are not known here, with the values that change nothing."""
_warned: set[str] = set()


@frozen(kw_only=True)
class Sampling:
    """How one request is sampled.

    `limit` counts tokens. A temperature of 0 takes the likeliest token. `top_k` below 1 and `top_p` of 1 leave the
    distribution whole. A token of `stops` ends the request, as its last. With a `seed` the same request is sampled
    the same way whatever else is running.
    """

    limit: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stops: frozenset[int] = frozenset()
    logprobs: bool = False
    seed: int | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any], *, default_limit: int, room: int, ends: frozenset[int]) -> Sampling:
        """Reads what verl hands to a rollout server.

        Args:
            params: vLLM's names; `max_new_tokens` is taken for `max_tokens`, as verl's servers do. Of others those
                that would change what is sampled are named in a warning, once each; the rest is ignored.
            default_limit: Tokens where `params` has no limit.
            room: Tokens that the model's context has left, at least 1.
            ends: Tokens that end a reply of this model; dropped under `ignore_eos`.

        Raises:
            ValueError: A value makes no sense.
        """
        for name, neutral in _NEUTRAL.items():
            if params.get(name) not in neutral and name not in _warned:
                _warned.add(name)
                _LOG.warning("the rollout server for CPUs does not know the sampling parameter %r: ignored", name)
        limit = params.get("max_tokens")
        limit = params.get("max_new_tokens") if limit is None else limit
        limit = default_limit if limit is None else int(limit)
        temperature = float(_given(params, "temperature", 1.0))
        top_p = float(_given(params, "top_p", 1.0))
        if temperature < 0:
            raise ValueError(f"temperature is {temperature}: it cannot be negative")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p is {top_p}: it lies above 0 and not above 1")
        logprobs = params.get("logprobs")
        return cls(
            limit=max(1, min(limit, room)),
            temperature=temperature,
            top_p=top_p,
            top_k=int(_given(params, "top_k", -1)),
            stops=frozenset(params.get("stop_token_ids") or ()) | (frozenset() if params.get("ignore_eos") else ends),
            logprobs=logprobs is not None and logprobs is not False,  # 0 asks for those of the sampled tokens
            seed=params.get("seed"),
        )


def _given(params: Mapping[str, Any], name: str, default: float) -> Any:
    found = params.get(name)
    return default if found is None else found


def sample(
    logits: torch.Tensor,
    rows: Sequence[Sampling],
    generators: Sequence[torch.Generator | None],
    shared: torch.Generator,
    vocabulary: int | None = None,
) -> tuple[list[int], list[float]]:
    """One token for each row of `logits`, with its log-probability.

    The log-probability is that of the whole distribution at the row's temperature, which is what verl's trainer
    computes again, before `top_k` and `top_p` cut it; at temperature 0 that at temperature 1.

    Args:
        logits: `[rows, vocabulary]`.
        rows: How each is sampled.
        generators: The random numbers of a row, None for the `shared` ones.
        shared: Random numbers for rows without their own.
        vocabulary: Tokens from this on are never sampled: the model has more than its tokenizer.
    """
    logits = logits.float()
    scale = torch.tensor([row.temperature or 1.0 for row in rows])
    logprobs = torch.log_softmax(logits / scale[:, None], dim=-1)
    weights = logprobs.clone()
    if vocabulary is not None:
        weights[:, vocabulary:] = -torch.inf
    cut = [i for i, row in enumerate(rows) if row.temperature and (row.top_k > 0 or row.top_p < 1)]
    if cut:
        weights[cut] = _cut(weights[cut], [rows[i] for i in cut])
    # The largest of `weight + Gumbel noise` is a sample of softmax(weights); without noise it is the likeliest.
    noise = torch.empty_like(weights).exponential_(generator=shared)
    for i, (row, generator) in enumerate(zip(rows, generators, strict=True)):
        if not row.temperature:
            noise[i] = 1.0
        elif generator is not None:
            noise[i].exponential_(generator=generator)
    tokens = (weights - noise.clamp(min=1e-38).log()).argmax(dim=-1)
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()


def _cut(weights: torch.Tensor, rows: Sequence[Sampling]) -> torch.Tensor:
    """`weights` with those tokens ruled out that `top_k`, and after it `top_p`, leave out."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    size = weights.shape[-1]
    ranks = torch.arange(size)[None]
    most = torch.tensor([row.top_k if 0 < row.top_k < size else size for row in rows])
    ordered = ordered.masked_fill(ranks >= most[:, None], -torch.inf)
    shares = ordered.softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    share = torch.tensor([row.top_p for row in rows])
    # a token stays while what is likelier than it does not reach top_p; the likeliest always does
    ordered = ordered.masked_fill((before >= share[:, None]) & (ranks > 0) & (share[:, None] < 1), -torch.inf)
    return torch.full_like(weights, -torch.inf).scatter(-1, order, ordered)
