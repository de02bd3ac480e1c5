"""What a request to a model server costs this process: CompletionsModel and ChatModel beside bare aiohttp and the SDK.

An echo server in a process of its own streams 32 tokens to each request, in the events of vLLM, as fast as it can. All
clients send the same requests and read every event as JSON. CPU is that of the client's process; the target is 1.5
times bare aiohttp. The second part counts the bytes that a turn writes as JSON while a conversation grows.

    .venv/bin/python benchmarks/client.py [--quick] [--concurrency 1024]
"""

import argparse
import gc
import json
import logging
import multiprocessing
import resource
import statistics
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import anyio
import openai
from _report import heading, row
from agentkit_openai import ChatModel, CompletionsModel

from agentkit.protocols import Message, MessageRequest, TextChunk, TokenChunk, TokenRequest, ToolSpec, assistant, user

EVENTS = 32
PROMPT_IDS = list(range(1000, 3000))
TURNS = [user("Look at the file. " * 40), *[assistant("I see. " * 30), user("Go on. " * 30)] * 8]
TOOLS = (ToolSpec("bash", "Runs a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),)
MODEL = "echo"

Client = Callable[[int], Awaitable[None]]
"""Asks once, as trajectory number so and so."""


# The server: no framework, so that it is not what is measured.


def _data(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def _completion_events() -> list[bytes]:
    events = []
    for at in range(EVENTS):
        logprobs = {
            "text_offset": [at], "token_logprobs": [-0.4921875], "tokens": [" the"], "top_logprobs": [{" the": -0.492}],
        }  # fmt: skip
        choice = {
            "index": 0, "text": " the", "logprobs": logprobs, "finish_reason": "length" if at == EVENTS - 1 else None,
            "stop_reason": None, "prompt_token_ids": None, "token_ids": [1000 + at],
        }  # fmt: skip
        head = {"id": "cmpl-8a92441f268aa5dc", "object": "text_completion", "created": 1796021224, "model": MODEL}
        events.append(_data({**head, "choices": [choice]}))
    return events


def _chat_events() -> list[bytes]:
    head = {"id": "chatcmpl-9f51cfe28d32f2", "object": "chat.completion.chunk", "created": 1796021224, "model": MODEL}
    deltas = [{"role": "assistant", "content": ""}, *[{"content": " the"}] * EVENTS]
    events = []
    for at, delta in enumerate(deltas):
        reason = "length" if at == EVENTS else None
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "token_ids": None}
        events.append(_data({**head, "choices": [choice]}))
    usage = {"prompt_tokens": 1000, "total_tokens": 1000 + EVENTS, "completion_tokens": EVENTS}
    return [*events, _data({**head, "choices": [], "usage": usage})]


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_FIRST, *_REST = _completion_events()
_ONE = _FIRST.replace(b"-0.4921875", b"0.0").replace(b'"finish_reason":null', b'"finish_reason":"length"')
_COMPLETION = b"".join(map(_chunk, _REST))
_CHAT = _HEAD + b"".join(map(_chunk, _chat_events())) + _DONE
_CARDS = json.dumps({"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": 1 << 20}]}).encode()
_MODELS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_CARDS), _CARDS)


def _completion(body: bytes) -> bytes:
    """As vLLM: the first event quotes the prompt. One token where one is asked for, with a bias that is kept."""
    start = body.index(b'"prompt":') + len(b'"prompt":')
    prompt = body[start : body.index(b"]", start) + 1].lstrip()
    if b'"max_tokens":1,' in body:
        return _HEAD + _chunk(_ONE.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":' + prompt)) + _DONE
    tokens = prompt.count(b",") + 1
    usage = {"prompt_tokens": tokens, "total_tokens": tokens + EVENTS, "completion_tokens": EVENTS}
    first = _FIRST.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":' + prompt)
    return _HEAD + _chunk(first) + _COMPLETION + _chunk(_data({"choices": [], "usage": usage})) + _DONE


async def _connection(stream: anyio.abc.SocketStream) -> None:
    buffer = bytearray()
    async with stream:
        while True:
            try:
                while (end := buffer.find(b"\r\n\r\n")) < 0:
                    buffer += await stream.receive()
                head = bytes(buffer[:end]).lower()
                at = head.find(b"content-length:")
                length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
                while len(buffer) < end + 4 + length:
                    buffer += await stream.receive()
                body = bytes(buffer[end + 4 : end + 4 + length])
                del buffer[: end + 4 + length]
                path = head.split(b" ", 2)[1]
                if path.endswith(b"/models"):
                    await stream.send(_MODELS)
                else:
                    await stream.send(_CHAT if path.endswith(b"/chat/completions") else _completion(body))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


def _serve(pipe: Connection) -> None:
    _raise_file_limit()

    async def main() -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=4096)
        pipe.send(listener.extra(anyio.abc.SocketAttribute.local_port))
        await listener.serve(_connection)

    anyio.run(main)


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# The clients: each reads all that was sent, and refuses anything but all 32 tokens.


