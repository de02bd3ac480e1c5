"""Asking a run to end: soon, at once, or, where nothing else helps, by killing the process.

The signal handler is Python's own, not one of the event loop's: it runs between two bytecodes of the main thread, so
the third signal works also where user code holds the loop and never lets it run again.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

from anyio.lowlevel import current_token

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_ONCE_S = 0.1
"""Signals closer to one another than this are one: what starts programs often passes on a Ctrl-C they got already."""


class StopLevel(IntEnum):
    """How much a run was asked to end."""

    GO_ON = 0
    DRAIN = 1
    """Begin no more rollouts; those that have begun go on to their end."""
    CANCEL = 2
    """Seal what there is as `cancelled`, close the envs, and leave."""


class Stop:
    """A handle to end a run early: `execute(..., stop=stop)`, then `stop.drain()` or `stop.cancel()` from a task."""

    def __init__(self) -> None:
        self._level = StopLevel.GO_ON
        self._listeners: list[Callable[[StopLevel], None]] = []

    @property
    def level(self) -> StopLevel:
        """What was asked for so far."""
        return self._level

    def drain(self) -> None:
        """Begin no more rollouts; the run ends with those that have begun, and can be resumed."""
        self._raise_to(StopLevel.DRAIN)

    def cancel(self) -> None:
        """End all rollouts as `cancelled`, at once; the run can be resumed, which makes them again."""
        self._raise_to(StopLevel.CANCEL)

    def _raise_to(self, level: StopLevel) -> None:
        if level > self._level:
            self._level = level
            for listener in list(self._listeners):
                listener(level)

    @contextmanager
    def heard_by(self, listener: Callable[[StopLevel], None]) -> Iterator[None]:
        """`listener(level)` is called, in the event loop, when more is asked; at once where something was before."""
        self._listeners.append(listener)
        try:
            if self._level:
                listener(self._level)
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within, the first SIGINT or SIGTERM drains, the second cancels, the third kills the process.

        Outside the main thread, where Python hands no signals out, nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        call_soon = _from_signal_handler()
        heard, last = 0, 0.0

        def hear(number: int, _frame: FrameType | None) -> None:
            nonlocal heard, last
            now = time.monotonic()
            if heard and now - last < _ONCE_S:
                return
            heard, last = heard + 1, now
            if heard > StopLevel.CANCEL:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            call_soon(self._raise_to, StopLevel(heard))

        before = {number: signal.signal(number, hear) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _from_signal_handler() -> Callable[..., object]:
    """What may be called in a signal handler to have a function run in the event loop; both wake the loop up."""
    native = current_token().native_token
    for name in ("call_soon_threadsafe", "run_sync_soon"):  # asyncio's loop, trio's token
        call: Callable[..., object] | None = getattr(native, name, None)
        if call is not None:
            return call
    raise RuntimeError(f"signals cannot be passed on to an event loop of type {type(native).__name__}")
