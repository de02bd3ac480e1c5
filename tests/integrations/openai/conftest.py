"""Local servers that answer as real ones did, or as no server should.

`test_*contract.py` run against recordings; with AGENTKIT_SERVER_URL and AGENTKIT_SERVER_MODEL they run against that
server instead, and with AGENTKIT_SERVER_RECORD as well what it answers is written to that file, to be the recording.
"""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from attrs import field, frozen

from agentkit.testing import virtual_asyncio

RECORDED = Path(__file__).parent / "recorded"
# What the client sends with every request; the rest of a body tells requests apart.
CONSTANT = ("stream", "stream_options", "logprobs", "return_token_ids", "return_tokens", "n_probs", "cache_prompt")
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """aiohttp runs on asyncio: real time for the slow tests, virtual time for the others."""
    if any(request.node.get_closest_marker(mark) is not None for mark in ("slow", "servers")):
        return "asyncio"
    return virtual_asyncio()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Starts a server around a handler on a free port, and gives its address, without a path."""
    async with AsyncExitStack() as stack:

        async def start(handler: Handler) -> str:
            app = web.Application(client_max_size=64 << 20)
            app.router.add_route("*", "/{path:.*}", handler)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
            await site.start()
            host, port = runner.addresses[0][:2]
            return f"http://{host}:{port}"

        yield start


@frozen
class Server:
    """A server for the contract: recorded, or real."""

    base_url: str
    model: str
    is_real: bool

    @property
    def root_url(self) -> str:
        """Where what is not part of the API is."""
        return self.base_url.removesuffix("/v1")


def request_key(path: str, body: dict[str, Any] | None) -> str:
    """What tells a request from others: a long prompt by its length and its ends."""
    if body is None:
        return path
    rest = {name: value for name, value in body.items() if name not in CONSTANT}
    rest = {name: value for name, value in rest.items() if NEUTRAL.get(name) != value}
    if rest.get("top_k") in (-1, 0):
        del rest["top_k"]
    prompt = rest.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 64:
        rest["prompt"] = [len(prompt), *prompt[:4], *prompt[-4:]]
    return path + " " + json.dumps(rest, sort_keys=True)


@frozen
class Recording:
    """Replies by request, the same each time."""

    replies: dict[str, dict[str, Any]] = field(factory=dict)

    @classmethod
    def load(cls, name: str) -> "Recording":
        """What is in the file `name`."""
        recording = cls()
        for line in (RECORDED / name).read_text().splitlines():
            reply = json.loads(line)
            recording.replies[reply["key"]] = reply
        return recording

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer as recorded."""
        body = await request.json() if request.can_read_body else None
        key = request_key(request.path_qs, body)
        reply = self.replies.get(key)
        if reply is None:
            return web.Response(status=599, text=f"not recorded: {key}")
        return web.Response(status=reply["status"], body=reply["body"].encode(), content_type=reply["type"])


@pytest.fixture
async def make_server(serve: Callable[[Handler], Awaitable[str]]) -> AsyncIterator[Callable[[str], Awaitable[Server]]]:
    """Gives the server for the contract: the real one, or one that replays the recording of this name."""
    url, model = os.environ.get("AGENTKIT_SERVER_URL"), os.environ.get("AGENTKIT_SERVER_MODEL")
    target = os.environ.get("AGENTKIT_SERVER_RECORD")
    async with AsyncExitStack() as stack:

        async def make(name: str) -> Server:
            if url is None or model is None:
                recording = Recording.load(name)
                models = json.loads(recording.replies["/v1/models"]["body"])
                return Server(await serve(recording.handle) + "/v1", models["data"][0]["id"], False)
            if target is None:
                return Server(url.rstrip("/"), model, True)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            tap = _tap(session, url.rstrip("/").removesuffix("/v1"), Path(target))
            return Server(await serve(tap) + "/v1", model, True)

        yield make


def _tap(session: aiohttp.ClientSession, root_url: str, target: Path) -> Handler:
    """Pass requests on, and write down what came."""

    async def handle(request: web.Request) -> web.StreamResponse:
        content = await request.read()
        answer = web.StreamResponse()
        parts: list[bytes] = []
        try:
            async with session.request(
                request.method,
                root_url + request.path_qs,
                data=content or None,
                headers={"Content-Type": "application/json", "Authorization": request.headers.get("Authorization", "")},
            ) as reply:
                answer.set_status(reply.status)
                answer.content_type = reply.content_type
                await answer.prepare(request)
                async for part in reply.content.iter_any():
                    parts.append(part)
                    await answer.write(part)
            await answer.write_eof()
        finally:  # where the client leaves early as well
            lines = target.read_text().splitlines() if target.exists() else []
            key = request_key(request.path_qs, json.loads(content) if content else None)
            if "/metrics" not in key and key not in [json.loads(line)["key"] for line in lines]:
                text = b"".join(parts).decode()
                line = {"key": key, "status": answer.status, "type": answer.content_type, "body": text}
                target.write_text("\n".join([*lines, json.dumps(line, ensure_ascii=False), ""]))
        return answer

    return handle


class FakeVLLM:
    """A server in vLLM's shape that answers each request for a completion with the next step of a script.

    A step is a list of parts of a stream, or a function of the request that answers it; the last one is repeated. What
    was asked is in `bodies` and `headers`. The client's probe is answered apart.
    """

    def __init__(self, *script: list[bytes] | Handler, window: int = 2048) -> None:
        self.script = script
        self.window = window
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []

    @staticmethod
    def event(*tokens: tuple[int, float], reason: str | None = None) -> bytes:
        """One event with these ids and log-probabilities."""
        logprobs = {"token_logprobs": [logprob for _, logprob in tokens]} if tokens else None
        choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": reason}
        choice["token_ids"] = [token_id for token_id, _ in tokens]
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": self.window}]})
        body = await request.json()
        if body["prompt"] == [0]:
            return await self.stream(request, [self.event((0, -3.0), reason="length"), b"data: [DONE]\n\n"])
        self.bodies.append(body)
        self.headers.append(request.headers.copy())
        step = self.script[min(len(self.bodies), len(self.script)) - 1]
        return await (self.stream(request, step) if isinstance(step, list) else step(request))

    @staticmethod
    async def stream(request: web.Request, parts: list[bytes]) -> web.StreamResponse:
        """A stream of these parts, each in a packet of its own."""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for part in parts:
            await answer.write(part)
        await answer.write_eof()
        return answer


@pytest.fixture
def fake_vllm() -> type[FakeVLLM]:
    """The class."""
    return FakeVLLM
