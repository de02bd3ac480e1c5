"""Rollouts against the server of `plugin.py`: models, a tap on what is said, and questions about what it is doing."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from agentkit_openai import CompletionsModel
from attrs import define, field

from agentkit.parsing import HermesParser
from agentkit.tokens import QWEN, HFTemplate, HFTokenizer, TemplateRenderer

SAMPLED = "vllm:generation_tokens_total"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def renderer(tiny_model_folder: Path) -> TemplateRenderer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    return TemplateRenderer(HFTokenizer(tokenizer), HFTemplate(tokenizer), QWEN)


@pytest.fixture
async def model(vllm_server: Any, renderer: TemplateRenderer) -> AsyncIterator[CompletionsModel]:
    async with CompletionsModel(
        vllm_server.url, "tiny", renderer=renderer, parser=HermesParser(), logprobs="processed"
    ) as model:
        yield model


@define
class Work:
    """What the server has done since the test began."""

    ask: Callable[[], dict[str, float]]
    before: dict[str, float] = field(factory=dict)

    async def since(self, name: str) -> float:
        """How much a counter has grown."""
        return (await self.now())[name] - self.before[name]

    async def now(self) -> dict[str, float]:
        return await anyio.to_thread.run_sync(self.ask)

    async def quiet(self) -> float:
        """Returns once the server has nothing to do and samples no more: how many tokens it has sampled."""
        with anyio.fail_after(60):
            while True:
                found = await self.now()
                if not found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"]:
                    break
                await anyio.sleep(0.05)
        await anyio.sleep(0.5)
        assert (await self.now())[SAMPLED] == found[SAMPLED]
        return await self.since(SAMPLED)


@pytest.fixture
async def work(vllm_server: Any) -> Work:
    work = Work(vllm_server.metrics)
    work.before = await work.now()
    return work


@define
class Tap:
    """A proxy that lets everything through, and keeps what the server itself says of its prompts and tokens."""

    url: str
    said: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(factory=list)
    """(prompt ids, sampled ids) of each generation that came to its end, as the server echoed them."""


@pytest.fixture
async def tap(vllm_server: Any) -> AsyncIterator[Tap]:
    import aiohttp
    from aiohttp import web

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        url = f"{vllm_server.root}{request.path_qs}"
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with session.request(request.method, url, data=body or None, headers=headers) as reply:
            response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]})
            await response.prepare(request)
            whole = bytearray()
            async for piece in reply.content.iter_any():
                whole += piece
                await response.write(piece)
            await response.write_eof()
        if reply.headers["Content-Type"].startswith("text/event-stream"):
            tap.said.append(read_events(bytes(whole)))
        return response

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            tap = Tap(f"http://{host}:{port}/v1")
            yield tap
        finally:
            await runner.cleanup()


def read_events(stream: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The prompt's ids and the sampled ids in a stream of completions."""
    prompt: list[int] = []
    sampled: list[int] = []
    for line in stream.decode().splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            for choice in json.loads(line[6:])["choices"]:
                prompt += choice.get("prompt_token_ids") or ()
                sampled += choice.get("token_ids") or ()
    return tuple(prompt), tuple(sampled)
