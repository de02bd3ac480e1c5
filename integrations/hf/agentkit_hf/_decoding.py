"""One generation with a causal language model of `transformers`, a forward pass at a time.

    ids:    | in the kept cache | not run yet: the prompt's end, in pieces |  sampled ...
                                                    forward pass ──> logits ──> token, log-probability

Every pass appends ids to the cache and to the list of what it holds; a pass that fails leaves the two apart, so its
cache is dropped. When the weights change, the cache is dropped too and all ids are run again under the new ones.
"""

import inspect
from array import array
from collections.abc import Callable, Generator, Hashable
from types import ModuleType
from typing import Any

from attrs import frozen

from agentkit.errors import AgentkitError, ModelError
from agentkit.protocols import FinishReason
from agentkit_hf.caches import Kept, KeptCaches
from agentkit_hf.params import SamplingParams

_COLDEST = 1e-30  # what is smaller may be 0 as float32


@frozen
class Sampled:
    """A token, its log-probability under the distribution it was drawn from, and the policy version it came from."""

    token_id: int
    logprob: float
    policy_version: int | None


@frozen
class Order:
    """What one request asks for, checked. `seed` is for this generation alone."""

    request_id: str
    prompt: "array[int]"
    stop_ids: frozenset[int]
    max_tokens: int
    params: SamplingParams
    seed: int | None


class Decoder:
    """Generates with one module; all but the constructor on one thread. `weights` names the module's weights now."""

    def __init__(
        self,
        torch: ModuleType,
        transformers: ModuleType,
        module: Any,
        *,
        kept_caches: int,
        prefill_tokens: int,
        weights: Callable[[], tuple[Hashable, int | None]],
    ) -> None:
        self.module = module
        self._torch = torch
        self._new_cache = transformers.DynamicCache
        self._config = module.config.get_text_config()
        self._prefill_tokens = prefill_tokens
        self._weights = weights
        self._device = module.get_input_embeddings().weight.device
        takes = inspect.signature(module.forward).parameters
        # All logits of a long prompt would be gigabytes; only the last are needed.
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._cache_as = "cache" if "cache" in takes else "past_key_values"  # transformers 5.24 renamed it
        self.caches: KeptCaches[Any] = KeptCaches(kept_caches, cut)

    @property
    def vocabulary(self) -> int:
        """How many ids the module embeds."""
        size: int = self.module.get_input_embeddings().weight.shape[0]
        return size

    @property
    def window(self) -> int | None:
        """How many ids the module has positions for, None where it does not say."""
        return getattr(self._config, "max_position_embeddings", None)

    def generate(self, order: Order, push: Callable[[Sampled], None]) -> Generator[None, None, FinishReason]:
        """Push what is sampled, yielding after each forward pass; returns how it ended."""
        ids = array("i", order.prompt)
        stop = len(ids) + order.max_tokens
        draw = Draw(self._torch, order.params, order.seed, self._device)
        weights, version = self._weights()
        kept = self.caches.take(order.request_id, ids, weights) or self._fresh(weights)
        is_whole = True
        try:
            while True:
                if weights != kept.weights:
                    kept = self._fresh(weights)
                new = ids[len(kept.ids) :][: self._prefill_tokens]
                is_whole = False
                logits = self._forward(kept, new)
                is_whole = True
                if len(kept.ids) == len(ids):
                    token_id, logprob = draw(logits)
                    ids.append(token_id)
                    push(Sampled(token_id, logprob, version))
                    if token_id in order.stop_ids:
                        return FinishReason.STOP
                    if len(ids) == stop:
                        return FinishReason.LENGTH
                yield
                weights, version = self._weights()
        finally:
            if is_whole:
                self.caches.put(order.request_id, kept)

    def _fresh(self, weights: Hashable) -> Kept[Any]:
        return Kept(array("i"), self._new_cache(config=self._config), weights)

    def _forward(self, kept: Kept[Any], new: "array[int]") -> Any:
        """The logits after the last of `new`, float32."""
        torch = self._torch
        if self.module.training:  # whoever trains it between generations leaves dropout on
            self.module.eval()
        try:
            with torch.inference_mode():
                ids = torch.tensor([new.tolist()], dtype=torch.long, device=self._device)
                out = self.module(input_ids=ids, use_cache=True, **{self._cache_as: kept.cache}, **self._last_only)
                logits = out.logits[0, -1].float().to(self._device)  # a model may span devices
        except torch.OutOfMemoryError as error:
            self.caches.clear()
            raise ModelError(
                f"the device has no memory for {len(kept.ids) + len(new)} more ids; all kept caches were dropped: "
                f"{str(error)[:200]}",
                retryable=True,
            ) from error
        except AgentkitError:
            raise
        except Exception as error:
            raise ModelError(
                f"the model failed in a forward pass: {type(error).__name__}: {str(error)[:500]}"
            ) from error
        kept.ids.extend(new)
        return logits


class Draw:
    """Draws tokens as `params` say, with a generator of its own."""

    def __init__(self, torch: ModuleType, params: SamplingParams, seed: int | None, device: Any) -> None:
        self._torch = torch
        self._params = params
        self._generator = torch.Generator(device=device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def __call__(self, logits: Any) -> tuple[int, float]:
        """A token and its log-probability: 0 where it was the only one possible, as always at temperature 0.

        Raises:
            ModelError: the logits are no numbers to choose by.
        """
        torch, highest = self._torch, float(logits.max())
        if not -float("inf") < highest < float("inf"):
            raise ModelError(
                f"the model's highest logit is {highest}: its weights are broken, or its dtype is too narrow"
            )
        with torch.inference_mode():
            if self._params.temperature == 0:
                return int(logits.argmax()), 0.0
            logprobs = distribution(torch, logits, self._params)
            token_id = int(torch.multinomial(logprobs.exp(), 1, generator=self._generator))
            return token_id, float(logprobs[token_id])


def distribution(torch: ModuleType, logits: Any, params: SamplingParams) -> Any:
    """Log-probabilities after temperature, then top_k, then top_p; -inf where a token cannot be drawn.

    Of tokens tied with the last that top_k allows, all are kept. top_p keeps the likeliest tokens, up to and with the
    one that reaches it.
    """
    logits = (logits - logits.max()) / max(params.temperature, _COLDEST)  # shifted, so that none overflows upwards
    if 0 < params.top_k < logits.shape[-1]:
        lowest = torch.topk(logits, params.top_k).values[-1]
        logits = logits.masked_fill(logits < lowest, -float("inf"))
    if params.top_p < 1.0:
        likeliest, order = torch.sort(logits, descending=True, stable=True)
        probs = likeliest.softmax(-1)
        before = probs.cumsum(-1) - probs
        likeliest = likeliest.masked_fill(before >= params.top_p, -float("inf"))
        logits = torch.empty_like(logits).scatter_(-1, order, likeliest)
    return logits.log_softmax(-1)


def cut(cache: Any, surplus: int) -> bool:
    """Take the last `surplus` ids out of a cache; False where its layers hold too little to go back."""
    layers = getattr(cache, "layers", None)
    if layers is None or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        return False
    length = cache.get_seq_length()
    cache.crop(-surplus)
    return bool(cache.get_seq_length() == length - surplus)
