"""Blocking tools run in daemon threads of our own, one a call.

A loop library's worker threads are no place for code that may never return: an abandoned one keeps its limiter's
token on one loop and delays interpreter exit on the other. A daemon thread does neither, and its name says whose it is.
"""

import contextvars
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from agentkit.errors import ToolError

T = TypeVar("T")

_PREFIX = "agentkit-tool:"
_ENDED = "agentkit-ended-tool"


async def run_in_thread(function: Callable[[], T], *, name: str) -> T:
    """What `function` returns, called in a daemon thread named `agentkit-tool:<name>`, in a copy of this context.

    Raises:
        ToolError: no thread could be started, or `function` tried to end the thread or the process (`SystemExit`).
    Cancellation: the wait ends at once and the thread is abandoned; `stuck_threads` names it while it lives.
    """
    await checkpoint_if_cancelled()  # a call that is cancelled already must not start anything
    done = anyio.Event()
    outcome: list[T] = []
    failure: list[BaseException] = []
    wake = _waker(done)
    context = _context_outside_any_loop()

    def work() -> None:
        try:
            outcome.append(context.run(function))
        except BaseException as error:  # it belongs to the waiting task, not to the thread's excepthook
            failure.append(error)
        # The task may look for stuck threads as soon as it wakes, before this one is gone.
        threading.current_thread().name = _ENDED
        wake()

    try:
        threading.Thread(target=work, name=_PREFIX + name, daemon=True).start()
    except RuntimeError as error:
        raise ToolError(f"no thread could be started for {name!r}: {error}", retryable=True) from error
    await done.wait()
    if failure:
        raised = failure.pop()
        if not isinstance(raised, Exception):
            raise ToolError(f"tool raised {raised!r}") from raised
        raise raised
    return outcome.pop()


def stuck_threads() -> tuple[str, ...]:
    """The names of the tool threads that are alive: after a pool has exited, those that were abandoned."""
    return tuple(thread.name for thread in threading.enumerate() if thread.name.startswith(_PREFIX))


def _context_outside_any_loop() -> contextvars.Context:
    """A copy of this task's context in which sniffio sees no loop, so that a tool may run one of its own."""
    context = contextvars.copy_context()
    sniffio = sys.modules.get("sniffio")  # where nobody imported it, nobody asks it
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, None)
    return context


def _waker(done: anyio.Event) -> Callable[[], None]:
    """Sets `done` from another thread without waiting for the loop, which may be gone by then."""
    native = current_token().native_token
    # asyncio's loop and trio's token name the same thing differently
    name = "call_soon_threadsafe" if hasattr(native, "call_soon_threadsafe") else "run_sync_soon"
    soon: Callable[[Callable[[], None]], object] = getattr(native, name)

    def wake() -> None:
        try:
            soon(done.set)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            return

    return wake
