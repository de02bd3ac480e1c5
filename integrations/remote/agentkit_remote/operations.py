"""What clients may ask for, done on a sandbox of this machine.

Each operation is given the fields of its OPEN and the bytes that come and go; it returns the `ok` of its RESULT.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
from anyio import to_thread
from attrs import evolve, frozen

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols.sandbox import (
    ExecResult,
    Interactive,
    OutputCap,
    Sandbox,
    SandboxBackend,
    Snapshots,
    Terminal,
)
from agentkit.sandbox import archive
from agentkit.sandbox.leaks import PREFIX, owner, remove_tree
from agentkit_remote import trees
from agentkit_remote.frames import CHUNK_BYTES
from agentkit_remote.gate import Gate
from agentkit_remote.live import Live
from agentkit_remote.messages import Fields, cap_from_json, result_to_json, spec_from_json
from agentkit_remote.policy import ServerPolicy
from agentkit_remote.streams import Inflow, Outflow

T = TypeVar("T")
Ok = dict[str, Any]


class Holder(Protocol):
    """What the operations need of the session they belong to."""

    backend: SandboxBackend
    policy: ServerPolicy
    transfers: asyncio.Semaphore

    def held(self, number: int, kind: str) -> Any:
        """The `sandbox`, `snapshot` or `terminal` that request `number` made."""
        ...

    async def make(self, request: int, kind: str, making: Awaitable[T], *, lifetime_s: float | None = None) -> T:
        """What `making` gives, held from now on."""
        ...

    async def let_go(self, number: int) -> None:
        """Close what request `number` made, and what was made from it."""
        ...

    async def end(self) -> None:
        """Close everything."""
        ...

    def lifetime_of(self, number: int) -> float | None:
        """Seconds that are left to what request `number` made, or None."""
        ...


@frozen
class Asked:
    """One request."""

    number: int
    fields: Fields
    session: Holder
    inflow: Inflow
    outflow: Outflow
    finish: Callable[[], None]
    """Say that a part of the output has ended."""
    reserve: Callable[[int], None]
    """Count bytes that are held until the request ends; a `SandboxError` where the client has too many."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox it is about."""
        found: Sandbox = self.session.held(self.fields.whole("sandbox"), "sandbox")
        return found

    async def body(self) -> bytes:
        """All bytes that come with it.

        Raises:
            SandboxError: they are too many.
        """
        pieces = bytearray()
        while (piece := await self.inflow.take()) is not None:
            pieces += piece
            self.reserve(len(piece))
            if len(pieces) > self.session.policy.body_limit_bytes:
                raise SandboxError(f"more than the {self.session.policy.body_limit_bytes} bytes that this server takes")
        return bytes(pieces)

    def cap(self) -> OutputCap:
        """How much output to keep.

        Raises:
            SandboxError: more than the server keeps.
        """
        cap = cap_from_json(self.fields.object("cap"))
        if cap.head_bytes + cap.tail_bytes > self.session.policy.body_limit_bytes:
            raise SandboxError(
                f"cap {cap} is more than the {self.session.policy.body_limit_bytes} bytes that this server keeps"
            )
        self.reserve(cap.head_bytes + cap.tail_bytes)
        return cap


def flags(sandbox: Sandbox) -> Ok:
    """What a client is told of a new sandbox."""
    name = getattr(sandbox, "name", "")
    return {
        "name": name if isinstance(name, str) else "",
        "snapshots": isinstance(sandbox, Snapshots),
        "terminal": isinstance(sandbox, Interactive),
    }


async def _start(asked: Asked) -> Ok:
    spec = spec_from_json(asked.fields.object("spec"))
    asked.session.policy.check(spec, asked.session.backend)
    if asked.fields.raw("snapshot") is not None:
        spec = evolve(spec, snapshot=asked.session.held(asked.fields.whole("snapshot"), "snapshot"))
    making = asked.session.backend.start(spec)
    return flags(await asked.session.make(asked.number, "sandbox", making, lifetime_s=spec.lifetime_s))


async def _fork(asked: Asked) -> Ok:
    parent = asked.fields.whole("sandbox")
    sandbox = _keeping(asked)
    lifetime_s = asked.session.lifetime_of(parent)
    return flags(await asked.session.make(asked.number, "sandbox", sandbox.fork(), lifetime_s=lifetime_s))


async def _snapshot(asked: Asked) -> Ok:
    sandbox = _keeping(asked)
    return {"name": str((await asked.session.make(asked.number, "snapshot", sandbox.snapshot())).name)}


async def _terminal(asked: Asked) -> Ok:
    fields = asked.fields
    sandbox = asked.sandbox
    if not isinstance(sandbox, Interactive):
        raise SandboxError("the sandboxes of this server have no terminal")
    making = sandbox.terminal(
        fields.texts("argv"),
        cwd=fields.optional_text("cwd"),
        env=fields.table("env"),
        rows=fields.whole("rows"),
        columns=fields.whole("columns"),
    )
    await asked.session.make(asked.number, "terminal", making)
    return {}


