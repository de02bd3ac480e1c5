"""Servers that break HTTP itself, or never come to an end: what is still said, kept and closed."""

import asyncio
import json
import math
import shutil
import ssl
import traceback
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import pytest
from agentkit_openai import ChatModel, CompletionsModel
from agentkit_openai.faults import Refused, plain
from agentkit_openai.transport import Transport

from agentkit import user
from agentkit.errors import ConfigError, ModelError
from agentkit.protocols import FinishReason, MessageRequest, TokenRequest

pytestmark = pytest.mark.slow

KEY = "q7zt-unlike-any-vendors-key-51x"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
Act = Callable[[asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Lists its model, answers the client's probe, and leaves every other request to `act`; `heads` are theirs."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self.heads: list[str] = []
        self.left = asyncio.Event()
        """Set once the client has closed a connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = [line for line in head.splitlines() if line.lower().startswith("content-length:")]
                body = await reader.readexactly(int(length[0].partition(":")[2])) if length else b""
                if head.startswith("GET"):
                    self._reply(writer, {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 64}]})
                elif json.loads(body).get("prompt") == [0]:
                    self._reply(writer, tokens((0, -3.0), reason="length"))
                else:
                    self.heads.append(head)
                    act = asyncio.ensure_future(self._act(writer))
                    gone = asyncio.ensure_future(reader.read(1))  # nothing more is sent until the answer has come
                    await asyncio.wait((act, gone), return_when=asyncio.FIRST_COMPLETED)
                    if gone.done() and not act.done():
                        self.left.set()
                    for task in (act, gone):
                        task.cancel()
                    await asyncio.gather(act, gone, return_exceptions=True)
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    def _reply(writer: asyncio.StreamWriter, content: dict[str, Any] | bytes) -> None:
        kind, body = (
            ("text/event-stream", content)
            if isinstance(content, bytes)
            else ("text/json", json.dumps(content).encode())
        )
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


Raw = Callable[[Act], Awaitable[tuple[str, RawServer]]]
Kind = type[CompletionsModel] | type[ChatModel]


@pytest.fixture
async def raw() -> AsyncIterator[Raw]:
    """Starts such a server, and gives its address and the server."""
    async with AsyncExitStack() as stack:

        async def start(act: Act) -> tuple[str, RawServer]:
            server = RawServer(act)
            listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            stack.callback(listener.close)
            return f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1", server

        yield start


def tokens(*found: tuple[int, float], reason: str | None = None) -> bytes:
    choice: dict[str, Any] = {"finish_reason": reason, "token_ids": [token_id for token_id, _ in found]}
    choice["logprobs"] = {"token_logprobs": [logprob for _, logprob in found]} if found else None
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def said(text: str, reason: str | None = None) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": reason}]}).encode() + b"\n\n"
    )


async def sample(model: CompletionsModel | ChatModel) -> tuple[FinishReason, list[Any]]:
    """How an answer ended, and what was passed on of it."""
    got: list[Any] = []
    with anyio.fail_after(30):
        if isinstance(model, CompletionsModel):
            prompt = array("i", [5, 6, 7])
            request = TokenRequest("t#0", prompt, len(prompt), 20, frozenset({2}), math.inf)
            finish = await model.sample_tokens(request, lambda chunk: got.extend(chunk.token_ids))
        else:
            asked = MessageRequest("t#0", (user("hi"),), (), 20, math.inf)
            finish = await model.sample_message(asked, lambda chunk: got.append(chunk.content))
    return finish.reason, got


both = pytest.mark.parametrize("kind", [CompletionsModel, ChatModel])


@both
@pytest.mark.parametrize(
    "broken",
    [
        f"HTTP/1.1 {KEY} nope\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nX {KEY}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{KEY}\r\n",
    ],
)
async def test_a_key_in_broken_http_is_in_no_traceback(raw: Raw, kind: Kind, broken: str) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(broken.encode())
        await writer.drain()

    url, _ = await raw(act)
    async with kind(url, "tiny", api_key=KEY, retries=1) as model:
        with pytest.raises(ModelError, match="ClientResponseError") as caught:
            await sample(model)
    assert KEY not in "".join(traceback.format_exception(caught.value))


ECHOED = 'a+/"b=unlike-any-vendors-key'


@both
@pytest.mark.parametrize(
    "reply",
    [
        "400 Bad Request\r\nContent-Length: 400\r\n\r\n" + quote(ECHOED, safe="").ljust(400),
        "400 Bad Request\r\nContent-Length: 400\r\n\r\n" + json.dumps({"error": json.dumps(ECHOED)}).ljust(400),
        f"200 OK\r\nContent-Type: text/{KEY}\r\nContent-Length: 0\r\n\r\n",
        f"200 OK\r\nContent-Encoding: {KEY}\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_key_is_known_however_a_server_quotes_it(raw: Raw, kind: Kind, reply: str) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + reply.encode())
        await writer.drain()

    url, _ = await raw(act)
    async with kind(url, "tiny", api_key=ECHOED if "400" in reply else KEY, retries=0) as model:
        with pytest.raises(ModelError, match=r"\*\*\*") as caught:
            await sample(model)
    assert "unlike-any-vendors-key" not in "".join(traceback.format_exception(caught.value))


@both
async def test_no_error_is_its_own_cause(raw: Raw, kind: Kind) -> None:
    """Who follows the causes of an error comes to an end."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nnope")
        await writer.drain()

    url, _ = await raw(act)
    async with kind(url, "tiny") as model:
        with pytest.raises(Refused) as caught:
            await sample(model)
    seen: list[BaseException] = []
    error: BaseException | None = caught.value
    while error is not None:
        assert error not in seen
        seen.append(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("kind", "head", "match"),
    [
        (CompletionsModel, b"503 Busy\r\nContent-Type: text/plain", "503 Service Unavailable: busy"),
        (ChatModel, b"200 OK\r\nContent-Type: text/html", "expected a stream of events"),
    ],
)
async def test_a_fault_whose_explanation_never_ends_is_told_all_the_same(
    raw: Raw, kind: Kind, head: bytes, match: str
) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + head + b"\r\nConnection: close\r\n\r\nbusy")
        while True:
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(b".")

    url, server = await raw(act)
    async with kind(url, "tiny", retries=0) as model:
        with pytest.raises(ModelError, match=match):
            await sample(model)
        with anyio.fail_after(5):
            await server.left.wait()


