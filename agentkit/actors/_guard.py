"""User code that can always be ended: the driver that runs it, and the detached task it runs in.

Level cancellation asks; code that catches everything, or hides behind a shield, can refuse. A `Driven` coroutine sits
between the event loop and such code and steps it by hand, so it is the driver that decides whether the code goes on:

    event loop ──send/throw──> Driven ──send/throw──> user's coroutine
                                  │ forced, or asked to end and MAX_REFUSALS cancellations swallowed at once
                                  └─ closes the coroutine (GeneratorExit at its await) and raises Abandoned

Cancellations are no refusals as such: `sleep` on trio, and every `move_on_after`, cancel code for reasons of its own.
Only code that a scope around it has asked to end can refuse, and only by swallowing one cancellation right after the
other, with no time passing; code that takes its time instead is ended by the supervisor, when its grace is over.

A driver is cheap enough for each call of a tool or model. A `Detached` runs one in a task of its own, which no cancel
of a caller reaches, so that a rollout can be sealed while the task is still stuck in, say, a thread on trio.
"""

import ctypes
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Generic, TypeVar

import anyio

from agentkit.actors._backend import Backend, TaskToken, current_backend

T = TypeVar("T")

MAX_REFUSALS = 25
"""Cancellations swallowed one right after the other, by code that was asked to end, before it is closed."""

_AT_ONCE_S = 0.001  # a cancelled await returns in far less; shielded clean-up that waits for something takes longer

_UNWINDS = 4  # code that swallows even that is closed all the same

_END_TURNS = 8


class Abandoned(Exception):
    """The driven code refused to end and was closed."""


class Unwind(BaseException):
    """Thrown into code that is being ended, to leave its task groups; it passes drivers that end something smaller."""


class UserFault(Exception):
    """User code raised what would end a task or the process; here it ends only that code."""


def as_fault(error: BaseException, name: str) -> Exception:
    """`error` where it is an exception like any other, else a `UserFault` that says what it was."""
    if isinstance(error, Exception):
        return error
    fault = UserFault(f"{name} raised {describe(error)}")
    fault.__cause__ = error
    return fault


