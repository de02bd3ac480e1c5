"""The driver ends any user code, and nothing of it is left."""

import asyncio
import contextlib
import gc
import itertools
import types

import anyio
import pytest

from agentkit.actors._backend import current_backend
from agentkit.actors._guard import MAX_REFUSALS, Abandoned, Detached, Driven, Unwind
from agentkit.testing import hide_behind_a_shield, swallow_cancellation, virtual_asyncio

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # code that ignores its end


async def swallow_behind_shields() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await hide_behind_a_shield()


async def shielded_children() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(hide_behind_a_shield)
        await hide_behind_a_shield()


async def shielded_grandchildren() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(shielded_children)


async def await_in_cleanup() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        await hide_behind_a_shield()


STUBBORN = [
    swallow_cancellation,
    hide_behind_a_shield,
    swallow_behind_shields,
    shielded_children,
    shielded_grandchildren,
    await_in_cleanup,
]


@pytest.mark.parametrize("code", STUBBORN, ids=lambda code: code.__name__)
async def test_stubborn_code_is_ended_within_its_grace(code) -> None:
    started, tasks = anyio.current_time(), len(anyio.get_running_tasks())
    detached = Detached(code, name="stubborn")
    assert await detached.settle(deadline=started + 5, grace_s=2)
    assert anyio.current_time() - started <= 7
    assert detached.error is not None
    await anyio.sleep(1)
    assert len(anyio.get_running_tasks()) == tasks


async def fall_apart_when_closed() -> None:
    while True:
        try:
            await anyio.sleep_forever()
        except GeneratorExit:
            raise ValueError("closing") from None
        except BaseException:
            continue


async def test_what_dying_code_raises_is_not_heard() -> None:
    detached = Detached(fall_apart_when_closed, name="stubborn")
    assert await detached.end(grace_s=1)
    assert isinstance(detached.error, Abandoned)


async def test_code_that_ignores_its_end_never_runs_again() -> None:
    closed, is_wanted = [], [True]

    async def undead() -> None:
        while is_wanted:
            try:
                await anyio.sleep_forever()
            except GeneratorExit:
                closed.append("once")
            except BaseException:
                continue

    detached = Detached(undead, name="undead")
    assert await detached.end(grace_s=1)
    del detached
    gc.collect()
    assert closed == ["once"]
    is_wanted.clear()  # whatever lets go of it later finds it willing


async def test_code_that_swallows_the_end_of_its_own_scope_is_closed() -> None:
    async def swallow() -> None:
        with anyio.CancelScope(deadline=anyio.current_time() + 1) as scope:
            detached.scopes.append(scope)
            for _ in range(100 * MAX_REFUSALS):
                with contextlib.suppress(BaseException):
                    await anyio.sleep_forever()

    detached = Detached(swallow, name="stubborn")
    await detached.done.wait()
    assert isinstance(detached.error, Abandoned)


async def test_polite_code_returns_its_result() -> None:
    async def polite() -> int:
        await anyio.sleep(3)
        return 7

    detached = Detached(polite, name="polite")
    assert await detached.settle(deadline=anyio.current_time() + 5, grace_s=1)
    assert (detached.result, detached.error) == (7, None)


async def test_cleanup_of_cancelled_code_runs_to_its_end() -> None:
    log = []

    async def tidy() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            log.append("tidied")

    detached = Detached(tidy, name="tidy")
    await detached.settle(deadline=anyio.current_time() + 5, grace_s=2)
    assert log == ["tidied"]
    assert not isinstance(detached.error, Abandoned)


async def test_cancelled_waiter_ends_the_code_first() -> None:
    with anyio.move_on_after(1) as scope:
        detached = Detached(swallow_cancellation, name="stubborn")
        await detached.settle(deadline=anyio.current_time() + 50, grace_s=2)
    assert scope.cancelled_caught
    assert detached.done.is_set()


class Cancelled(BaseException):
    """What an event loop throws to cancel."""


class ByHand:
    """A backend for code that a test steps itself, without an event loop."""

    def spawn(self, function, name):
        raise AssertionError("nothing is spawned")

    def current(self):
        return self

    def clock(self):
        return self.now

    def interrupt(self, task, /) -> None: ...

    def absorb(self) -> None: ...

    may_end_open = True

    def depth(self, task, /) -> object:
        return None

    def interrupt_children(self, task, /) -> None: ...

    def left_behind(self, task, /) -> tuple[str, ...]:
        return ()

    def interrupt_within(self, task, scope, groups, /) -> None: ...


@types.coroutine
def wait():
    return (yield)


async def refuse() -> None:
    while True:
        with contextlib.suppress(Cancelled):
            await wait()


