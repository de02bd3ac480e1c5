"""Runs the user code of a loop under limits, one call after another or side by side."""

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from agentkit.actors._backend import current_backend
from agentkit.actors._guard import Abandoned, Driven, Unwind, as_fault
from agentkit.actors._record import Record

T = TypeVar("T")


class Bounds:
    """The calls of one rollout that are under way: each in a scope with a deadline, each driven, all interruptible."""

    def __init__(self, record: Record, *, wake: Callable[[], None], is_asked: Callable[[], bool]) -> None:
        self._record = record
        self._wake = wake
        self._is_asked = is_asked
        self._backend = current_backend()
        self._cancelled_class = anyio.get_cancelled_exc_class()
        self.scopes: set[anyio.CancelScope] = set()
        """What `interrupt` cuts short; whoever opens such a scope adds it, and takes it out again."""
        self.now = self._backend.clock()
        self.interrupted = False
        """Whether what was under way in this turn was cut short by `interrupt`."""

    def interrupt(self) -> None:
        """Cut short what is under way."""
        for scope in self.scopes:
            self.interrupted = True
            scope.cancel()

    def cut(self) -> None:
        """End the calls that are under way: their world is gone.

        Their own scopes are cancelled, not one around them: code that refuses to end is watched for by these.
        """
        for scope in self.scopes:
            scope.cancel()

    def move_deadline(self, scope: anyio.CancelScope, deadline: float) -> None:
        """The code that runs in `scope` has until `deadline` now; its supervisor looks again."""
        calls = self._record.calls
        for driven in calls:
            if driven.scope is scope:
                calls[driven] = deadline
        self._wake()

    async def run(self, start: Callable[[], Awaitable[T]], *, name: str, limit_s: float) -> tuple[T | None, bool]:
        """Run user code for at most `limit_s`: (its result, False), or (None, True) where it was cut short.

        Code that refuses to end is closed and named in the trajectory's `stuck`.
        """
        is_abandoned = False
        try:
            with anyio.CancelScope(deadline=self.now() + limit_s) as scope:
                self.scopes.add(scope)
                try:
                    return await self.drive(start, name=name, scope=scope), False
                except Abandoned:
                    is_abandoned = True
                    self._record.stuck.append(name)
                finally:
                    self.scopes.discard(scope)
        except RuntimeError:
            if not is_abandoned:  # trio's word for scopes that abandoned code left open within this one
                raise
        return None, True

    async def drive(self, start: Callable[[], Awaitable[T]], *, name: str, scope: anyio.CancelScope) -> T:
        """Run user code in `scope`, which the supervisor sees to.

        Raises:
            Abandoned: it refused to end.
        """
        record, awaitable = self._record, start()
        coroutine = awaitable if inspect.iscoroutine(awaitable) else _await(awaitable)
        driven: Driven[T] = Driven(
            coroutine,
            name=name,
            backend=self._backend,
            cancelled_class=self._cancelled_class,
            is_asked=lambda: scope.cancel_called or self._is_asked(),
            scope=scope,
        )
        deadline = scope.deadline
        record.calls[driven] = deadline  # type: ignore[index]  # Driven[T] is a Driven[object] to its supervisor
        if deadline + record.budget.grace_s < record.next_look:
            self._wake()
        try:
            return await driven
        except (Exception, GeneratorExit, Unwind):
            raise
        except BaseException as error:
            asked = scope.cancel_called or self._is_asked() or self._backend.is_cancelling()
            if isinstance(error, self._cancelled_class) and asked:
                raise
            raise as_fault(error, name) from error  # a SystemExit, say, or the cancellation of something else
        finally:
            del record.calls[driven]  # type: ignore[arg-type]  # as above


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
