"""Programs in a Modal sandbox, as the one call that `agentkit.sandbox.over_exec` needs."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio
from attrs import field, frozen

from agentkit_modal.faults import modal_module, told

SETTLE_S = 5.0
SEND_BYTES = 524_288
"""Input is gathered to this much before it is sent: most commands then cost one call for it."""


@frozen(eq=False)
class ModalChannel:
    """Runs programs in `sandbox`, a `modal.Sandbox`."""

    sandbox: Any
    _left: "set[asyncio.Task[None]]" = field(factory=set, init=False)

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        stdin: Iterable[bytes],
        on_output: Callable[[bytes], None],
        timeout_s: float | None,
    ) -> None:
        """As `ExecChannel.exec`; the output comes as the program prints it."""
        streams = modal_module().stream_type.StreamType
        limit = None if timeout_s is None else math.ceil(timeout_s)
        with told("run a program in the sandbox", inside=True):
            process = await self.sandbox.exec.aio(
                *argv, stdout=streams.PIPE, stderr=streams.DEVNULL, timeout=limit, text=False
            )
        reader = asyncio.create_task(self._read(process.stdout, on_output))
        async with anyio.create_task_group() as group:
            group.start_soon(_feed, process.stdin, stdin)
            try:
                await asyncio.wait([reader])
            finally:
                self._leave(reader)
                group.cancel_scope.cancel()
        reader.result()

    async def settle(self) -> None:
        """Wait, at most `SETTLE_S` seconds, until nothing reads from the sandbox any more; for after its end."""
        if self._left:
            await asyncio.wait(self._left, timeout=SETTLE_S)

    async def _read(self, stream: Any, on_output: Callable[[bytes], None]) -> None:
        with told("read the output of a program in the sandbox", inside=True):
            async for piece in stream:
                if asyncio.current_task() not in self._left:
                    on_output(piece)

    def _leave(self, reader: "asyncio.Task[None]") -> None:
        """Let go of a reader, which ends as the program does; what it still reads goes nowhere.

        It is not cancelled, since the client's streams do not take that.
        """
        if not reader.done():
            self._left.add(reader)
            reader.add_done_callback(self._forget)

    def _forget(self, reader: "asyncio.Task[None]") -> None:
        self._left.discard(reader)
        if not reader.cancelled():
            reader.exception()  # nobody else asks: the program was given up


async def _feed(writer: Any, stdin: Iterable[bytes]) -> None:
    waiting = 0
    with contextlib.suppress(Exception):  # a program that has ended takes no input: what it printed tells
        for piece in stdin:
            writer.write(piece)
            waiting += len(piece)
            if waiting >= SEND_BYTES:
                await writer.drain.aio()
                waiting = 0
        writer.write_eof()
        await writer.drain.aio()
