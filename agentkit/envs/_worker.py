"""A thread of one env's own, for code that blocks.

All calls of an env come from the same thread, as windows, simulators and their like want it, in the order asked. It is
a daemon: code that never returns holds neither us nor the end of the process. Nobody can end such a call, so an env
whose call was cut short is lost: what became of it, nobody knows.
"""

import contextvars
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from agentkit.errors import SandboxDead

T = TypeVar("T")

_AT_WORK = "agentkit-tool:"  # the names by which `agentkit.tools.stuck_threads` finds who does not come back
_IDLE = "agentkit-env"


class Worker:
    """Runs what it is given, one call at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._under_way: str | None = None
        self._cut: str | None = None

    @property
    def started(self) -> bool:
        """Whether there is a thread to be ended."""
        return self._thread is not None

    async def call(self, function: Callable[[], T], *, what: str) -> T:
        """What `function` returns, or raises.

        Raises:
            SandboxDead: an earlier call was cut short.
        Cancellation: the wait ends at once; the call goes on, and there will be no other.
        """
        await checkpoint_if_cancelled()
        if self._cut is not None or self._under_way is not None:
            raise SandboxDead(
                f"{self._name}.{self._cut or self._under_way} was cut short: what became of it, nobody knows"
            )
        done = anyio.Event()
        outcome: list[T] = []
        failure: list[BaseException] = []
        soon = _soon(done.set)
        context = contextvars.copy_context()
        sniffio = sys.modules.get("sniffio")
        if sniffio is not None:  # the code may run an event loop of its own
            context.run(sniffio.current_async_library_cvar.set, None)

        def job() -> None:
            try:
                outcome.append(context.run(function))
            except BaseException as error:  # it belongs to who asked
                failure.append(error)
            threading.current_thread().name = _IDLE
            self._under_way = None
            soon()

        self._under_way = what
        self._start(what)
        self._jobs.put(job)
        try:
            await done.wait()
        except BaseException:
            self._cut = what
            raise
        if failure:
            raised = failure.pop()
            if isinstance(raised, Exception):
                raise raised
            raise SandboxDead(f"{self._name}.{what} raised {raised!r}") from raised
        return outcome.pop()

    def end(self, last: Callable[[], object] | None = None) -> None:
        """Let the thread end, after `last` where given: at once, or when the call under way returns. Nobody waits."""
        if self._thread is None:
            return

        def job() -> None:
            try:
                if last is not None:
                    last()
            except BaseException:  # whoever could hear of it has gone
                return

        self._jobs.put(job)
        self._jobs.put(None)
        self._thread = None

    def _start(self, what: str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._thread.name = f"{_AT_WORK}{self._name}.{what}"

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _soon(function: Callable[[], object]) -> Callable[[], None]:
    """Calls `function` in the loop that runs now, from any thread, without waiting for it."""
    native = current_token().native_token
    name = "call_soon_threadsafe" if hasattr(native, "call_soon_threadsafe") else "run_sync_soon"
    call: Callable[[Callable[[], object]], object] = getattr(native, name)

    def soon() -> None:
        try:
            call(function)
        except RuntimeError:  # the loop has ended, and with it who waited
            return

    return soon
