"""A policy behind a server that takes and returns token ids: vLLM, or llama.cpp's server."""

from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Literal, Self

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.protocols import (
    EmitTokens,
    Finish,
    FinishReason,
    Json,
    Renderer,
    TokenChunk,
    TokenRequest,
    ToolParser,
)
from agentkit_openai.capabilities import Capabilities, detect, warn_of_logprobs
from agentkit_openai.dialects import Dialect, Reader
from agentkit_openai.dialects.dialect import check_params
from agentkit_openai.retry import Backoff, retried
from agentkit_openai.transport import Transport, header_value
from agentkit_openai.wire import PromptWire

_EVENT_BYTES = 1 << 20
_QUOTED_ID_BYTES = 12  # of a prompt that an event quotes: a number below 2**31 and a comma, or a little more


class CompletionsModel:
    """A token-level policy behind `/v1/completions`: ids in, ids and log-probabilities out, as they are sampled.

    Works with vLLM (0.10.2 or later) and with llama.cpp's server; asyncio only. Making one does nothing; `async with`
    opens the connections and finds out what the server can do, so that what is missing is one error before the first
    rollout. Share one between all agents that sample from this server.

    `base_url` ends where the API begins: `http://127.0.0.1:8000/v1`. `api_key` is sent as a bearer token, and never
    read from the environment. `params` are sent with each request, those of the agent over them; what neither asks for
    is neutral (temperature 1, no top_k, ...) instead of the server's default, and None asks for that default.

    Of each request one continuation is sampled, and only its tokens are scored: `n`, `best_of`, `echo` and
    `prompt_logprobs` are refused, an answer that mixes in other continuations or the prompt is an error, and scores of
    the prompt beside those of what was sampled are not looked at. Stop strings, `params={"stop": ["</answer>"]}`, end
    an action, not its ids: they go on to the end of the token in which the string was found, whatever the server cut
    from its text.

    `max_tokens` bounds one generation; without it one may fill what the budget and the server's window leave.
    `logprobs="processed"` insists on log-probabilities of the distribution that was sampled from; with `"any"`, those
    of the model itself will do, and one warning is logged where the two differ. `retries` are for refusals that pass
    and lost connections, within the request's deadline, and only while nothing was sampled; with 0, the agent's
    `model_retries` does it. `startup_s` is how long to wait for a server that is not up yet. `policy_version` may be a
    function, asked at every chunk. `session_header` carries the trajectory's id, the same for all its requests, for
    routers that keep a trajectory on one replica.

    Raises:
        ConfigError: an argument cannot work; the message names it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        renderer: Renderer | None = None,
        parser: ToolParser | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Json] | None = None,
        max_tokens: int | None = None,
        dialect: Literal["auto", "vllm", "llama.cpp"] = "auto",
        logprobs: Literal["any", "processed"] = "any",
        policy_version: int | Callable[[], int | None] | None = None,
        max_connections: int = 1024,
        retries: int = 6,
        connect_s: float = 10.0,
        startup_s: float = 30.0,
        session_header: str = "X-Session-ID",
        wire_cache_bytes: int = 256 << 20,
    ) -> None:
        name: object = model
        if not isinstance(name, str) or not name:
            raise ConfigError(f"model must be the name under which the server serves it, found {model!r}")
        if dialect not in ("auto", "vllm", "llama.cpp"):
            raise ConfigError(f"dialect must be 'auto', 'vllm' or 'llama.cpp', found {dialect!r}")
        if logprobs not in ("any", "processed"):
            raise ConfigError(f"logprobs must be 'any' or 'processed', found {logprobs!r}")
        limit: object = max_tokens
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigError(f"max_tokens must be a whole number >= 1, or None, found {max_tokens!r}")
        if not startup_s >= 0:
            raise ConfigError(f"startup_s must be >= 0, found {startup_s!r}")
        self._params = dict(params or {})
        check_params(self._params)
        self._transport = Transport(
            base_url, api_key=api_key, headers=headers, max_connections=max_connections, connect_s=connect_s
        )
        self._model = model
        self._max_tokens = max_tokens
        self._renderer = renderer
        self._parser = parser
        self._dialect_name: Literal["auto", "vllm", "llama.cpp"] = dialect
        self._logprobs = logprobs
        self._policy_version = policy_version
        self._backoff = Backoff(retries)
        self._startup_s = startup_s
        self._session_header = session_header
        self._wire = PromptWire(limit_bytes=wire_cache_bytes)
        self._tries = count()
        self._dialect: Dialect | None = None
        self._capabilities: Capabilities | None = None
        self._warned = False

    def __repr__(self) -> str:
        return f"CompletionsModel({self._transport.base_url!r}, {self._model!r})"

    @property
    def renderer(self) -> Renderer:
        """How messages become token ids for this policy.

        Raises:
            ConfigError: none was given.
        """
        if self._renderer is None:
            raise ConfigError(
                "CompletionsModel has no renderer: pass renderer=... to it, or renderer and parser to Agent"
            )
        return self._renderer

    @property
    def parser(self) -> ToolParser:
        """How this policy writes its tool calls.

        Raises:
            ConfigError: none was given.
        """
        if self._parser is None:
            raise ConfigError("CompletionsModel has no parser: pass parser=... to it, or renderer and parser to Agent")
        return self._parser

    @property
    def capabilities(self) -> Capabilities:
        """What the server was found to do.

        Raises:
            ConfigError: the model is not open.
        """
        if self._capabilities is None:
            raise ConfigError(f"{self!r} is not open: use it within `async with model:`")
        return self._capabilities

    @property
    def encoded_bytes(self) -> int:
        """How many bytes of prompts were written as JSON in all: grows with the new tokens, not with the prompts."""
        return self._wire.encoded_bytes

    async def __aenter__(self) -> Self:
        """Open the connections, wait for the server, and find out what it can do.

        Raises:
            ConfigError: the model is not served, the server lacks what is needed (the message names its flag or
                version), the api_key is refused, or the loop is not asyncio's.
            ModelError: the server is not up within `startup_s`, or failed.
            MissingExtraError: aiohttp is not installed.
        Cancellation: nothing is left open.
        """
        await self._transport.__aenter__()
        try:
            found, dialect = await detect(
                self._transport, self._model, dialect=self._dialect_name, startup_s=self._startup_s
            )
            if self._logprobs == "processed" and found.logprobs != "processed":
                raise ConfigError(
                    f"logprobs='processed', but those of {self._transport.base_url} are {found.logprobs}: "
                    + (
                        "llama.cpp has no others, pass logprobs='any'"
                        if found.dialect == "llama.cpp"
                        else "start vLLM with --logprobs-mode processed_logprobs"
                    )
                )
        except BaseException:
            await self._transport.__aexit__(None, None, None)
            raise
        self._capabilities, self._dialect = found, dialect
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close all connections; the server stops generating what was still under way.

        Cancellation: they are closed all the same.
        """
        self._capabilities = self._dialect = None
        await self._transport.__aexit__(kind, error, traceback)

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        """Push what is sampled into `emit`, as it arrives, and say how it ended.

        The deadline bounds the tries; a try under way is cut by the caller's scope, as any cancellation.

        Raises:
            ContextOverflow: no room for one more token, by the window the server told or by its refusal.
            ConfigError: the model is not open, or a param cannot be passed on.
            ModelError: anything else the server's side did wrong; not retryable where this client has tried already.
        Cancellation: the connection is closed, so that the server stops generating; what was pushed is kept.
        """
        window = self.capabilities.window
        params = {**self._params, **request.params}
        check_params(request.params)
        if params and not self._warned:
            self._warned = warn_of_logprobs(params, self.capabilities.logprobs)
        prompt_tokens = len(request.prompt_ids)
        room = request.max_tokens if window is None else min(request.max_tokens, window - prompt_tokens)
        if room < 1:
            raise ContextOverflow(
                f"no room for one more token: the prompt has {prompt_tokens}, max_tokens is {request.max_tokens}, the "
                f"window of {self._model!r} {window or 'not known'}"
            )
        if self._max_tokens is not None:
            room = min(room, self._max_tokens)
        if not prompt_tokens:
            raise ModelError("prompt_ids is empty: there is nothing to go on from")
        generation = _Generation(self, request, emit, params, room)
        return await retried(
            generation.ask, backoff=self._backoff, deadline=request.deadline, began=lambda: generation.count > 0
        )


