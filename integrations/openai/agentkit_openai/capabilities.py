"""What a server can do, found out before the first rollout, with errors that name what to change."""

import logging
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import anyio
from attrs import frozen

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit_openai.dialects import Dialect, LlamaCppDialect, VLLMDialect
from agentkit_openai.faults import Refused, plain
from agentkit_openai.transport import Transport

LogprobKind: TypeAlias = Literal["raw", "processed", "unknown"]

_log = logging.getLogger("agentkit_openai")

_NOT_UP = frozenset({429, 502, 503, 504})  # a proxy without its server, or a server that still loads
_POLL_S = 0.5
_PROBE_S = 120.0  # a server's first generation after its start can take long: it compiles
_BIAS = 100.0
_SURE = -0.01
_IDS = (
    "token-level models need a server that takes and returns token ids: vLLM >= 0.10.2 (return_token_ids) or "
    "llama-server; for any other, and for APIs, use ChatModel"
)


@frozen
class Capabilities:
    """What was found: which dialect is spoken, the context window in tokens, and what log-probabilities are of.

    `raw` ones are of the model's own distribution, `processed` ones of the one that was sampled from, after
    temperature, top_p and the like; for greedy decoding, temperature 0, either are those at temperature 1. `window` is
    None where the server does not tell.
    """

    dialect: Literal["vllm", "llama.cpp"]
    window: int | None = None
    logprobs: LogprobKind = "unknown"


async def listed_models(transport: Transport, *, startup_s: float) -> list[Mapping[str, Any]] | None:
    """The models that the server lists, waiting up to `startup_s` seconds for it to be up; None if it lists none.

    Raises:
        ConfigError: the server does not accept the api_key.
        ModelError: the server is not up in time.
    Cancellation: nothing is left behind.
    """
    deadline = anyio.current_time() + startup_s
    while True:
        left_s = max(deadline - anyio.current_time(), 1.0)
        try:
            answer = await transport.get("models", timeout_s=left_s)
        except ModelError as error:
            status = error.status if isinstance(error, Refused) else None
            if status in (401, 403):
                raise ConfigError(str(error)) from error
            is_up = status not in _NOT_UP if status is not None else not error.retryable
            if is_up:  # it has no such list, or one that cannot be read: the probe will tell
                return None
            if anyio.current_time() + _POLL_S >= deadline:
                raise ModelError(f"no model server at {transport.base_url} within {startup_s:g} s: {error}") from error
        else:
            models = answer.get("data")
            if not isinstance(models, list):
                return None
            return [model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]
        await anyio.sleep(_POLL_S)


def check_served(models: list[Mapping[str, Any]] | None, model: str, *, base_url: str) -> Mapping[str, Any]:
    """The entry of `model` in the list, or nothing where there is no list.

    Raises:
        ConfigError: the server serves others, which the message lists.
    """
    if models is None:
        return {}
    for entry in models:
        aliases = entry.get("aliases")
        if entry["id"] == model or (isinstance(aliases, list) and model in aliases):
            return entry
    names = ", ".join(plain(repr(entry["id"]), limit=80) for entry in models[:10]) or "nothing"
    more = f" and {len(models) - 10} more" if len(models) > 10 else ""
    raise ConfigError(
        f"model {model!r} is not served at {base_url}, which serves {names}{more}: pass one of these as model, or "
        f"start the server with --served-model-name {model}"
    )


async def detect(
    transport: Transport, model: str, *, dialect: Literal["auto", "vllm", "llama.cpp"], startup_s: float
) -> tuple[Capabilities, Dialect]:
    """What the server can do for a token-level model.

    Raises:
        ConfigError: the model is not served, or the server cannot take or return token ids; the message says what to
            change, at the server or here.
        ModelError: the server is not up within `startup_s`, or failed.
    Cancellation: nothing is left behind.
    """
    models = await listed_models(transport, startup_s=startup_s)
    entry = check_served(models, model, base_url=transport.base_url)
    if dialect == "auto":
        dialect = "llama.cpp" if entry.get("owned_by") == "llamacpp" else "vllm"
    if dialect == "llama.cpp":
        spoken: Dialect = LlamaCppDialect()
        window = await _llama_window(transport, entry)
    else:
        spoken = VLLMDialect(model)
        window = _positive(entry.get("max_model_len"))
    try:
        with anyio.fail_after(_PROBE_S):
            kind = await _logprob_kind(transport, spoken)
    except TimeoutError:
        raise ModelError(
            f"{transport.base_url} is up, but did not generate one token within {_PROBE_S:g} s: is it paused?"
        ) from None
    return Capabilities(dialect, window, kind), spoken


