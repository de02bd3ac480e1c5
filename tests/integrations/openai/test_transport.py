"""One server, many connections: what is sent, what is held, what is closed, what is said."""

import asyncio
import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from agentkit_openai.faults import Refused
from agentkit_openai.transport import Transport, header_value
from aiohttp import web

from agentkit.errors import ConfigError, ContextOverflow, ModelError

Serve = Callable[[Any], Awaitable[str]]
SSE = {"Content-Type": "text/event-stream"}
KEY = "sk-very-secret"


async def events(request: web.Request, parts: list[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers=SSE)
    await answer.prepare(request)
    for part in parts:
        await answer.write(part)
    await answer.write_eof()
    return answer


@pytest.mark.parametrize(
    "base_url",
    [
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "http://",
        "http://host:port/v1",
        "http://host:99999/v1",
        "http://ho st/v1",
        "http://[::1/v1",
        "",
        None,
        8000,
    ],
)
def test_an_address_that_is_none_is_refused(base_url: Any) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        Transport(base_url)


@pytest.mark.parametrize(
    "base_url",
    [f"http://user:{KEY}@host/v1", f"http://{KEY}@host/v1", f"http://host/v1?key={KEY}", f"http://host/v1#{KEY}"],
)
def test_a_secret_in_the_address_is_refused_and_not_shown(base_url: str) -> None:
    with pytest.raises(ConfigError, match="api_key") as caught:
        Transport(base_url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"api_key": ""}, "api_key"),
        ({"api_key": f"{KEY}\r\nX: y"}, "api_key"),
        ({"api_key": f"{KEY} "}, "api_key"),
        ({"api_key": 5}, "api_key"),
        ({"headers": {"X-A": f"{KEY}\r\nX-B: y"}}, "headers"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_connections": True}, "max_connections"),
        ({"connect_s": 0}, "connect_s"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Transport("http://host/v1", **arguments)
    assert KEY not in str(caught.value)


async def test_more_connections_than_files_may_be_open_are_refused() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(ConfigError, match=rf"ulimit -n.*max_connections={files - 128}"):
        async with Transport("http://host/v1", max_connections=files):
            pass


def test_another_loop_than_asyncio_s_is_told_so() -> None:
    async def enter() -> None:
        async with Transport("http://host/v1"):
            pass

    with pytest.raises(ConfigError, match="asyncio"):
        anyio.run(enter, backend="trio")


async def test_a_transport_that_is_not_open_says_so() -> None:
    transport = Transport("http://host/v1")
    with pytest.raises(ConfigError, match="async with"):
        await transport.get("models")
    async with transport:
        with pytest.raises(ConfigError, match="open already"):
            await transport.__aenter__()
    assert transport.slots.free == 1024


@pytest.mark.parametrize("text", ["task-0", "a/b:c", "a b\r\nX: y", "é😀", "x" * 5000, ""])
def test_any_id_makes_a_header(text: str) -> None:
    value = header_value(text)
    assert value.isascii()
    assert value.isprintable()
    assert " " not in value
    assert len(value) <= 512


@pytest.mark.slow
async def test_events_arrive_and_the_connection_is_used_again(serve: Serve) -> None:
    ports = set()

    async def handle(request: web.Request) -> web.StreamResponse:
        ports.add(request.transport.get_extra_info("peername"))  # type: ignore[union-attr]
        body = await request.json()
        assert body == {"prompt": [1, 2]}
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        assert request.headers["X-A"] == "b"
        assert request.headers["X-Request-Id"] == "r"
        assert request.content_length == len(b'{"prompt": [1, 2]}')
        return await events(request, [b": hello\n\n", b"data: a\n", b"\ndata: b\n\n", b"data: [DONE]\n\n"])

    async with Transport(await serve(handle) + "/v1", api_key=KEY, headers={"X-A": "b"}) as transport:
        for _ in range(3):
            async with transport.stream(
                "x", [b'{"prompt": ', b"[1, ", b"2]}"], headers={"X-Request-Id": "r"}
            ) as stream:
                assert [event async for event in stream] == [b"a", b"b"]
                assert stream.is_done
    assert len(ports) == 1


@pytest.mark.slow
async def test_a_body_of_many_megabytes_arrives_whole(serve: Serve) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        content = await request.read()
        return web.json_response({"size": len(content), "ends": [content[:3].decode(), content[-3:].decode()]})

    pieces = [b"[" + b"1," * 300_000, b"2," * 2_000_000, b"3]"]
    async with Transport(await serve(handle)) as transport:
        await transport.slots.acquire()
        response = await transport.open("POST", "x", pieces, {})
        answer = await response.json()
        response.close()
        transport.slots.release()
    assert answer == {"size": sum(map(len, pieces)), "ends": ["[1,", ",3]"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["break", "raise", "cancel", "native"])
async def test_leaving_a_stream_closes_its_connection(serve: Serve, how: str) -> None:
    closed = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=SSE)
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"data: a\n\n")
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    async with Transport(await serve(handle), max_connections=1) as transport:
        got = 0

        async def consume() -> None:
            nonlocal got
            async with transport.stream("x", [b"{}"]) as stream:
                async for _ in stream:
                    got += 1
                    if got == 3 and how == "break":
                        return
                    if got == 3 and how == "raise":
                        raise ZeroDivisionError

        if how == "cancel":
            with anyio.move_on_after(0.3):
                await consume()
        elif how == "native":
            task = asyncio.create_task(consume())
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how == "raise":
            with pytest.raises(ZeroDivisionError):
                await consume()
        else:
            await consume()
        with anyio.fail_after(2):
            await closed.wait()
        assert got >= 3
        assert (transport.slots.free, transport.slots.waiting) == (1, 0)


@pytest.mark.slow
async def test_a_cancelled_wait_for_the_head_closes_the_connection(serve: Serve) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            closed.set()
        raise AssertionError

    async with Transport(await serve(handle), max_connections=1) as transport:

        async def ask() -> None:
            async with transport.stream("x", [b"{}"]):
                pass

        task = asyncio.create_task(ask())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with anyio.fail_after(2):
            await closed.wait()
        assert transport.slots.free == 1


@pytest.mark.slow
async def test_a_refusal_says_where_and_why_and_frees_the_slot(serve: Serve) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        said = {"error": {"message": f"no room for {request.headers['Authorization']}, maximum context length"}}
        if request.path == "/v1/full":
            return web.json_response(said, status=400)
        return web.json_response(said, status=429, headers={"Retry-After": "7"})

    async with Transport(await serve(handle) + "/v1", api_key=KEY, max_connections=1) as transport:
        with pytest.raises(ContextOverflow):
            async with transport.stream("full", [b"{}"]):
                pass
        with pytest.raises(
            Refused, match=r"POST http://127.0.0.1:\d+/v1/busy: 429 Too Many Requests: no room"
        ) as caught:
            await transport.post("busy", {})
        assert caught.value.retry_after_s == 7.0
        assert KEY not in str(caught.value)
        assert transport.slots.free == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        ("application/json", b'{"choices": []}', "found 'application/json'"),
        ("text/html", b"<html>\x1b[2J", "found 'text/html'"),
        ("text/event-stream", b"data: " + b"x" * 5000, "more than 1000 bytes"),
        ("text/event-stream", b"x" * 5000, "more than 1000 bytes"),
    ],
)
async def test_an_answer_that_is_no_stream_is_an_error(serve: Serve, content_type: str, body: bytes, said: str) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type)

    async with Transport(await serve(handle), max_connections=1) as transport:
        with pytest.raises(ModelError, match=said) as caught:
            async with transport.stream("x", [b"{}"], event_bytes=1000) as stream:
                assert [event async for event in stream] == []
        assert "\x1b" not in str(caught.value)
        assert transport.slots.free == 1


