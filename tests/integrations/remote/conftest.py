"""A server on loopback, a proxy that breaks connections, and what is left of processes."""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from agentkit_remote import RemoteBackend, SandboxServer

from agentkit.sandbox import BwrapBackend
from agentkit.testing import virtual_asyncio

TOKEN = "a-token-that-nobody-else-knows"


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """aiohttp runs on asyncio: real time for the slow tests, virtual time for the others."""
    return "asyncio" if request.node.get_closest_marker("slow") is not None else virtual_asyncio()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of the test's own, and no token from outside."""
    monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("AGENTKIT_SANDBOX_TOKEN", raising=False)
    return tmp_path / "state"


@pytest.fixture
def token() -> str:
    return TOKEN


@pytest.fixture
def bwrap() -> BwrapBackend:
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("bubblewrap is not installed")
    return BwrapBackend()


@pytest.fixture
async def server(bwrap: BwrapBackend) -> AsyncIterator[SandboxServer]:
    """Serves bwrap's sandboxes; none may be left when it has ended."""
    async with SandboxServer(bwrap, tokens=[TOKEN]) as server:
        yield server
    assert server.sandboxes == 0


@pytest.fixture
def remote(server: SandboxServer) -> RemoteBackend:
    return RemoteBackend(server.url, token=TOKEN, connect_s=5.0)


class Proxy:
    """Passes bytes on between clients and a server, until told to break, stall or refuse."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.refuses = False
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.break_all()
        await self._server.wait_closed()

    def break_all(self) -> None:
        """Reset every connection, in the middle of whatever goes on."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self, *, stalls: bool) -> None:
        """Hold back everything without a word, or let it go on."""
        (self._flows.clear if stalls else self._flows.set)()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.refuses:
                return
            self.connections += 1
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(up_writer)
            try:
                jobs = [
                    asyncio.ensure_future(self._pass(reader, up_writer)),
                    asyncio.ensure_future(self._pass(up_reader, writer)),
                ]
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)
            finally:
                self._writers.discard(up_writer)
                up_writer.transport.abort()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(random.choice((100, 3000, 65536))):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def make_proxy() -> AsyncIterator[Callable[[str], Awaitable[Proxy]]]:
    """Makes a proxy in front of the server at a URL."""
    async with AsyncExitStack() as stack:

        async def make(url: str) -> Proxy:
            proxy = Proxy(int(url.rpartition(":")[2]))
            await proxy.start()
            stack.push_async_callback(proxy.stop)
            return proxy

        yield make


def _processes(pattern: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if pattern.encode() in command.replace(b"\0", b" "):
                found.append(int(entry))
    return found


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    """The pids whose command line contains a text."""
    return _processes