@both
async def test_an_answer_that_has_ended_is_not_waited_for_for_ever(raw: Raw, kind: Kind) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        ended = tokens((3, -1.0), (2, -0.5), reason="stop") if kind is CompletionsModel else said("hello", "stop")
        writer.write(SSE + ended)
        await writer.drain()
        await asyncio.sleep(60)  # no usage, no [DONE], no end

    url, server = await raw(act)
    async with kind(url, "tiny") as model:
        assert await sample(model) == (FinishReason.STOP, [3, 2] if kind is CompletionsModel else ["hello"])
        with anyio.fail_after(5):
            await server.left.wait()


@both
async def test_a_model_closed_under_a_request_says_so(raw: Raw, kind: Kind) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    url, server = await raw(act)
    model = kind(url, "tiny")
    await model.__aenter__()
    task = asyncio.ensure_future(sample(model))
    while not server.heads:
        await asyncio.sleep(0.01)
    await model.__aexit__(None, None, None)
    with pytest.raises(ConfigError, match="is not open"):
        await task


@both
async def test_a_packed_answer_is_refused_once_and_explained(raw: Raw, kind: Kind) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE.replace(b"Connection", b"Content-Encoding: gzip\r\nConnection") + b"\x1f\x8b")
        await writer.drain()

    url, server = await raw(act)
    async with kind(url, "tiny") as model:
        with pytest.raises(ModelError, match="packed as 'gzip'"):
            await sample(model)
    assert len(server.heads) == 1


@pytest.mark.parametrize("name", ["Identity", ""])
async def test_an_answer_that_is_said_not_to_be_packed_is_read(raw: Raw, name: str) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE.replace(b"Connection", f"Content-Encoding: {name}\r\nConnection".encode()))
        writer.write(said("hello", "stop"))
        await writer.drain()

    url, _ = await raw(act)
    async with ChatModel(url, "tiny") as model:
        assert await sample(model) == (FinishReason.STOP, ["hello"])


async def test_a_header_is_sent_once_however_its_name_is_written(raw: Raw) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + said("hello", "stop"))
        await writer.drain()

    url, server = await raw(act)
    async with ChatModel(url, "tiny", api_key=KEY, headers={"authorization": "Basic x", "user-agent": "me"}) as model:
        await sample(model)
    lines = server.heads[0].splitlines()
    assert [line for line in lines if line.lower().startswith("authorization")] == [f"Authorization: Bearer {KEY}"]
    assert [line for line in lines if line.lower().startswith("user-agent")] == ["user-agent: me"]


async def test_a_name_that_is_not_found_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: object, **__: object) -> list[Any]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(aiohttp.resolver.ThreadedResolver, "resolve", resolve)
    monkeypatch.setattr(aiohttp.resolver.AsyncResolver, "resolve", resolve)
    async with Transport("http://somewhere.invalid/v1", connect_s=0.2) as transport:
        with anyio.fail_after(20), pytest.raises(ModelError, match="Timeout") as caught:
            await transport.get("models")
        assert caught.value.retryable


@pytest.fixture
async def self_signed(tmp_path: Path) -> AsyncIterator[str]:
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl makes the certificate: apt-get install openssl"
    key, certificate = str(tmp_path / "key"), str(tmp_path / "certificate")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    await anyio.run_process([*command, "-keyout", key, "-out", certificate])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@both
async def test_a_certificate_that_is_not_trusted_is_not_waited_for(self_signed: str, kind: Kind) -> None:
    with anyio.fail_after(20), pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        async with kind(self_signed, "tiny", startup_s=3600):
            pass


async def test_another_loop_than_the_one_it_was_opened_in_is_told_so(raw: Raw) -> None:
    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + said("hello", "stop"))
        await writer.drain()

    url, _ = await raw(act)
    async with ChatModel(url, "tiny") as model:
        with pytest.raises(ConfigError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(sample(model)))
        assert await sample(model) == (FinishReason.STOP, ["hello"])


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".com"])
def test_a_host_that_no_name_service_could_know_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        ChatModel(f"http://{host}/v1", "tiny")


def test_what_a_server_said_can_be_printed() -> None:
    plain("half \ud83d of a pair").encode()
