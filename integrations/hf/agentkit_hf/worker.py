"""One daemon thread that does what would block the loop, a step of each job in turn.

    task of a loop ──start──> [queue] ──> jobs in turn, a step each ──push──> Stream ──take──> the same task

A job is a generator that pushes results and yields where others may go on: so a long job holds up another by a step at
a time, and a job that is cancelled ends after the step it is in. `width` jobs are in turn at once, further ones wait in
the order they came; urgent ones wait only for the step under way.

A loop library's own worker threads would not do: an abandoned one delays interpreter exit (asyncio) or keeps a permit
that siblings need (trio), and handing results over through them makes the thread wait for a loop that may be gone.
"""

import atexit
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import current_token

from agentkit.errors import AgentkitError, ModelError

T = TypeVar("T")
R = TypeVar("R")

Steps: TypeAlias = "Callable[[Callable[[T], None]], Generator[None, None, R]]"
"""Makes a job, given where it pushes what it has."""

_EXIT_S = 1.0  # what interpreter exit waits for a step under way: a thread inside native code must not see it


class Stream(Generic[T, R]):
    """What one job pushes, for one task of the loop that it is made in."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._items: deque[T] = deque()
        self._event = anyio.Event()
        self._is_woken = False
        self._soon = _scheduler()
        self._end: Callable[[], R] | None = None

    # by the thread

    def push(self, item: T) -> None:
        """Hand `item` over. Never waits; where the loop is gone, the job is as good as cancelled."""
        self._items.append(item)
        self._wake()

    def finish(self, result: R) -> None:
        """Nothing more comes."""
        self._end = lambda: result
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Nothing more comes, because of `error`."""

        def reraise() -> R:
            raise error

        self._end = reraise
        self._wake()

    # by the task

    def cancel(self) -> None:
        """Ask the job to end after the step it is in; what it pushed until then can still be taken."""
        self.is_cancelled = True

    async def take(self) -> list[T]:
        """What was pushed since the last time, waiting for some; empty once the job has ended.

        Cancellation: nothing is lost, `rest` has it.
        """
        while not self._items and self._end is None:
            await self._event.wait()
            self._event = anyio.Event()
        return self.rest()

    def rest(self) -> list[T]:
        """What was pushed and not taken yet."""
        items: list[T] = []
        with contextlib.suppress(IndexError):
            while True:  # the thread may push meanwhile
                items.append(self._items.popleft())
        return items

    @property
    def is_over(self) -> bool:
        """Whether the job has ended; `rest` may still have something."""
        return self._end is not None

    def result(self) -> R:
        """What the job returned; raises what it raised."""
        if self._end is None:
            raise ModelError("the result of a job was asked for before its end")
        return self._end()

    def _wake(self) -> None:
        # One wake-up is enough for all that is pushed before the loop gets to it. The flag is lowered before the task
        # looks, and raised after the push, so no push is left lying.
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self._soon(self._ring)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            self.is_cancelled = True

    def _ring(self) -> None:
        self._is_woken = False
        self._event.set()


class Worker:
    """A daemon thread that runs jobs until it is stopped."""

    def __init__(self, name: str, *, width: int) -> None:
        self._width = width
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._urgent: deque[_Job] = deque()
        self._is_stopping = False
        self._ended: list[Stream[None, None]] = []
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._thread.name

    def open(self) -> None:
        """Start the thread.

        Raises:
            ModelError: no thread could be started.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ModelError(f"no thread could be started for {self.name!r}: {error}", retryable=True) from error
        atexit.register(self._at_exit)

    def start(self, steps: "Steps[T, R]", *, urgent: bool = False) -> "Stream[T, R]":
        """A new job's stream; the job begins when its turn comes.

        Raises:
            ModelError: the worker is closed.
        """
        stream: Stream[T, R] = Stream()
        with self._changed:
            if self._is_stopping:
                raise ModelError(f"{self.name} is closed")
            (self._urgent if urgent else self._queue).append(_Job(steps, stream))
            self._changed.notify()
        return stream

    async def close(self, *, wait_s: float) -> bool:
        """End all jobs after the step under way, and the thread; False if it has not ended within `wait_s`.

        Cancellation: the thread ends all the same, on its own.
        """
        ended: Stream[None, None] = Stream()
        with self._changed:
            self._is_stopping = True
            self._ended.append(ended)
            self._changed.notify()
        with anyio.move_on_after(wait_s):
            while self._thread.is_alive() and not ended.is_over:
                await ended.take()
        if ended.is_over:
            self._thread.join(_EXIT_S)  # saying so was its last act
        if self._thread.is_alive():
            return False
        atexit.unregister(self._at_exit)
        return True

    def _at_exit(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(_EXIT_S)

    def _main(self) -> None:
        turn: deque[_Job] = deque()
        while self._admit(turn):
            # Those that came first are stepped first: a job that was cancelled has ended before one that was started
            # after its cancellation begins.
            for _ in range(len(turn)):
                self._run_urgent()
                job = turn.popleft()
                if job.step():
                    turn.append(job)
            self._run_urgent()
        with self._changed:
            left = [*turn, *self._urgent, *self._queue]
        for job in left:
            job.end(ModelError(f"{self.name} was closed"))
        for ended in self._ended:
            ended.finish(None)

    def _admit(self, turn: "deque[_Job]") -> bool:
        """Fill `turn`, waiting while there is nothing to do; False once the worker is to stop."""
        with self._changed:
            while not (self._is_stopping or turn or self._queue or self._urgent):
                self._changed.wait()
            while self._queue and len(turn) < self._width:
                turn.append(self._queue.popleft())
            return not self._is_stopping

    def _run_urgent(self) -> None:
        while self._urgent and not self._is_stopping:
            job = self._urgent.popleft()
            while job.step():
                pass


class _Job:
    """A generator under way, and where its results go. Only the thread touches it."""

    def __init__(self, steps: "Steps[Any, Any]", stream: "Stream[Any, Any]") -> None:
        self._steps = steps
        self._stream = stream
        self._generator: Generator[None, None, Any] | None = None

    def step(self) -> bool:
        """Do one step; False once the job has ended."""
        if self._stream.is_cancelled:
            self.end(ModelError("the job was cancelled"))
            return False
        try:
            if self._generator is None:
                self._generator = self._steps(self._stream.push)
            next(self._generator)
        except StopIteration as stop:
            self._stream.finish(stop.value)
            return False
        except BaseException as error:  # it belongs to the task that waits, not to this thread
            self._stream.fail(_as_fault(error))
            return False
        return True

    def end(self, error: AgentkitError) -> None:
        """Close the generator where it stands."""
        try:
            if self._generator is not None:
                self._generator.close()
        except BaseException as raised:  # what it raises on its way out must not end the thread
            error.__cause__ = raised
        self._stream.fail(error)


def _as_fault(error: BaseException) -> Exception:
    """`error`, or a `ModelError` about it where raising it would end the waiting task or the process."""
    if isinstance(error, Exception):
        return error
    fault = ModelError(f"the model raised {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def _scheduler() -> Callable[[Callable[[], None]], object]:
    """Runs a function soon in the loop that runs now, called from any thread, without waiting for it."""
    native = current_token().native_token
    # asyncio's loop and trio's token name the same thing differently
    name = "call_soon_threadsafe" if hasattr(native, "call_soon_threadsafe") else "run_sync_soon"
    soon: Callable[[Callable[[], None]], object] = getattr(native, name)
    return soon
