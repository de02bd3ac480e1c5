"""Work that no cancellation cuts short."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def through(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, done to its end in a task of its own; it must bound itself.

    A shielded scope alone gives way to `task.cancel()`, which may come more than once.

    Cancellation: raised once the work is done.
    """
    task = asyncio.get_running_loop().create_task(work)
    interrupted: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                interrupted = error
    if interrupted is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what is told
        raise interrupted
    return task.result()
