"""The driver ends any user code, and nothing of it is left."""

import contextlib

import anyio
import pytest

from agentkit.actors._guard import Abandoned, Detached
from agentkit.testing import hide_behind_a_shield, swallow_cancellation

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # code that ignores its end


async def swallow_behind_shields() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await hide_behind_a_shield()


async def shielded_children() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(hide_behind_a_shield)
        await hide_behind_a_shield()


async def await_in_cleanup() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        await hide_behind_a_shield()


STUBBORN = [swallow_cancellation, hide_behind_a_shield, swallow_behind_shields, shielded_children, await_in_cleanup]


@pytest.mark.parametrize("code", STUBBORN, ids=lambda code: code.__name__)
async def test_stubborn_code_is_ended_within_its_grace(code) -> None:
    started, tasks = anyio.current_time(), len(anyio.get_running_tasks())
    detached = Detached(code, name="stubborn")
    assert await detached.settle(deadline=started + 5, grace_s=2)
    assert anyio.current_time() - started <= 7
    assert detached.error is not None
    await anyio.sleep(1)
    assert len(anyio.get_running_tasks()) == tasks


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