def _checked(tokens: int) -> None:
    if tokens != EVENTS:
        raise SystemExit(f"a client read {tokens} of {EVENTS} tokens")


def _openai_messages(said: list[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in said]


def _tools() -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in TOOLS
    ]


async def _bare(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What one writes who needs nothing else."""
    async with session.post(url, json=body) as reply:
        return [json.loads(line[6:]) async for line in reply.content if line.startswith(b"data: {")]


async def completions_clients(url: str, stack: AsyncExitStack) -> dict[str, Client]:
    """The token-level clients by name, bare aiohttp first."""
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    model = await stack.enter_async_context(CompletionsModel(url, MODEL, max_connections=2048))
    sdk = await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, timeout=600))
    common = {"model": MODEL, "max_tokens": 512, "logprobs": 0, "temperature": 1.0, "prompt": PROMPT_IDS}

    async def bare(number: int) -> None:
        body = {**common, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
        ids: list[int] = []
        logprobs: list[float] = []
        for event in await _bare(session, url + "/completions", body):
            if event["choices"]:
                ids += event["choices"][0]["token_ids"]
                logprobs += event["choices"][0]["logprobs"]["token_logprobs"]
        _checked(len(ids))

    async def ours(number: int) -> None:
        ids: list[int] = []
        logprobs: list[float] = []

        def emit(chunk: TokenChunk) -> None:
            ids.extend(chunk.token_ids)
            logprobs.extend(chunk.logprobs)

        deadline = anyio.current_time() + 600
        await model.sample_tokens(TokenRequest(f"t{number}", PROMPT_IDS, 0, 512, frozenset(), deadline), emit)
        _checked(len(ids))

    async def by_sdk(number: int) -> None:
        ids: list[int] = []
        stream = await sdk.completions.create(**common, stream=True, extra_body={"return_token_ids": True})
        async for chunk in stream:
            if chunk.choices:
                ids += chunk.choices[0].token_ids
        _checked(len(ids))

    return {"bare aiohttp": bare, "CompletionsModel": ours, "openai SDK": by_sdk}


async def chat_clients(url: str, stack: AsyncExitStack) -> dict[str, Client]:
    """The message-level clients by name, bare aiohttp first."""
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    model = await stack.enter_async_context(ChatModel(url, MODEL, max_connections=2048))
    sdk = await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, timeout=600))
    common: dict[str, Any] = {
        "model": MODEL, "max_tokens": 512, "messages": _openai_messages(TURNS), "tools": _tools(),
    }  # fmt: skip

    async def bare(number: int) -> None:
        body = {**common, "stream": True, "stream_options": {"include_usage": True}}
        events = await _bare(session, url + "/chat/completions", body)
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        parts = [delta["content"] for delta in deltas if delta.get("content")]
        _checked(len(parts))

    async def ours(number: int) -> None:
        parts: list[TextChunk] = []
        deadline = anyio.current_time() + 600
        await model.sample_message(MessageRequest(f"t{number}", TURNS, TOOLS, 512, deadline), parts.append)
        _checked(len(parts))

    async def by_sdk(number: int) -> None:
        stream = await sdk.chat.completions.create(**common, stream=True, stream_options={"include_usage": True})
        deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
        parts = [delta.content for delta in deltas if delta.content]
        _checked(len(parts))

    return {"bare aiohttp": bare, "ChatModel": ours, "openai SDK": by_sdk}


async def measured(client: Client, concurrent: int, requests: int) -> tuple[float, float]:
    """(requests a second, microseconds of CPU a request) of `requests`, `concurrent` at a time."""
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            await client(number)

    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(concurrent):
            group.start_soon(worker)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return requests / wall, cpu / requests * 1e6


async def compare(url: str, *, quick: bool, concurrency: list[int]) -> None:
    """Print the first table."""
    for make in (completions_clients, chat_clients):
        async with AsyncExitStack() as stack:
            clients = await make(url, stack)
            for concurrent in concurrency:
                repeats = 2 if quick else 5
                found: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
                for repeat in range(
                    repeats + 1
                ):  # side by side, so that a busy machine is busy for all; one to warm up
                    for name, client in clients.items():
                        if name == "openai SDK" and concurrent > 64:
                            continue  # half a minute a sample
                        is_slow = name == "openai SDK"
                        requests = max(concurrent, (10 if quick else 100) if is_slow else (20 if quick else 400))
                        sample = await measured(client, concurrent, requests)
                        if repeat:
                            found[name].append(sample)
                for name, samples in found.items():
                    if not samples:
                        continue
                    row(f"{concurrent} at once, {name}", [rate for rate, _ in samples], "requests/s")
                    row("  CPU", [cpu for _, cpu in samples], "µs/request")
                bare, ours = (statistics.median(cpu for _, cpu in found[name]) for name in list(found)[:2])
                print(f"  {'  times bare aiohttp (target: 1.5)':<44} {ours / bare:.2f}")


async def growth(url: str, *, quick: bool) -> None:
    """Print what a turn writes as JSON while a conversation of 100 turns grows from a long prompt."""
    turns = 20 if quick else 100
    print(f"  {turns} turns, each with 400 new tokens or 2,000 new characters, from a prompt of 30,000 or 100,000")
    async with CompletionsModel(url, MODEL) as model:
        ids = array("i", [100_000 + at % 50_000 for at in range(30_000)])
        written, whole = [], []
        for turn in range(turns):
            before = model.encoded_bytes
            request = TokenRequest("grows", ids, 0, 512, frozenset(), anyio.current_time() + 600)
            await model.sample_tokens(request, lambda chunk: None)
            written.append(float(model.encoded_bytes - before))
            whole.append(float(len(json.dumps(ids.tolist(), separators=(",", ":")))))
            ids.extend(range(100_000 + turn, 100_400 + turn))
    _growth_rows("CompletionsModel", written, whole)
    async with ChatModel(url, MODEL) as chat:
        said = [user("x" * 100_000)]
        written, whole = [], []
        for turn in range(turns):
            before = chat.encoded_bytes
            request = MessageRequest("grows", said, TOOLS, 512, anyio.current_time() + 600)
            finish = await chat.sample_message(request, lambda chunk: None)
            written.append(float(chat.encoded_bytes - before))
            whole.append(float(len(json.dumps({"messages": _openai_messages(said), "tools": _tools()}))))
            said += [finish.message or assistant(""), user(f"{turn} " + "y" * 1870)]
    _growth_rows("ChatModel", written, whole)


def _growth_rows(name: str, written: list[float], whole: list[float]) -> None:
    row(f"{name}, first turn", written[:1], "bytes")
    row(f"{name}, turns 2 to 11", written[1:11], "bytes")
    row(f"{name}, the last 10", written[-10:], "bytes")
    row("json.dumps of everything, the last 10", whole[-10:], "bytes")


def main() -> None:
    """Start the server, print both tables, end the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a smoke run: its numbers say nothing")
    parser.add_argument("--concurrency", type=int, nargs="+", help="requests at a time (default: 1 64 1024)")
    options = parser.parse_args()
    quick, concurrency = options.quick, options.concurrency or ([1, 64] if options.quick else [1, 64, 1024])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _raise_file_limit()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}/v1"
        heading(f"Clients of a model server, {EVENTS} tokens streamed a request")
        anyio.run(lambda: compare(url, quick=quick, concurrency=concurrency))
        anyio.run(lambda: growth(url, quick=quick))
    finally:
        server.kill()
        server.join()


if __name__ == "__main__":
    main()