class _Generation:
    """One generation, over all its tries."""

    __slots__ = ("_emit", "_model", "_params", "_request", "_room", "count")

    def __init__(
        self, model: CompletionsModel, request: TokenRequest, emit: EmitTokens, params: Mapping[str, Json], room: int
    ) -> None:
        self._model = model
        self._request = request
        self._emit = emit
        self._params = params
        self._room = room
        self.count = 0

    async def ask(self) -> Finish:
        """One try."""
        model, request = self._model, self._request
        dialect = model._dialect
        if dialect is None:
            raise ConfigError(f"{model!r} is not open: use it within `async with model:`")
        prompt_tokens = len(request.prompt_ids)
        prompt = model._wire.pieces(request.request_id, request.prompt_ids)
        body = dialect.body(prompt, max_tokens=self._room, stop_ids=request.stop_ids, params=self._params)
        reader = dialect.reader(prompt, prompt_tokens)
        session = header_value(request.request_id)
        headers = {
            model._session_header: session,
            # One id for each try: servers name a request by it, and the one that a lost connection leaves behind may
            # still be running there when the next begins.
            "X-Request-Id": f"{session}.{next(model._tries)}",
        }
        event_bytes = _EVENT_BYTES + _QUOTED_ID_BYTES * prompt_tokens
        async with model._transport.stream(dialect.path, body, headers=headers, event_bytes=event_bytes) as events:
            async for data in events:
                if self._take(reader, data):
                    return Finish(FinishReason.STOP)
                events.is_complete = reader.is_finished
        return self._looked_for(reader.finish())

    def _looked_for(self, finish: Finish) -> Finish:
        """`finish`, with how many tokens were sampled before stop strings were looked for."""
        held = self._params.get("min_tokens")
        if finish.stop_string is None or not isinstance(held, int):
            return finish
        return Finish(finish.reason, stop_string=finish.stop_string, min_tokens=held)

    def _take(self, reader: Reader, data: bytes) -> bool:
        """Pass on what is in an event; whether a stop id in it ends the generation, though the server goes on."""
        model = self._model
        try:
            found = reader.read(data)
        except ModelError as error:
            raise model._transport.without_secrets(error) from None
        if found is None:
            return False
        ids, logprobs = found
        stops = self._request.stop_ids
        is_cut = False
        if not stops.isdisjoint(ids):
            end = next(place for place, token_id in enumerate(ids) if token_id in stops) + 1
            is_cut = end < len(ids) or not reader.is_finished
            ids, logprobs = ids[:end], logprobs[:end]
        if self.count + len(ids) > self._room:
            raise ModelError(f"the server sent more than the {self._room} tokens that were asked for")
        version = model._policy_version
        self.count += len(ids)
        self._emit(TokenChunk(ids, logprobs, version() if callable(version) else version))
        return is_cut
