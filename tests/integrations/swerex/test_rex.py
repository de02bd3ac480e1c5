"""What a server may answer, and what is made of it: a sandboxed command can replace the server."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from agentkit_swerex.rex import Executed, Rex, ServerTimeout, Unreachable
from aiohttp import web

from agentkit.errors import SandboxError

pytestmark = pytest.mark.slow  # sockets

TOKEN = "a-token-that-nobody-guesses"


@asynccontextmanager
async def server(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Rex]:
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{endpoint}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with Rex(f"{host}:{port}", TOKEN) as rex:
            yield rex
    finally:
        await runner.cleanup()


def told(status: int, body: object) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["X-API-Key"] == TOKEN
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))

    return answer


def thrown(kind: str, message: str) -> dict[str, Any]:
    return {"swerexception": {"class_path": kind, "message": message, "traceback": "", "extra_info": {}}}


async def test_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.path, await request.json()))
        return web.json_response({"stdout": "é\n", "stderr": "", "exit_code": 3})

    async with server(answer) as rex:
        assert await rex.execute(["printf", "é\n"], timeout_s=2.0) == Executed(3, "é\n")
        await rex.write_file("/a", "text", timeout_s=2.0)
    (path, body), (_, written) = asked
    assert path == "/execute"
    assert (body["command"], body["timeout"], body["shell"]) == (["printf", "é\n"], 2.0, False)
    assert written == {"path": "/a", "content": "text"}


async def test_an_exception_is_data_whatever_it_names(tmp_path: Any) -> None:
    """SWE-ReX's own client would run `touch`."""
    witness = tmp_path / "witness"
    for kind in ("os.system", "posix.system", "builtins.eval", "builtins.exec", "subprocess.getoutput"):
        message = f"touch {witness}" if "." in kind and "builtins" not in kind else f"open({str(witness)!r}, 'w')"
        async with server(told(511, thrown(kind, message))) as rex:
            with pytest.raises(SandboxError, match="refused execute"):
                await rex.execute(["true"], timeout_s=2.0)
            with pytest.raises(SandboxError, match="refused is_alive"):
                await rex.is_alive(timeout_s=2.0)
    assert not witness.exists()


async def test_a_time_limit_of_the_server() -> None:
    async with server(told(511, thrown("swerex.exceptions.CommandTimeoutError", "Timeout (2s) exceeded"))) as rex:
        with pytest.raises(ServerTimeout):
            await rex.execute(["sleep", "9"], timeout_s=2.0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "not json"),
        (200, []),
        (200, {"stdout": "x"}),
        (200, {"stdout": 7, "exit_code": 0}),
        (200, "[" * 100_000),
        (511, {"swerexception": "text"}),
        (401, {"detail": "no"}),
        (500, "Internal Server Error"),
        (302, ""),
    ],
)
async def test_what_is_no_answer_is_an_error(status: int, body: object) -> None:
    async with server(told(status, body)) as rex:
        with pytest.raises(SandboxError) as caught:
            await rex.execute(["true"], timeout_s=2.0)
        assert TOKEN not in str(caught.value)
        assert not isinstance(caught.value, Unreachable)


async def test_a_server_leads_nowhere_else() -> None:
    async with server(told(200, {"stdout": "secret", "exit_code": 0})) as other:

        async def answer(_: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"{other.url}/execute")

        async with server(answer) as rex:
            with pytest.raises(SandboxError, match="status 302"):
                await rex.execute(["true"], timeout_s=2.0)


async def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit_swerex.rex.ANSWER_LIMIT", 1 << 20)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65536)
        except ConnectionError:
            return response

    async with server(answer) as rex:
        with pytest.raises(SandboxError, match="more than 1048576 bytes"):
            await rex.execute(["true"], timeout_s=10.0)


async def test_silence_and_absence() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await anyio.sleep(1.0)
        return web.json_response({})

    async with server(answer) as rex:
        assert not await rex.is_alive(timeout_s=0.2)
    with pytest.raises(Unreachable) as caught:
        async with Rex("http://127.0.0.1:1", TOKEN) as rex:
            await rex.execute(["true"], timeout_s=1.0)
    assert TOKEN not in str(caught.value)


async def test_what_a_server_says_is_printable_and_without_the_token() -> None:
    async with server(told(511, thrown("ValueError", f"\x1b]0;owned\x07 {TOKEN} \n{'x' * 9000}"))) as rex:
        with pytest.raises(SandboxError) as caught:
            await rex.execute(["true"], timeout_s=2.0)
    assert TOKEN not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 700
