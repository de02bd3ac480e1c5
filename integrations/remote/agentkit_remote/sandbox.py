"""A sandbox of another machine, as one of this."""

import logging
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import anyio
from anyio import to_thread

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap, Screen
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox import archive
from agentkit_remote import trees
from agentkit_remote.frames import CHUNK_BYTES
from agentkit_remote.link import Link
from agentkit_remote.messages import Fields, argv_to_json, result_from_json

LOG = logging.getLogger("agentkit.sandbox.remote")
CLOSE_S = 10.0
_NOTE_BYTES = 200  # that output was left out
_ENDLESS = 1 << 62


class RemoteSandbox:
    """A started sandbox. While the connection is broken its methods wait; once it is lost they raise `SandboxDead`."""

    def __init__(
        self, link: Link, number: int, about: Fields, spec: SandboxSpec, release: Callable[[], Awaitable[None]]
    ) -> None:
        self.name = f"{link.session[:8]}-{number}"
        self.spec = spec
        self.remote_name = about.text("name", "")[:200]
        """What the server's back end calls it."""
        self._link = link
        self._number = number
        self._closing = _Closing(release)
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _check(self) -> None:
        if self._closed:
            raise SandboxDead(f"sandbox {self.name} is closed")

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run`."""
        self._check()
        body = command.encode("utf-8", "surrogateescape")
        return await self._command("run", body, cap, None, timeout_s=timeout_s)

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cap: OutputCap = OutputCap(),  # noqa: B008  # frozen
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """As `Shell.exec`. A program whose output `on_output` does not take fast enough waits for it."""
        self._check()
        arguments = {"argv": argv_to_json(argv), "cwd": cwd, "env": dict(env or {}), "timeout_s": timeout_s}
        return await self._command("exec", stdin, cap, on_output, **arguments)

    async def _command(
        self, operation: str, body: bytes, cap: OutputCap, on_output: Callable[[bytes], None] | None, **arguments: Any
    ) -> ExecResult:
        arguments["cap"] = {"head_bytes": cap.head_bytes, "tail_bytes": cap.tail_bytes}
        output = bytearray()
        async with self._link.call(operation, sandbox=self._number, live=on_output is not None, **arguments) as call:
            await self._link.give(call, body)
            if on_output is not None:
                await call.part(_ENDLESS, on_output)
            await call.part(cap.head_bytes + cap.tail_bytes + _NOTE_BYTES, output.extend)
            return result_from_json(await self._link.result(call), bytes(output))

    async def read(self, path: str, /) -> bytes:
        """As `Files.read`."""
        self._check()
        content = bytearray()
        async with self._link.call("read", sandbox=self._number, path=path) as call:
            await call.part(self.spec.read_limit_bytes, content.extend)
            await self._link.result(call)
        return bytes(content)

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write`."""
        self._check()
        await self._link.ask("write", data, sandbox=self._number, path=path)

    async def upload(self, source: Path, destination: str, /) -> None:
        """As `Transfer.upload`."""
        self._check()
        with tempfile.TemporaryFile() as spool:
            links = await to_thread.run_sync(trees.pack, source, spool)
            spool.seek(0)
            async with self._link.call("upload", sandbox=self._number, destination=destination, links=links) as call:
                while call.outflow.is_open and (piece := spool.read(CHUNK_BYTES)):
                    await call.outflow.send(piece)
                self._link.finish(call)
                await self._link.result(call)

    async def download(self, source: str, destination: Path, /) -> None:
        """As `Transfer.download`; `destination` must not exist, or be an empty directory or a file to replace."""
        self._check()
        limit = self.spec.read_limit_bytes
        with tempfile.TemporaryFile() as spool:
            async with self._link.call("download", sandbox=self._number, source=source) as call:
                await call.part(2 * limit + 1_048_576, spool.write)  # headers and padding; the content is judged below
                await self._link.result(call)
            spool.seek(0)
            await to_thread.run_sync(lambda: archive.unpack(spool, destination, limit_bytes=limit))

    async def alive(self) -> bool:
        """As `Lifecycle.alive`. While the connection is broken, it waits until that is mended or lost.

        Cancellation: nothing happened.
        """
        if self._closed:
            return False
        try:
            return (await self._link.ask("alive", sandbox=self._number)).flag("alive")
        except SandboxDead:
            return False

    async def close(self) -> None:
        """As `Lifecycle.close`.

        Cancellation: shielded; at most about 10 s. Where the server cannot be reached it hears of it later, or closes
        the sandbox by itself.
        """
        self._closed = True
        await self._link.surely(self._closing.close(self._link, self._number, self.name))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


class RemoteTerminal:
    """A terminal of a sandbox of another machine."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self._closing = _Closing(None)

    async def send(self, keys: str, /) -> None:
        """As `Terminal.send`."""
        await self._link.ask("send", keys.encode("utf-8", "replace"), terminal=self._number)

    async def read(self, *, settle_s: float = 0.2, timeout_s: float = 5.0) -> Screen:
        """As `Terminal.read`."""
        screen = await self._link.ask("screen", terminal=self._number, settle_s=settle_s, timeout_s=timeout_s)
        cursor, code = screen.raw("cursor"), screen.raw("exit_code")
        if not (isinstance(cursor, list) and len(cursor) == 2 and all(isinstance(one, int) for one in cursor)):
            raise SandboxError(f"the server sent a cursor that is none: {cursor!r:.80}")
        return Screen(
            screen.texts("lines"), (cursor[0], cursor[1]), None if code is None else screen.whole("exit_code")
        )

    async def close(self) -> None:
        """As `Terminal.close`. Cancellation: shielded; at most about 10 s."""
        await self._link.surely(self._closing.close(self._link, self._number, "a terminal"))


class RemoteSnapshot:
    """The files of a sandbox, kept on the server until closed, or until our session with it ends."""

    def __init__(self, link: Link, number: int, about: Fields, release: Callable[[], Awaitable[None]]) -> None:
        self.link = link
        self.number = number
        self._name = about.text("name", "")[:200]
        self._closing = _Closing(release)

    @property
    def name(self) -> str:
        """As `Snapshot.name`."""
        return self._name or f"{self.link.session[:8]}-{self.number}"

    async def close(self) -> None:
        """As `Snapshot.close`. Cancellation: shielded; at most about 10 s."""
        await self.link.surely(self._closing.close(self.link, self.number, self.name))


class _Closing:
    """The end of something on the server, done once, however often it is asked for."""

    def __init__(self, release: Callable[[], Awaitable[None]] | None) -> None:
        self._release = release
        self._lock = anyio.Lock()
        self._is_done = False

    async def close(self, link: Link, number: int, name: str) -> None:
        """Have the server close what request `number` made, then release our hold on the connection."""
        async with self._lock:
            if not self._is_done:
                await _let_go(link, number, name)
                self._is_done = True
                if self._release is not None:
                    await self._release()


async def _let_go(link: Link, number: int, name: str) -> None:
    """Have the server close what request `number` made. Shielded, and not for longer than `CLOSE_S`."""
    if link.fault is not None:
        return  # so is it
    with anyio.move_on_after(CLOSE_S, shield=True) as scope:
        try:
            await link.ask("close", of=number)
        except SandboxDead:
            pass
        except SandboxError as error:
            LOG.error("%s could not be closed: %s", name, error)
    if scope.cancelled_caught:
        LOG.error("%s: the server did not confirm within %s s that it is closed", name, CLOSE_S)
