"""Do something at the k-th await of a whole program: the tool behind cancellation and fault sweeps.

Every time any task gives control back to the event loop counts as one step. Run a scenario once to count its steps,
then again for each k with an action at step k.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from agentkit.extras import require
from agentkit.testing.clocks import AutojumpLoop, BackendOptions


class Steps:
    """Counts steps, and calls `action` once, in the event loop, right after step number `at`."""

    def __init__(self, at: int | None = None, action: Callable[[], object] | None = None) -> None:
        self.count = 0
        self.fired = False
        self.at = at
        self.action = action
        self._soon: Callable[[Callable[[], object]], object] | None = None

    def step(self) -> None:
        """One task has given control back."""
        self.count += 1
        if self.count == self.at and self.action is not None and self._soon is not None:
            self.fired = True
            self._soon(self.action)

    def on_asyncio(self) -> BackendOptions:
        """Backend options for `anyio.run`: asyncio on virtual time, counted."""

        def make_loop() -> asyncio.AbstractEventLoop:
            loop = AutojumpLoop()
            loop.set_task_factory(self._make_task)  # type: ignore[arg-type]  # the stubs want a generic function
            self._soon = loop.call_soon
            return loop

        return "asyncio", {"loop_factory": make_loop}

    def on_trio(self) -> BackendOptions:
        """Backend options for `anyio.run`: trio on virtual time, counted."""
        trio_testing = require("trio.testing", extra="trio", purpose="virtual time on trio")
        lowlevel = require("trio.lowlevel", extra="trio", purpose="virtual time on trio")
        steps = self

        class Counter:
            def before_run(self) -> None:
                # Deferred: an instrument must not touch scopes itself.
                steps._soon = lowlevel.current_trio_token().run_sync_soon  # its own outer object

            def after_task_step(self, task: object) -> None:
                del task
                steps.step()

        return "trio", {"clock": trio_testing.MockClock(autojump_threshold=0), "instruments": [Counter()]}

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Task[Any]":
        return asyncio.Task(_counted(coroutine, self), loop=loop, **options)


class _Counted:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._coroutine = coroutine
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._coroutine.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                trap = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as stop:
                return stop.value
            self._steps.step()
            try:
                value, error = (yield trap), None
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as thrown:
                value, error = None, thrown


async def _counted(coroutine: Coroutine[Any, Any, Any], steps: Steps) -> Any:
    return await _Counted(coroutine, steps)