def describe(error: BaseException) -> str:
    """Type and message of an exception, also of one that cannot print itself."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ fails
        return f"{type(error).__name__} (its message cannot be shown)"


class Driven(Generic[T]):
    """An awaitable that steps `coroutine` and can close it at its next wake-up. Await it once."""

    __slots__ = (
        "_cancelled_class",
        "_coroutine",
        "_depth",
        "_is_asked",
        "backend",
        "forced",
        "name",
        "refusals_allowed",
        "scope",
        "task",
    )

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        name: str,
        backend: Backend,
        cancelled_class: type[BaseException],
        is_asked: Callable[[], bool],
        refusals_allowed: int = MAX_REFUSALS,
        scope: anyio.CancelScope | None = None,
    ) -> None:
        self._coroutine = coroutine
        self._cancelled_class = cancelled_class
        self.name = name
        self.backend = backend
        self.forced = False
        self.task: TaskToken | None = None
        self.refusals_allowed = refusals_allowed
        self._is_asked = is_asked
        self.scope = scope
        self._depth: object = 0

    def force(self) -> None:
        """Close the code as soon as its task runs again, and make the task run again."""
        self.forced = True
        if self.task is not None:
            self.backend.interrupt(self.task)

    async def end(self) -> bool:
        """Close the code and the tasks it started, within a few turns of the loop. False: it has not ended."""
        for _ in range(_END_TURNS):
            if self.task is None:
                break
            self.backend.interrupt_within(self.task, self.scope, self._depth)
            self.force()
            await anyio.lowlevel.checkpoint()
        return self.task is None

    def __await__(self) -> Generator[Any, Any, T]:
        send, throw = self._coroutine.send, self._coroutine.throw
        refusals, unwound, last = 0, 0, 0.0
        value: Any = None
        error: BaseException | None = None
        self.task = self.backend.current()
        depth = self._depth = self.backend.depth(self.task)
        try:
            while True:
                try:
                    trap = send(value) if error is None else throw(error)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                except (GeneratorExit, self._cancelled_class):
                    raise
                except BaseException as fault:
                    if self.forced:  # it fell apart as the tasks it started were ended
                        raise Abandoned(self.name) from fault
                    raise
                try:
                    value, error = (yield trap), None
                    # asyncio throws; trio sends an outcome that the trap unwraps
                    delivered = None if value is None else getattr(value, "error", None)
                except GeneratorExit:
                    self._close()
                    raise
                except BaseException as thrown:
                    delivered = error = thrown
                if delivered is not None and isinstance(delivered, self._cancelled_class):
                    now = self.backend.clock()()
                    refusals = refusals + 1 if now - last < _AT_ONCE_S and self._is_asked() else 0
                    last = now
                    if refusals > self.refusals_allowed:
                        self.forced = True
                if self.forced:
                    if error is not None:
                        self.backend.absorb()
                    is_open = self.backend.depth(self.task) != depth
                    if is_open and (unwound < _UNWINDS or not self.backend.may_end_open):
                        # Closing would skip what task groups do on their way out, and trio cannot let a task end with
                        # one open: unwind the code. But never out of a task group's own wait, which is the one
                        # wake-up that brings no error.
                        if delivered is not None:
                            value, error = None, Unwind(self.name)
                            unwound += 1
                        continue
                    self._close()
                    raise Abandoned(self.name)
        finally:
            self.task = None

    def _close(self) -> None:
        frames = list(_frames(self._coroutine))
        try:
            self._coroutine.close()
        except RuntimeError:  # it awaited inside its GeneratorExit handler
            _bury(frames)
        except BaseException:  # what dying code raises is of no use to anyone
            return


def _bury(frames: list[object]) -> None:
    """Keep code that ignored its GeneratorExit for ever.

    It never runs again, but letting go of it, be it at the end of the process, would run its handlers once more, where
    no event loop is: a loop that catches everything would then spin, and the process would never exit.
    """
    for frame in frames:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))


def _frames(code: object) -> Iterator[object]:
    """A suspended coroutine, what it awaits, what that awaits, and so on."""
    while code is not None:
        yield code
        code = getattr(code, "cr_await", None) or getattr(code, "gi_yieldfrom", None) or getattr(code, "ag_await", None)


class Detached(Generic[T]):
    """`function()` driven in a task of its own. `done` is set when it has ended; then `result` or `error` says how."""

    def __init__(
        self, function: Callable[[], Coroutine[Any, Any, T]], *, name: str, on_done: Callable[[], None] | None = None
    ) -> None:
        self.name = name
        self.done = anyio.Event()
        self.result: T | None = None
        self.error: BaseException | None = None
        self._on_done = on_done
        backend = current_backend()
        self.scope = anyio.CancelScope()
        self.scopes = [self.scope]
        """Whichever of these is cancelled asks the code to end; the code may enter further ones for itself."""
        self._driven = Driven(
            self._scoped(function),
            name=name,
            backend=backend,
            cancelled_class=anyio.get_cancelled_exc_class(),
            is_asked=self.is_asked,
            refusals_allowed=4 * MAX_REFUSALS,  # the driver around a single call gives up first
        )
        self._task = backend.spawn(self._run, name)

    @property
    def fault(self) -> Exception | None:
        """What the code raised, as an exception that ends nothing but the code itself."""
        return None if self.error is None else as_fault(self.error, self.name)

    def left_behind(self) -> tuple[str, ...]:
        """The names of tasks that the code started and that still run after it has ended."""
        return self._driven.backend.left_behind(self._task)

    async def _scoped(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        with self.scope:
            self.result = await function()

    async def _run(self) -> None:
        try:
            await self._driven
        except BaseException as error:  # whoever waits for `done` decides what it means
            self.error = error
        finally:
            self.done.set()
            if self._on_done is not None:
                self._on_done()

    def is_asked(self) -> bool:
        """Whether it was asked to end."""
        return any(scope.cancel_called for scope in self.scopes)

    def cancel(self) -> None:
        """Ask it to end."""
        self.scope.cancel()

    def force(self) -> None:
        """Close it, whatever it does."""
        self._driven.force()

    async def settle(self, *, deadline: float, grace_s: float) -> bool:
        """Wait for the end until `deadline`, then cancel, wait `grace_s` more, then close. False: still not ended.

        Cancellation: the code is cancelled, given its grace under a shield, and closed, before the cancellation
        goes on.
        """
        try:
            with anyio.CancelScope(deadline=deadline):
                await self.done.wait()
        finally:
            if not self.done.is_set():
                await self.end(grace_s=grace_s)
        return self.done.is_set()

    async def end(self, *, grace_s: float) -> bool:
        """Cancel now, wait `grace_s`, then close. False: still not ended (a trio worker thread holds it)."""
        with anyio.CancelScope(shield=True):
            self.cancel()
            with anyio.move_on_after(grace_s):
                await self.done.wait()
            for _ in range(_END_TURNS):  # without any grace left, code that does as it is asked needs a few turns still
                if self.done.is_set():
                    break
                await anyio.lowlevel.checkpoint()
            if not self.done.is_set():
                for _ in range(_END_TURNS):  # ending by force takes a few turns of the loop, not time
                    self._driven.backend.interrupt_children(self._task)
                    self.force()
                    await anyio.lowlevel.checkpoint()
                    if self.done.is_set():
                        break
        return self.done.is_set()
