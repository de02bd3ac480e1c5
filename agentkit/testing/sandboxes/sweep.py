"""Cancel an operation at its n-th await, whatever it does there: the tool behind the sweeps of `LeakSuite`."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
from attrs import frozen

Operation = Callable[[], Awaitable[object]]


@frozen
class Cancelled:
    """How a cancelled operation went: how many awaits it came to, whether the cancel was sent, how late it ended."""

    awaits: int
    sent: bool
    late_s: float


def on_asyncio() -> bool:
    """Whether the running event loop is asyncio's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def awaits_of(operation: Operation) -> int:
    """How often `operation` gives control to the event loop, run to its end."""
    counted = _Counted(operation(), None, None)
    await counted
    return counted.count


async def cancel_at(operation: Operation, at: int, *, natively: bool = False) -> Cancelled:
    """Run `operation`, cancelled as its task gives control away for the `at`-th time.

    By a scope around it, or `natively` by `task.cancel()` of a task of its own, which only asyncio has.
    """
    if natively:
        return await _natively(operation, at)
    scope = anyio.CancelScope()
    counted = _Counted(operation(), at, scope.cancel)
    with scope:
        await counted
    return counted.told()


async def _natively(operation: Operation, at: int) -> Cancelled:
    loop = asyncio.get_running_loop()
    counted = _Counted(operation(), at, lambda: loop.call_soon(task.cancel))
    task = asyncio.ensure_future(_wait(counted))
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    return counted.told()


async def _wait(counted: "_Counted") -> object:
    return await counted


class _Counted:
    """Passes on what an awaitable does, and calls `action` before it gives control away for the `at`-th time."""

    def __init__(self, inner: Awaitable[object], at: int | None, action: Callable[[], object] | None) -> None:
        self.count = 0
        self._inner = inner
        self._at = at
        self._action = action
        self._sent: float | None = None
        self._ended = 0.0

    def told(self) -> Cancelled:
        return Cancelled(self.count, self._sent is not None, self._ended - (self._sent or self._ended))

    def __await__(self) -> Generator[Any, Any, object]:
        inner = self._inner.__await__()
        value: Any = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    trap = inner.send(value) if error is None else inner.throw(error)
                except StopIteration as stop:
                    return stop.value
                self.count += 1
                if self.count == self._at and self._action is not None:
                    self._sent = anyio.current_time()
                    self._action()
                value, error = None, None
                try:
                    value = yield trap
                except GeneratorExit:
                    inner.close()
                    raise
                except BaseException as thrown:
                    error = thrown
        finally:
            self._ended = anyio.current_time()
