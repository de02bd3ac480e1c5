"""Virtual clocks for both event loops: an hour of sleep costs a millisecond.

A task that waits for a thread, a process or a socket counts as idle, so virtual time jumps past it to the next deadline
at once: such tests need real time.
"""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeAlias

from agentkit.extras import require

BackendOptions: TypeAlias = "tuple[str, dict[str, Any]]"  # the shape anyio's pytest plugin takes


class _AutojumpSelector(selectors.BaseSelector):
    """Polls once, then adds the timeout to the virtual time instead of waiting for it."""

    def __init__(self) -> None:
        self._inner = selectors.DefaultSelector()
        self.now = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def get_map(self) -> Any:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # nothing is scheduled: only the outside world can wake the loop
            return self._inner.select(None)
        ready = self._inner.select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class AutojumpLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time: when every task is waiting, the clock jumps to the next deadline."""

    def __init__(self) -> None:
        self._virtual = _AutojumpSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now


def virtual_asyncio() -> BackendOptions:
    """Options for `anyio.run(..., backend=, backend_options=)`: asyncio on virtual time."""
    factory: Callable[[], asyncio.AbstractEventLoop] = AutojumpLoop
    return "asyncio", {"loop_factory": factory}


def virtual_trio() -> BackendOptions:
    """Options for `anyio.run(..., backend=, backend_options=)`: trio on virtual time, a fresh clock each.

    Raises:
        MissingExtraError: trio is not installed.
    """
    trio_testing = require("trio.testing", extra="trio", purpose="virtual time on trio")
    return "trio", {"clock": trio_testing.MockClock(autojump_threshold=0)}
