"""Back-pressure for a coroutine that hands out bytes by calling a function.

A program's output reaches us through `on_output`, which cannot wait. So what is held back is the coroutine that calls
it: between two of its steps, as long as the gate is shut. It then reads no more, the program's pipe fills up, and the
program waits, as it would for a slow reader on this machine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Gate:
    """Open at first. Errors, cancellation among them, pass a shut gate."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._opened.set()

    def shut(self) -> None:
        """Hold the coroutine before its next step."""
        self._opened.clear()

    def open(self) -> None:
        """Let it go on."""
        self._opened.set()

    def hold(self, coroutine: Coroutine[Any, Any, T], *, is_over: Callable[[], bool]) -> Awaitable[T]:
        """The result of `coroutine`, held back at this gate until `is_over` after an error was thrown into it.

        Cancellation: passed on to the coroutine, at once.
        """
        return _Held(self, coroutine, is_over)

    async def wait(self) -> None:
        """Until it is open.

        Cancellation: nothing happened.
        """
        await self._opened.wait()

    @property
    def is_shut(self) -> bool:
        """Whether a step would be held back."""
        return not self._opened.is_set()


class _Held(Awaitable[T]):
    def __init__(self, gate: Gate, coroutine: Coroutine[Any, Any, T], is_over: Callable[[], bool]) -> None:
        self._gate = gate
        self._coroutine = coroutine
        self._is_over = is_over

    def __await__(self) -> Generator[Any, Any, T]:
        value: Any = None
        error: BaseException | None = None
        free = False
        while True:
            try:
                waits_for = self._coroutine.send(value) if error is None else self._coroutine.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            value = error = None
            try:
                value = yield waits_for
                while self._gate.is_shut and not free:
                    yield from self._gate.wait().__await__()
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as thrown:  # the coroutine's to deal with
                error = thrown
                free = free or self._is_over()
