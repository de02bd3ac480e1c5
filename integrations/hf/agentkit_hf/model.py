"""A `transformers` model in this process, as a token-level policy."""

import logging
from array import array
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from itertools import count
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar

import anyio

from agentkit.errors import ConfigError, ContextOverflow, ModelError, RolloutEnded
from agentkit.extras import require
from agentkit.protocols import (
    EmitTokens,
    Finish,
    FinishReason,
    Renderer,
    TokenChunk,
    TokenRequest,
    ToolParser,
)
from agentkit_hf._decoding import Decoder, Order, Sampled
from agentkit_hf.loading import check_transformers, import_torch, load_model, pick_device, pick_dtype
from agentkit_hf.params import SamplingParams
from agentkit_hf.renderer import hf_renderer
from agentkit_hf.worker import Stream, Worker

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0  # a step under way ends long before
_SEEDS = 2**63 - 1
_STRIDE = 0x9E3779B97F4A7C15  # odd, so that the seeds of different requests differ


class HFModel:
    """A causal language model run in this process, on one thread of its own: `async with HFModel(...) as model`.

    `model` is a folder, a GGUF file, a name on the hub, or a loaded module (which stays where it is, unless `device`
    says otherwise). The tokenizer is the model's own, or `tokenizer`, or that of `renderer`. Requests take turns, a
    forward pass each, `interleave` at a time and further ones in the order they came. What was computed for a
    trajectory is kept (`kept_caches` of them, the least used dropped first), so that its next turn computes only what
    is new; long prompts are run `prefill_tokens` at a time.

    Requests may say `temperature`, `top_p`, `top_k`, `seed` and `max_tokens`; nothing is taken from the model's
    generation config. Log-probabilities are those of the distribution a token was drawn from, after all of these; at
    temperature 0 they are 0. `seed` makes requests that come in the same order draw the same tokens. `policy_version`
    is a number, or a function that gives one, asked on the model's thread before each pass: a change tells that the
    weights are new.

    Raises:
        MissingExtraError: `torch` or `transformers` is not installed.
        ConfigError: there is no such model or tokenizer, or a value is out of range.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        renderer: Renderer | None = None,
        parser: ToolParser | None = None,
        device: str = "auto",
        dtype: str = "auto",
        context_tokens: int | None = None,
        interleave: int = 8,
        kept_caches: int = 32,
        prefill_tokens: int = 512,
        policy_version: int | Callable[[], int | None] | None = None,
        seed: int | None = None,
    ) -> None:
        for name, value in (("interleave", interleave), ("prefill_tokens", prefill_tokens)):
            if value < 1:
                raise ConfigError(f"{name} must be >= 1, found {value!r}")
        if kept_caches < 0:
            raise ConfigError(f"kept_caches must be >= 0, found {kept_caches!r}")
        if context_tokens is not None and context_tokens < 2:
            raise ConfigError(f"context_tokens must be >= 2, found {context_tokens!r}")
        if not isinstance(model, str) and not (hasattr(model, "config") and hasattr(model, "get_input_embeddings")):
            raise ConfigError(f"model must be a name or a causal language model of transformers, found {model!r:.200}")
        self._torch: ModuleType = import_torch()
        self._transformers = require("transformers", extra="hf", purpose="HFModel")
        check_transformers(self._transformers)
        self._device = pick_device(self._torch, device)
        self._given = model
        self._name = model if isinstance(model, str) else type(model).__name__
        self._load_on, self._load_as = device, pick_dtype(self._torch, dtype)
        if dtype != "auto" and not isinstance(model, str):
            raise ConfigError(f"dtype is for models loaded by name, found {dtype!r} beside a module: cast it yourself")
        self._renderer = renderer if renderer is not None else hf_renderer(self._tokenizer_for(tokenizer))
        self._parser = parser
        self._context_tokens = context_tokens
        self._interleave = interleave
        self._kept_caches = kept_caches
        self._prefill_tokens = prefill_tokens
        self._policy_version = policy_version
        self._seed = seed
        self._numbers = count()
        self._updates = 0
        self._worker: Worker | None = None
        self._decoder: Decoder | None = None
        self._window: int | None = None
        self._vocabulary = 0

    def _tokenizer_for(self, tokenizer: Any) -> Any:
        if tokenizer is not None:
            return tokenizer
        if isinstance(self._given, str):
            return self._given
        raise ConfigError("a model given as a module needs tokenizer=... or renderer=...: a module does not bring one")

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

    async def __aenter__(self) -> Self:
        """Load the model on its thread, while the loop goes on.

        Raises:
            ConfigError: the model is open already, or cannot be loaded.
            ModelError: no thread could be started.
        Cancellation: the loading cannot be stopped, but its thread ends once it is done.
        """
        if self._worker is not None:
            raise ConfigError(f"HFModel {self._name!r} is open already: one `async with` at a time")
        worker = self._worker = Worker(f"agentkit-hf:{self._name}", width=self._interleave)
        try:
            worker.open()
            self._decoder = await _once(worker, self._load)
        except BaseException as error:  # a cancelled load goes on for as long as it takes
            await self._close(wait_s=_CLOSE_S if isinstance(error, Exception) else 0.0)
            raise
        self._vocabulary = self._decoder.vocabulary
        windows = [each for each in (self._context_tokens, self._decoder.window) if each is not None]
        self._window = min(windows, default=None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is under way and the thread; a model that was loaded by name is let go."""
        await self._close(wait_s=_CLOSE_S)

    async def _close(self, *, wait_s: float) -> None:
        worker, self._worker, self._decoder = self._worker, None, None
        if worker is None:
            return
        has_ended = False
        with anyio.CancelScope(shield=True):
            has_ended = await worker.close(wait_s=wait_s)
        if not has_ended and wait_s:
            logger.warning("left behind: thread %s is still in a step after %g s", worker.name, wait_s)

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        """Sample token by token, pushing each as it comes.

        Raises:
            ContextOverflow: the prompt leaves no room in the model's context window.
            ConfigError: the model is not open, or the request's parameters are unknown or out of range.
            ModelError: the model failed; retryable where its device was out of memory.
        Cancellation: what was sampled is pushed, and the work ends after the forward pass under way.
        """
        worker, decoder = self._worker, self._decoder
        if worker is None or decoder is None:
            raise ConfigError("the HFModel is not open: use it inside `async with HFModel(...) as model`")
        order = self._order(request)
        stream: Stream[Sampled, FinishReason] = worker.start(lambda push: decoder.generate(order, push))
        try:
            while True:
                try:
                    sampled = await stream.take()
                except BaseException:  # what was sampled before a deadline is kept, however the wait was cut
                    with suppress(RolloutEnded):
                        _emit(stream.rest(), emit)
                    raise
                if not sampled:
                    return Finish(stream.result())
                _emit(sampled, emit)  # where this raises nothing more is pushed: it would leave a gap in the chain
        finally:
            stream.cancel()

    async def update(self, function: Callable[[Any], T]) -> T:
        """What `function(module)` returns, called on the model's thread between two forward passes.

        For changing weights in place, an optimizer's step say: nothing is sampled meanwhile, and what was computed
        under the old weights is dropped, also that of generations under way, which go on under the new ones.

        Raises:
            ConfigError: the model is not open.
        Cancellation: a call that has begun runs to its end.
        """
        worker, decoder = self._worker, self._decoder
        if worker is None or decoder is None:
            raise ConfigError("the HFModel is not open: use it inside `async with HFModel(...) as model`")

        def change() -> T:
            try:
                return function(decoder.module)
            finally:
                self._updates += 1
                decoder.caches.clear()

        return await _once(worker, change)

    def _load(self) -> Decoder:
        if isinstance(self._given, str):
            module = load_model(self._given, device=self._device, dtype=self._load_as)
        else:
            module = self._given if self._load_on == "auto" else self._given.to(self._device)
        return Decoder(
            self._torch,
            self._transformers,
            module,
            kept_caches=self._kept_caches,
            prefill_tokens=self._prefill_tokens,
            weights=self._weights,
        )

    def _weights(self) -> tuple[Hashable, int | None]:
        version = self._policy_version() if callable(self._policy_version) else self._policy_version
        return (self._updates, version), version

    def _order(self, request: TokenRequest) -> Order:
        params = SamplingParams.read(request.params)
        prompt = array("i", request.prompt_ids[:])  # a slice of a live chain is one copy of memory
        if not prompt:
            raise ModelError("the prompt is empty: a model needs something to go on from")
        room = request.max_tokens if params.max_tokens is None else min(request.max_tokens, params.max_tokens)
        if self._window is not None:
            room = min(room, self._window - len(prompt))
        if room < 1:
            raise ContextOverflow(
                f"a prompt of {len(prompt)} ids leaves no room to sample: max_tokens is {request.max_tokens}, "
                f"the context window {self._window or 'unbounded'}"
            )
        new = prompt[-request.new_ids :]  # what came before was looked at before
        if not 0 <= min(new) <= max(new) < self._vocabulary:  # on a GPU this would end all use of it
            raise ModelError(
                f"the prompt holds ids from {min(new)} to {max(new)}, the model knows 0 to {self._vocabulary - 1}: "
                "the renderer's tokenizer is not the model's"
            )
        number = next(self._numbers)
        seed = params.seed
        if seed is None and self._seed is not None:
            seed = (self._seed + number * _STRIDE) % _SEEDS
        return Order(request.request_id, prompt, request.stop_ids, room, params, seed)


async def _once(worker: Worker, function: Callable[[], T]) -> T:
    """What `function` returns, called on the worker's thread between two steps."""

    def steps(_: Callable[[None], None]) -> Generator[None, None, T]:
        return function()
        yield

    stream: Stream[None, T] = worker.start(steps, urgent=True)
    try:
        await stream.take()
        return stream.result()
    finally:
        stream.cancel()


def _emit(sampled: Sequence[Sampled], emit: EmitTokens) -> None:
    """Push tokens, a chunk for each stretch of one policy version."""
    start = 0
    for stop in range(1, len(sampled) + 1):
        version = sampled[start].policy_version
        if stop == len(sampled) or sampled[stop].policy_version != version:
            piece = sampled[start:stop]
            emit(TokenChunk([each.token_id for each in piece], [each.logprob for each in piece], version))
            start = stop
