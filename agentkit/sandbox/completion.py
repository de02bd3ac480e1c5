"""Work that is not left half done, whoever cancels the task that asked for it."""

from collections.abc import Awaitable, Callable

import anyio


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
