"""Work that is not left half done, whoever cancels the task that asked for it."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def complete(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` to its end. It must bound its own time.

    A shielded scope keeps off the cancellation of scopes around it, but not asyncio's own `task.cancel()`, which
    strikes the task: so the work is done in another one.

    Cancellation: raised once the work has ended.
    """
    errors: list[Exception] = []

    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await work()
            except Exception as error:
                errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(shielded)
    if errors:
        raise errors[0]


async def finish(work: Callable[[], Awaitable[T]], *, grace_s: float) -> T:
    """What `work` returns, where cutting it short would leave a mess.

    Cancellation: `work` gets `grace_s` seconds more, then it is cancelled; raised once it has ended.
    """
    results: list[T] = []
    errors: list[Exception] = []
    ended = anyio.Event()
    scope = anyio.CancelScope(shield=True)

    async def shielded() -> None:
        with scope:
            try:
                results.append(await work())
            except Exception as error:
                errors.append(error)
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(shielded)
        try:
            await ended.wait()
        except anyio.get_cancelled_exc_class():
            scope.deadline = anyio.current_time() + grace_s
            raise
    if errors:
        raise errors[0]
    return results[0]