def driven_by_hand(is_asked=True, clock=lambda: 0.0):
    backend = ByHand()
    backend.now = clock
    driven = Driven(refuse(), name="refuse", backend=backend, cancelled_class=Cancelled, is_asked=lambda: is_asked)
    steps = driven.__await__()
    next(steps)
    return steps


def test_code_that_swallows_cancellation_after_cancellation_is_closed() -> None:
    steps = driven_by_hand()
    for _ in range(MAX_REFUSALS):
        steps.throw(Cancelled())
    with pytest.raises(Abandoned):
        steps.throw(Cancelled())


def test_code_that_takes_its_time_between_cancellations_is_not_closed() -> None:
    steps = driven_by_hand(clock=itertools.count(step=0.01).__next__)
    for _ in range(10 * MAX_REFUSALS):
        steps.throw(Cancelled())
    steps.close()


def test_code_that_nobody_asked_to_end_is_not_closed_for_its_own_cancellations() -> None:
    steps = driven_by_hand(is_asked=False)
    for _ in range(10 * MAX_REFUSALS):
        steps.throw(Cancelled())
    steps.close()


def test_code_that_swallows_its_unwinding_is_closed_where_a_task_may_end_with_a_group_open() -> None:
    class InAGroup(ByHand):
        def depth(self, task, /) -> object:
            return object()  # never where the code began

    async def swallow() -> None:
        with contextlib.suppress(GeneratorExit):
            while True:
                try:
                    await wait()
                except Exception:
                    swallowed.append("cancellation")
                except Unwind:
                    swallowed.append("unwinding")

    backend, swallowed = InAGroup(), []
    backend.now = lambda: 0.0
    driven = Driven(swallow(), name="swallow", backend=backend, cancelled_class=Cancelled, is_asked=lambda: True)
    steps = driven.__await__()
    next(steps)
    driven.force()

    def insist() -> None:
        for _ in range(20):
            steps.throw(Cancelled())

    with pytest.raises(Abandoned):
        insist()
    assert set(swallowed) == {"unwinding"}


async def test_an_interrupt_wakes_through_every_shield() -> None:
    backend, scope, log, tasks = current_backend(), anyio.CancelScope(shield=True), [], []

    async def hide() -> None:
        tasks.append(backend.current())
        with scope:
            try:
                await anyio.sleep_forever()
            except BaseException:
                log.append(scope.cancel_called)
        backend.absorb()

    async with anyio.create_task_group() as group:
        group.start_soon(hide)
        await anyio.sleep(1)
        backend.interrupt(tasks[0])
        await anyio.sleep(1)
        scope.cancel()  # lets the test end where the interrupt did nothing
    assert log == [False]


async def test_an_interrupt_of_children_reaches_theirs() -> None:
    backend, scopes, log, tasks = current_backend(), [], [], []

    async def hide(name: str) -> None:
        with anyio.CancelScope(shield=True) as scope:
            scopes.append(scope)
            try:
                await anyio.sleep_forever()
            except BaseException:
                log.append((name, scope.cancel_called))
        backend.absorb()

    async def family(depth: int) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(hide, f"child {depth}")
            if depth:
                group.start_soon(family, depth - 1)

    async def outer() -> None:
        tasks.append(backend.current())
        with anyio.CancelScope(shield=True) as scope:
            scopes.append(scope)
            with contextlib.suppress(BaseException):
                await family(2)
        backend.absorb()

    async with anyio.create_task_group() as group:
        group.start_soon(outer)
        await anyio.sleep(1)
        for _ in range(4):
            backend.interrupt_children(tasks[0])
            await anyio.sleep(0)
        await anyio.sleep(1)
        for scope in scopes:
            scope.cancel()
    assert sorted(log) == [(f"child {depth}", False) for depth in range(3)]


@pytest.mark.parametrize("anyio_backend", [virtual_asyncio()])
@pytest.mark.parametrize("code", [hide_behind_a_shield, shielded_children])
async def test_what_was_ended_by_force_leaves_its_task_free_of_cancellation(code) -> None:
    """A native time limit around it still says that time ran out."""
    inner = None

    async def outer() -> str:
        nonlocal inner
        backend, cancelled = current_backend(), anyio.get_cancelled_exc_class()
        try:
            async with asyncio.timeout(10):
                with anyio.CancelScope() as scope:
                    inner = Driven(
                        code(),
                        name="inner",
                        backend=backend,
                        cancelled_class=cancelled,
                        is_asked=lambda: False,
                        scope=scope,
                    )
                    with contextlib.suppress(Abandoned):
                        await inner
                await anyio.sleep(50)
        except TimeoutError:
            return "timed out"
        return "went on"

    detached = Detached(outer, name="outer")
    await anyio.sleep(1)
    assert await inner.end()
    assert await detached.settle(deadline=anyio.current_time() + 100, grace_s=2)
    assert (detached.result, detached.error) == ("timed out", None)
