"""vLLM's engine as a policy: token ids in, sampled ids with their log-probabilities out, as they are sampled."""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import anyio

from agentkit.errors import ConfigError, ContextOverflow
from agentkit.extras import require
from agentkit.protocols import EmitTokens, Finish, Json, Renderer, TokenRequest, ToolParser
from agentkit_vllm.engine import engine_arguments, start_engine, stop_engine
from agentkit_vllm.requests import Requests
from agentkit_vllm.sampling import check_params


class VLLMModel:
    """A token-level model over vLLM's AsyncLLM engine, which runs while the model is entered.

        async with VLLMModel("Qwen/Qwen3-8B", renderer=renderer, parser=HermesParser(),
                             engine={"max_model_len": 32_768}) as model:
            agent = Agent(model, ...)

    `engine` are fields of vLLM's AsyncEngineArgs; `params` sampling parameters for every request, which those of the
    agent override. Nothing else changes how is sampled: the generation_config.json of a model is not looked at, but
    for its end-of-sequence ids, at which vLLM stops whether the renderer knows them or not. Stop strings, `stop`, end
    an action, not its ids: they go on to the end of the token in which the string was found.

    Log-probabilities are of the distribution that was sampled from (`logprobs_mode="processed_logprobs"`: after
    temperature, top_p, penalties, structured outputs; greedy decoding, temperature 0, reports those at temperature 1).
    `engine={"logprobs_mode": "raw_logprobs"}` gives the model's own instead.

    A model that sees images is shown those of the conversation, with a `ProcessorRenderer` of its own processor: what
    vLLM makes of a prompt with images must be what the chain has.

    `policy_version` may be a function, asked for every chunk. `renderer` and `parser` may be left to the agent. Runs on
    asyncio. Every request costs a copy of its prompt's ids, some 1.5 ms for 100k: the engine is another process.

    Raises:
        ConfigError: an argument cannot work; the message names it.
    """

    takes_media = True

    def __init__(
        self,
        model: str,
        *,
        renderer: Renderer | None = None,
        parser: ToolParser | None = None,
        engine: Mapping[str, Json] | None = None,
        params: Mapping[str, Json] | None = None,
        policy_version: int | Callable[[], int | None] | None = None,
    ) -> None:
        self._name = model
        self._renderer = renderer
        self._parser = parser
        self._arguments = engine_arguments(model, engine or {})
        self._params: dict[str, Json] = dict(params or {})
        check_params(self._params)
        self._policy_version = policy_version
        self._requests: Requests | None = None
        self._entered = False

    def __repr__(self) -> str:
        return f"VLLMModel({self._name!r})"

    @property
    def renderer(self) -> Renderer:
        """How messages become token ids for this policy."""
        if self._renderer is None:
            raise ConfigError("VLLMModel was given no renderer: pass renderer=... to it or to the agent")
        return self._renderer

    @property
    def parser(self) -> ToolParser:
        """How this policy writes its tool calls."""
        if self._parser is None:
            raise ConfigError("VLLMModel was given no parser: pass parser=... to it or to the agent")
        return self._parser

    @property
    def engine(self) -> Any:
        """The running `vllm.v1.engine.async_llm.AsyncLLM`, to load weights into, pause or profile.

        Raises:
            ConfigError: the model is not entered.
        """
        return self._running().engine

    async def __aenter__(self) -> Self:
        """Start the engine; that takes as long as vLLM needs to load the model.

        Raises:
            ConfigError: the model is entered already, the loop is not asyncio's, or vLLM does not know an argument.
            MissingExtraError: vLLM is not installed.
            ModelError: the engine did not start.
        Cancellation: vLLM's start cannot be cut short; it goes on in a thread, which ends what it has started.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "VLLMModel needs asyncio, on which vLLM's engine runs: run the pool with "
                "anyio.run(main, backend='asyncio')"
            ) from None
        if self._entered:
            raise ConfigError(f"{self!r} is entered already: enter a model once, then share it")
        self._entered = True
        try:
            engine = await start_engine(self._arguments)
            sampling = require("vllm.sampling_params", extra="vllm", purpose="VLLMModel")
            self._requests = Requests(engine, sampling, self._policy_version)
            check_params(self._params, known=self._requests.known)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Abort what is under way and end the engine's processes.

        Cancellation: they are ended all the same.
        """
        await self._close()

    async def _close(self) -> None:
        requests, self._requests = self._requests, None
        try:
            if requests is not None:
                with anyio.CancelScope(shield=True):
                    await requests.close()
                    await stop_engine(requests.engine)
        finally:
            self._entered = False

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        """Push ids and log-probabilities as the engine samples them.

        `max_tokens` is cut to what the engine's window leaves. Each request has an id of its own in the engine, which
        begins with `request_id`, so that an abandoned one cannot meet the next try.

        Raises:
            ConfigError: vLLM does not know a name in `params`, or the model is not entered.
            ContextOverflow: the prompt fills the engine's window.
            ModelError: the engine refused the request, failed, or is dead.
        Cancellation: the engine has been told to abort the request before the cancellation goes on; a second native
            cancel does not wait for that.
        """
        requests = self._running()
        room = min(request.max_tokens, requests.window - len(request.prompt_ids))
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(request.prompt_ids)} tokens, of a window of {requests.window} "
                f"(engine.max_model_len), and max_tokens is {request.max_tokens}: there is no room for one more"
            )
        return await requests.run(request, {**self._params, **request.params}, room, emit)

    def _running(self) -> Requests:
        if self._requests is None:
            raise ConfigError(f"{self!r} is not running: use it inside `async with VLLMModel(...) as model`")
        return self._requests