async def _send(asked: Asked) -> Ok:
    terminal: Terminal = asked.session.held(asked.fields.whole("terminal"), "terminal")
    await terminal.send((await asked.body()).decode("utf-8", "replace"))
    return {}


async def _screen(asked: Asked) -> Ok:
    terminal: Terminal = asked.session.held(asked.fields.whole("terminal"), "terminal")
    settle_s, timeout_s = asked.fields.seconds("settle_s"), asked.fields.seconds("timeout_s")
    screen = await terminal.read(settle_s=settle_s or 0.0, timeout_s=timeout_s or 0.0)
    return {"lines": list(screen.lines), "cursor": list(screen.cursor), "exit_code": screen.exit_code}


def _keeping(asked: Asked) -> Snapshots:
    sandbox = asked.sandbox
    if not isinstance(sandbox, Snapshots):
        raise SandboxError("the sandboxes of this server keep no snapshots")
    return sandbox


async def _run(asked: Asked) -> Ok:
    command = (await asked.body()).decode("utf-8", "surrogateescape")
    result = await asked.sandbox.run(command, timeout_s=asked.fields.seconds("timeout_s"), cap=asked.cap())
    return await _ended(asked, result)


async def _exec(asked: Asked) -> Ok:
    fields = asked.fields
    stdin, timeout_s = await asked.body(), fields.seconds("timeout_s")
    gate = Gate()
    live = Live(gate) if fields.flag("live") else None
    began = time.monotonic()
    running = asked.sandbox.exec(
        fields.texts("argv"),
        cwd=fields.optional_text("cwd"),
        env=fields.table("env"),
        stdin=stdin,
        timeout_s=timeout_s,
        cap=asked.cap(),
        on_output=live.take if live else None,
    )
    if live is None:
        return await _ended(asked, await running)
    draining = asyncio.ensure_future(live.drain(asked.outflow))
    try:
        result = await gate.hold(running, is_over=lambda: not asked.outflow.is_open or _is_past(began, timeout_s))
        live.end()
        await draining
    finally:
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
    asked.finish()
    return await _ended(asked, result)


def _is_past(began: float, timeout_s: float | None) -> bool:
    return timeout_s is not None and time.monotonic() - began >= timeout_s - 0.01


async def _ended(asked: Asked, result: ExecResult) -> Ok:
    await asked.outflow.send(result.output)
    return result_to_json(result)


async def _read(asked: Asked) -> Ok:
    async with asked.session.transfers:
        await asked.outflow.send(await asked.sandbox.read(asked.fields.text("path")))
    return {}


async def _write(asked: Asked) -> Ok:
    async with asked.session.transfers:
        await asked.sandbox.write(asked.fields.text("path"), await asked.body())
    return {}


async def _upload(asked: Asked) -> Ok:
    sandbox, limit = asked.sandbox, asked.session.policy.tree_limit_bytes
    async with asked.session.transfers:
        with tempfile.TemporaryFile() as spool:
            size = 0
            while (piece := await asked.inflow.take()) is not None:
                size += len(piece)
                if size > limit:
                    raise SandboxError(f"tree of more than the {limit} bytes that this server takes")
                spool.write(piece)
            spool.seek(0)
            async with _scratch() as directory:
                links = asked.fields.pairs("links")
                tree = await to_thread.run_sync(lambda: trees.unpack(spool, links, directory, limit_bytes=limit))
                await sandbox.upload(tree, asked.fields.text("destination"))
    return {}


async def _download(asked: Asked) -> Ok:
    sandbox = asked.sandbox
    async with asked.session.transfers:
        with tempfile.TemporaryFile() as spool:
            async with _scratch() as directory:
                tree = directory / trees.TOP
                await sandbox.download(asked.fields.text("source"), tree)
                await to_thread.run_sync(archive.pack, tree, trees.TOP, spool)
            spool.seek(0)
            while piece := spool.read(CHUNK_BYTES):
                await asked.outflow.send(piece)
    return {}


@asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    """A directory that is gone afterwards; named so that the reaper knows it from the first moment."""
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{owner()}-tree-"))
    try:
        yield directory
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(remove_tree, directory)


async def _alive(asked: Asked) -> Ok:
    try:
        return {"alive": await asked.sandbox.alive()}
    except SandboxDead:
        return {"alive": False}


async def _close(asked: Asked) -> Ok:
    await asked.session.let_go(asked.fields.whole("of"))
    return {}


async def _bye(asked: Asked) -> Ok:
    await asked.session.end()
    return {}


OPERATIONS: Mapping[str, Callable[[Asked], Awaitable[Ok]]] = {
    "start": _start,
    "fork": _fork,
    "snapshot": _snapshot,
    "terminal": _terminal,
    "send": _send,
    "screen": _screen,
    "run": _run,
    "exec": _exec,
    "read": _read,
    "write": _write,
    "upload": _upload,
    "download": _download,
    "alive": _alive,
    "close": _close,
    "bye": _bye,
}
FINAL = frozenset({"close", "bye"})
"""What is carried through once it has begun."""