async def _logprob_kind(transport: Transport, dialect: Dialect) -> LogprobKind:
    """Generates one token with a bias that makes it certain: its log-probability tells whether biases count in it."""
    try:
        first = await _probe(transport, dialect, 0)
        if first < _SURE:
            return "raw"
        # The model itself may be sure of this token. It cannot be of two.
        return "processed" if await _probe(transport, dialect, 1) >= _SURE else "raw"
    except Refused as error:
        if error.status not in (400, 422):
            raise
    await _probe(transport, dialect, None)  # whatever it minds is not the bias: the error says what
    return "unknown"


async def _probe(transport: Transport, dialect: Dialect, token_id: int | None) -> float:
    """The log-probability of the one token sampled after token 0, which every vocabulary has."""
    bias = {} if token_id is None else {"logit_bias": {str(token_id): _BIAS}}
    body = dialect.body((b"0",), max_tokens=1, stop_ids=frozenset(), params=bias)
    reader = dialect.reader((b"0",), 1)
    sampled: list[float] = []
    try:
        async with transport.stream(dialect.path, body) as events:
            async for data in events:
                found = reader.read(data)
                if found is not None:
                    sampled += found[1]
        reader.finish()
    except ContextOverflow:
        raise
    except Refused as error:
        if error.status in (401, 403):
            raise ConfigError(str(error)) from error
        if error.status == 404:
            hint = "" if transport.base_url.endswith("/v1") else "; base_url ends where the API begins, mostly in /v1"
            raise ConfigError(f"{error}{hint}; {_IDS}") from error
        if error.status not in (400, 422) or token_id is not None:
            raise
        raise ConfigError(f"{error}; {_IDS}") from error
    except ModelError as error:
        if error.retryable:
            raise
        if "<= 0, found" in str(error):
            raise ConfigError(
                f"{transport.base_url} reports logits where log-probabilities are needed: start vLLM with "
                "--logprobs-mode raw_logprobs or processed_logprobs"
            ) from error
        raise ConfigError(f"{transport.base_url}: {error}; {_IDS}") from error
    if len(sampled) != 1:
        raise ConfigError(f"{transport.base_url} sampled {len(sampled)} tokens where one was asked for; {_IDS}")
    return sampled[0]


async def _llama_window(transport: Transport, entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    window = _positive(meta.get("n_ctx")) if isinstance(meta, dict) else None
    if window is not None:
        return window
    try:
        settings = (await transport.get("/props")).get("default_generation_settings")
    except ModelError:  # then overflows are told by the server
        return None
    return _positive(settings.get("n_ctx")) if isinstance(settings, dict) else None


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else None


def shifts_distribution(params: Mapping[str, Any]) -> list[str]:
    """The params that make what is sampled from differ from the model's own distribution, as text."""
    neutral: dict[str, tuple[object, ...]] = {
        "temperature": (1,),
        "top_p": (1,),
        "top_k": (0, -1),
        "min_p": (0,),
        "repetition_penalty": (1,),
        "presence_penalty": (0, None),
        "frequency_penalty": (0, None),
        "min_tokens": (0, None),
        "logit_bias": ({}, None),
        "allowed_token_ids": ([], None),
        "bad_words": ([], None),
        "structured_outputs": (None,),
    }
    return [
        f"{name}={plain(repr(params[name]), limit=40)}"
        for name, same in neutral.items()
        if name in params and params[name] not in same
    ]


def warn_of_logprobs(params: Mapping[str, Any], kind: LogprobKind) -> bool:
    """Log, once for a model, that log-probabilities are not those of the distribution sampled from; whether it was."""
    if params.get("temperature") == 0:
        _log.warning(
            "with temperature=0 the likeliest token is taken, but servers report its log-probability as at temperature "
            "1, in every mode: do not train on them"
        )
        return True
    shifted = shifts_distribution(params) if kind != "processed" else []
    if shifted:
        _log.warning(
            "the server's log-probabilities are the model's own, as far as known, but with %s tokens are sampled from "
            "another distribution: to train on them, start vLLM with --logprobs-mode processed_logprobs",
            ", ".join(shifted),
        )
    return bool(shifted)
