"""What is missing at a server is one error, before the first rollout, that says what to change."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from agentkit_openai import Capabilities, CompletionsModel, capabilities
from agentkit_openai.capabilities import check_served, shifts_distribution, warn_of_logprobs
from aiohttp import web

from agentkit.errors import ConfigError, ModelError

Serve = Callable[[Any], Awaitable[str]]
pytestmark = pytest.mark.slow
DONE = b"data: [DONE]\n\n"
KEY = "sk-very-secret"


def server_of(
    probe: Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]],
    models: Callable[[], web.Response] | None = None,
) -> Any:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/models"):
            if models is not None:
                return models()
            return web.json_response({"data": [{"id": "tiny", "max_model_len": 64, "owned_by": "vllm"}]})
        return await probe(request, await request.json())

    return handle


async def stream(request: web.Request, *events: Any) -> web.StreamResponse:
    text = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return web.Response(body=text + DONE, content_type="text/event-stream")


def choice(ids: list[int] | None, logprob: float | None) -> dict[str, Any]:
    made = {"index": 0, "text": "x", "finish_reason": "length", "logprobs": {"token_logprobs": [logprob]}}
    return {"choices": [made if ids is None else {**made, "token_ids": ids}]}


async def found(base_url: str, **arguments: Any) -> Capabilities:
    async with CompletionsModel(base_url, "tiny", **{"startup_s": 0.2, **arguments}) as model:
        return model.capabilities


async def refused(base_url: str, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        await found(base_url, **arguments)
    return str(caught.value)


def answering(logprob_of: Callable[[dict[str, Any]], float]) -> Any:
    async def probe(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        (token_id,) = map(int, body["logit_bias"])
        return await stream(request, choice([token_id], logprob_of(body)))

    return server_of(probe)


async def test_raw_and_processed_logprobs_are_told_apart(serve: Serve) -> None:
    raw = await serve(answering(lambda body: -9.5))
    assert await found(raw + "/v1") == Capabilities("vllm", 64, "raw")
    processed = await serve(answering(lambda body: -1e-6))
    assert await found(processed + "/v1") == Capabilities("vllm", 64, "processed")
    assert await found(processed + "/v1", logprobs="processed")
    assert "--logprobs-mode processed_logprobs" in await refused(raw + "/v1", logprobs="processed")


async def test_a_model_that_is_sure_of_the_probe_by_itself_is_not_mistaken(serve: Serve) -> None:
    base_url = await serve(answering(lambda body: -1e-6 if "0" in body["logit_bias"] else -14.0))
    assert (await found(base_url + "/v1")).logprobs == "raw"


async def test_logits_are_not_taken_for_logprobs(serve: Serve) -> None:
    assert "--logprobs-mode" in await refused(await serve(answering(lambda body: 104.0)) + "/v1")


async def test_a_server_that_knows_no_bias_is_used_without_the_knowledge(serve: Serve) -> None:
    async def probe(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if "logit_bias" in body:
            return web.json_response({"error": {"message": "logit_bias is not supported"}}, status=400)
        return await stream(request, choice([7], -2.0))

    base_url = await serve(server_of(probe)) + "/v1"
    assert (await found(base_url)).logprobs == "unknown"
    assert "unknown" in await refused(base_url, logprobs="processed")


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (400, {"detail": "prompt must be a string."}),
        (422, {"detail": "Unexpected fields in the request: {'return_token_ids'}"}),
        (404, {"detail": "Not Found"}),
    ],
)
async def test_a_server_that_takes_no_ids_is_told_what_would(serve: Serve, status: int, content: Any) -> None:
    async def probe(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(content, status=status)

    said = await refused(await serve(server_of(probe)) + "/v1")
    assert content["detail"] in said
    assert "vLLM >= 0.10.2" in said
    assert "ChatModel" in said


async def test_a_server_that_returns_no_ids_is_told_what_would(serve: Serve) -> None:
    async def probe(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, choice(None, -2.0))

    said = await refused(await serve(server_of(probe)) + "/v1")
    assert "return_token_ids" in said
    assert "vLLM >= 0.10.2" in said


async def test_a_server_that_gives_no_logprobs_is_refused(serve: Serve) -> None:
    async def probe(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, choice([7], None))

    assert "logprob" in await refused(await serve(server_of(probe)) + "/v1")


async def test_a_model_that_is_not_served_is_told_with_those_that_are(serve: Serve) -> None:
    models = [{"id": f"model-{n}"} for n in range(30)]
    base_url = await serve(server_of(None, lambda: web.json_response({"data": models}))) + "/v1"  # type: ignore[arg-type]
    said = await refused(base_url)
    assert "'model-0'" in said
    assert "20 more" in said
    assert "--served-model-name tiny" in said


def test_an_alias_counts_as_served() -> None:
    entry = {"id": "tiny-q4.gguf", "aliases": ["tiny"]}
    assert check_served([entry], "tiny", base_url="http://host/v1") is entry
    with pytest.raises(ConfigError, match="serves nothing"):
        check_served([], "tiny", base_url="http://host/v1")


@pytest.mark.parametrize(
    "models",
    [
        lambda: web.Response(status=500, text="Internal Server Error"),
        lambda: web.Response(status=404),
        lambda: web.Response(text="nonsense"),
        lambda: web.json_response({"data": None}),
    ],
)
async def test_a_server_without_a_list_of_models_is_used_without_a_window(serve: Serve, models: Any) -> None:
    async def probe(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, choice([7], -2.0))

    assert await found(await serve(server_of(probe, models)) + "/v1") == Capabilities("vllm", None, "raw")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_refused_is_the_caller_s_to_mend(serve: Serve, status: int) -> None:
    def models() -> web.Response:
        return web.json_response({"error": f"unknown key {KEY}"}, status=status)

    said = await refused(await serve(server_of(None, models)) + "/v1", api_key=KEY)  # type: ignore[arg-type]
    assert "api_key" in said
    assert KEY not in said


async def test_an_address_without_v1_is_told_so(serve: Serve) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)

    assert "mostly in /v1" in await refused(await serve(handle))


async def test_a_server_that_is_not_up_is_waited_for_and_then_given_up(free_tcp_port: int) -> None:
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"no model server at .* within 1 s: .*Connect") as caught:
        await found(f"http://127.0.0.1:{free_tcp_port}/v1", startup_s=1)
    assert time.monotonic() - start < 5
    assert not caught.value.retryable


async def test_a_server_that_comes_up_in_time_is_used(serve: Serve, fake_vllm: Any) -> None:
    fake = fake_vllm([])
    loading = 2

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal loading
        if loading:
            loading -= 1
            return web.json_response({"error": {"message": "Loading model", "code": 503}}, status=503)
        return await fake.handle(request)

    assert (await found(await serve(handle) + "/v1", startup_s=20)).window == 2048


async def test_a_server_that_hangs_is_given_up(serve: Serve) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        await anyio.sleep(30)
        raise AssertionError

    with anyio.fail_after(5), pytest.raises(ModelError, match="no answer"):
        await found(await serve(handle) + "/v1", startup_s=0.5)


async def test_a_server_that_never_generates_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "_PROBE_S", 0.3)

    async def probe(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await anyio.sleep(30)
        raise AssertionError

    with anyio.fail_after(5), pytest.raises(ModelError, match="is it paused"):
        await found(await serve(server_of(probe)) + "/v1")


async def test_entering_in_vain_leaves_nothing_open(serve: Serve, fake_vllm: Any) -> None:
    model = CompletionsModel(await serve(fake_vllm([]).handle) + "/v1", "other")
    for _ in range(2):
        with pytest.raises(ConfigError, match="not served"):
            await model.__aenter__()
    with pytest.raises(ConfigError, match="not open"):
        _ = model.capabilities


async def test_llama_s_window_is_found_where_it_is(serve: Serve) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny", "owned_by": "llamacpp"}]})
        if request.path == "/props":
            return web.json_response({"default_generation_settings": {"n_ctx": 512}})
        assert request.path == "/completion"
        (pair,) = (await request.json())["logit_bias"]
        first = {"tokens": pair[:1], "stop": False, "tokens_predicted": 1, "tokens_evaluated": 1}
        first["completion_probabilities"] = [{"id": pair[0], "logprob": -4.0, "top_logprobs": [{"id": pair[0]}]}]
        last = {"tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": 1, "tokens_evaluated": 1}
        return await stream(request, first, last)

    base_url = await serve(handle) + "/v1"
    assert await found(base_url) == Capabilities("llama.cpp", 512, "raw")
    assert "logprobs='any'" in await refused(base_url, logprobs="processed")


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 1}, {"top_k": 0}, {"top_k": -1, "top_p": 1.0, "min_p": 0.0}, {"seed": 1, "stop": ["x"]}],
)
def test_neutral_params_shift_nothing(params: dict[str, Any]) -> None:
    assert shifts_distribution(params) == []


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": None},
        {"top_k": 20},
        {"top_p": 0.9},
        {"logit_bias": {"5": 1}},
        {"min_p": 0.1},
    ],
)
def test_others_do(params: dict[str, Any]) -> None:
    (said,) = shifts_distribution(params)
    assert next(iter(params)) in said


@pytest.mark.parametrize(
    ("params", "kind", "said"),
    [
        ({"temperature": 0.5}, "raw", "temperature=0.5"),
        ({"top_k": 20}, "unknown", "top_k=20"),
        ({"temperature": 0}, "raw", "temperature=0 the likeliest token is taken"),
        ({"temperature": 0.0}, "processed", "temperature=0 the likeliest token is taken"),
    ],
)
def test_logprobs_of_another_distribution_are_warned_of(
    params: dict[str, Any], kind: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert warn_of_logprobs(params, kind)
    (record,) = caplog.records
    assert said in record.getMessage()


@pytest.mark.parametrize(
    ("params", "kind"),
    [({"temperature": 1}, "raw"), ({"temperature": 0.5, "top_k": 20}, "processed"), ({"seed": 0}, "unknown")],
)
def test_logprobs_of_the_same_distribution_are_not(
    params: dict[str, Any], kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert not warn_of_logprobs(params, kind)
    assert caplog.records == []
