"""Programs in a Modal sandbox, as the one call that `agentkit.sandbox.over_exec` needs."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio
from attrs import frozen

from agentkit_modal.faults import modal_module, told

SEND_BYTES = 524_288
"""Input is gathered to this much before it is sent: most commands then cost one call for it."""


@frozen(eq=False)
class ModalChannel:
    """Runs programs in `sandbox`, a `modal.Sandbox`."""

    sandbox: Any

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
        failed: BaseException | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_feed, process.stdin, stdin)
            try:
                with told("read the output of a program in the sandbox", inside=True):
                    async for piece in process.stdout:
                        on_output(piece)
            except Exception as error:  # raised below, not in a group
                failed = error
            group.cancel_scope.cancel()
        if failed is not None:
            raise failed


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