@pytest.fixture
async def endless(serve: Serve) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        status = 200 if request.path == "/ok" else 500
        answer = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)

    return await serve(handle)


@pytest.mark.slow
async def test_an_endless_body_is_not_held(endless: str) -> None:
    async with Transport(endless, max_connections=1) as transport:
        with pytest.raises(ModelError, match="larger than 16777216 bytes"):
            await transport.get("ok")
        with pytest.raises(Refused, match="500"):
            await transport.get("fault")
        with pytest.raises(ModelError, match="expected a stream"):
            async with transport.stream("ok", [b"{}"]):
                pass
        assert transport.slots.free == 1


@pytest.mark.slow
async def test_an_answer_that_does_not_come_is_given_up(serve: Serve) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        raise AssertionError

    async with Transport(await serve(handle)) as transport:
        with pytest.raises(ModelError, match=r"no answer within 0\.2 s") as caught:
            await transport.get("x", timeout_s=0.2)
        assert caught.value.retryable


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"[1]", b"nonsense", b"", b"[" * 100_000])
async def test_an_answer_that_is_no_object_is_an_error(serve: Serve, answer: bytes) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=answer)

    async with Transport(await serve(handle)) as transport:
        with pytest.raises(ModelError, match="expected a JSON object"):
            await transport.get("x")


@pytest.mark.slow
async def test_a_redirect_is_not_followed_with_the_key(serve: Serve) -> None:
    seen = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with Transport(await serve(handle), api_key=KEY) as transport:
        with pytest.raises(ModelError, match="redirects are not followed"):
            await transport.post("x", {})
    assert seen == ["/x"]


@pytest.mark.slow
async def test_nothing_that_is_logged_or_shown_holds_the_key(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text=f"bad key {request.headers['Authorization']}, {request.headers['X-Key']}")

    secrets = {"X-Key": "another-secret", "X-Auth": "Basic abcdefgh"}
    async with Transport(await serve(handle), api_key=KEY, headers=secrets) as transport:
        with pytest.raises(ModelError) as caught:
            await transport.get("x")
        shown = f"{caught.value!r} {caught.value} {transport!r} {caplog.text}"
    for secret in (KEY, "another-secret", "abcdefgh"):
        assert secret not in shown


@pytest.mark.slow
async def test_a_kept_connection_that_the_server_closed_costs_no_error(serve: Serve) -> None:
    """llama.cpp closes after each stream without saying so."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = await events(request, [b"data: a\n\n"])
        assert request.transport is not None
        request.transport.close()
        return answer

    async with Transport(await serve(handle)) as transport:
        for _ in range(30):
            async with transport.stream("x", [b"{}"]) as stream:
                assert [event async for event in stream] == [b"a"]
