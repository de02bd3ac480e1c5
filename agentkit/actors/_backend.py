"""The three things anyio has no word for, on each event loop: a detached task, the running task, an interrupt.

A detached task belongs to no task group: no scope and no native cancel of a caller reaches it, and a pool that exits
does not wait for it. An interrupt makes a waiting task run again at once, whatever shields it waits behind.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeAlias, cast

import anyio
from anyio._backends._asyncio import _task_states  # anyio has no public way to ask where a task is

TaskToken: TypeAlias = object
"""A native task: `asyncio.Task` or `trio.lowlevel.Task`."""


class Interrupted(BaseException):
    """Raised in a child task of code that is being ended by force."""


class Backend(Protocol):
    """What the guard needs of an event loop."""

    may_end_open: bool
    """Whether a task may end with a task group open."""

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> TaskToken:
        """Start `function()` as a detached task; it must not raise."""
        ...

    def current(self) -> TaskToken:
        """The running task."""
        ...

    def clock(self) -> Callable[[], float]:
        """What `anyio.current_time` would call, without looking for the event loop each time."""
        ...

    def interrupt(self, task: TaskToken, /) -> None:
        """Make `task` run again soon, if anything can: one that waits for a trio worker thread cannot be woken."""
        ...

    def is_cancelling(self) -> bool:
        """Whether a cancellation of the running task is pending, so that one that arrives is no stray."""
        ...

    def absorb(self) -> None:
        """Called in a task that was interrupted, once it knows: the interrupt leaves no trace."""
        ...

    def depth(self, task: TaskToken, /) -> object:
        """Where `task` stands among its scopes and task groups: where it was, once it has exited what it entered."""
        ...

    def interrupt_children(self, task: TaskToken, /) -> None:
        """End the tasks that run in the task groups of `task`, and theirs, through every shield."""
        ...

    def left_behind(self, task: TaskToken, /) -> tuple[str, ...]:
        """The names of the tasks that `task` and its children started in task groups and that still run."""
        ...

    def interrupt_within(self, task: TaskToken, scope: anyio.CancelScope | None, depth: object, /) -> None:
        """The same for the tasks started within `scope`, by code that began where `task` stood at `depth`."""
        ...


class _Asyncio:
    may_end_open = True

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> TaskToken:
        return asyncio.create_task(function(), name=name)

    def current(self) -> TaskToken:
        return asyncio.current_task()

    def clock(self) -> Callable[[], float]:
        return asyncio.get_running_loop().time

    def interrupt(self, task: TaskToken, /) -> None:
        if isinstance(task, asyncio.Task):
            task.cancel("interrupted by agentkit")  # a native cancel goes through every anyio shield

    def is_cancelling(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def absorb(self) -> None:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            task.uncancel()

    def depth(self, task: TaskToken, /) -> object:
        state = _task_states.get(task)  # type: ignore[call-overload]  # asyncio.Task
        return None if state is None else state.cancel_scope

    def interrupt_children(self, task: TaskToken, /) -> None:
        family = self._family(task)
        for child in asyncio.all_tasks():
            if id(child) in family:
                child.cancel("interrupted by agentkit")

    def left_behind(self, task: TaskToken, /) -> tuple[str, ...]:
        return tuple(str(name) for name in self._family(task).values())

    def _family(self, task: TaskToken) -> dict[int, str | None]:
        """The tasks that descend from `task`, by id, with their names."""
        found: dict[int, str | None] = {}
        running = list(anyio.get_running_tasks())
        while new := {
            info.id: info.name
            for info in running
            if (info.parent_id == id(task) or info.parent_id in found) and info.id not in found
        }:
            found |= new
        return found

    def interrupt_within(self, task: TaskToken, scope: anyio.CancelScope | None, depth: object, /) -> None:
        scopes: list[object] = [] if scope is None else [scope]
        while scopes:
            each = scopes.pop()
            scopes.extend(getattr(each, "_child_scopes", ()))
            for child in list(getattr(each, "_tasks", ())):
                if child is not task:
                    child.cancel("interrupted by agentkit")


class _Trio:
    may_end_open = False

    def __init__(self, trio: ModuleType) -> None:
        self._trio = trio
        self._lowlevel = trio.lowlevel

    def clock(self) -> Callable[[], float]:
        clock: Callable[[], float] = self._trio.current_time
        return clock

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]], name: str) -> TaskToken:
        token: TaskToken = self._lowlevel.spawn_system_task(function, name=name, context=copy_context())
        return token

    def current(self) -> TaskToken:
        token: TaskToken = self._lowlevel.current_task()
        return token

    def interrupt(self, task: TaskToken, /) -> None:
        # trio has no public way through a shield. The abort function of a blocked task is what its own cancellation
        # would call; it is None while the task is scheduled to run, or when it waits for something that cannot be
        # aborted (a worker thread), and then there is nothing to do.
        abort = getattr(task, "_abort_func", None)
        if abort is None:
            return
        if abort(_raise_interrupted) is self._lowlevel.Abort.SUCCEEDED:
            outcome = import_module("outcome")  # trio's own dependency
            self._lowlevel.reschedule(task, outcome.Error(Interrupted()))
        else:
            task._abort_func = None  # type: ignore[attr-defined]  # as trio does: one attempt per blocking call

    def is_cancelling(self) -> bool:
        return True  # user code cannot make trio's exception itself

    def absorb(self) -> None:
        pass

    def depth(self, task: TaskToken, /) -> object:
        return len(task.child_nurseries)  # type: ignore[attr-defined]  # trio.lowlevel.Task

    def interrupt_children(self, task: TaskToken, /) -> None:
        for nursery in list(task.child_nurseries):  # type: ignore[attr-defined]  # trio.lowlevel.Task
            for child in list(nursery.child_tasks):
                self.interrupt_children(child)
                self.interrupt(child)

    def left_behind(self, task: TaskToken, /) -> tuple[str, ...]:
        return ()  # a task outlives its nurseries, so whoever waits for it knows already

    def interrupt_within(self, task: TaskToken, scope: anyio.CancelScope | None, depth: object, /) -> None:
        for nursery in list(task.child_nurseries)[cast("int", depth) :]:  # type: ignore[attr-defined]  # as above
            for child in list(nursery.child_tasks):
                self.interrupt_children(child)
                self.interrupt(child)


def _raise_interrupted() -> None:  # what an abort function may call to learn why
    raise Interrupted


def current_backend() -> Backend:
    """The backend of the running event loop."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return _Trio(trio)
    return _Asyncio()
