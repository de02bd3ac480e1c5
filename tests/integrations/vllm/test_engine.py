"""Starting and stopping on threads: whoever leaves early leaves nothing behind."""

import threading

import anyio
import pytest
from agentkit_vllm.engine import _in_thread

from agentkit.errors import ModelError

pytestmark = pytest.mark.slow


async def test_the_loop_goes_on_while_a_thread_works():
    go = threading.Event()

    async def let_go() -> None:
        await anyio.sleep(0.01)
        go.set()

    async with anyio.create_task_group() as group:
        group.start_soon(let_go)
        assert await _in_thread(lambda: go.wait(10), name="test")


async def test_errors_of_the_thread_are_the_callers():
    def fail() -> None:
        raise OSError("no such model")

    with pytest.raises(OSError, match="no such model"):
        await _in_thread(fail, name="test")


async def test_a_thread_that_exits_is_an_error_and_no_hang():
    def leave() -> None:
        raise SystemExit(3)

    with anyio.fail_after(10), pytest.raises(ModelError, match="SystemExit"):
        await _in_thread(leave, name="test")


async def test_what_was_started_for_someone_who_left_is_discarded():
    go, discarded = threading.Event(), threading.Event()
    found: list[str] = []

    def discard(engine: str) -> None:
        found.append(engine)
        discarded.set()

    def start() -> str:
        go.wait(10)
        return "engine"

    with anyio.move_on_after(0.01) as scope:
        await _in_thread(start, name="test", unwanted=discard)
    assert scope.cancelled_caught
    assert not found
    go.set()
    assert discarded.wait(10)
    assert found == ["engine"]


async def test_what_was_ready_when_its_caller_left_is_discarded_too():
    """The thread has handed it over, and the cancel comes before the caller wakes up."""
    go, discarded = threading.Event(), threading.Event()

    def start() -> str:
        go.wait(10)
        return "engine"

    async def leave(scope: anyio.CancelScope) -> None:
        go.set()
        while any(thread.name == "test start" for thread in threading.enumerate()):
            pass  # holds the loop: the caller cannot wake up before the cancel
        scope.cancel()

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: _in_thread(start, name="test start", unwanted=lambda engine: discarded.set()))
            await anyio.sleep(0.01)
            group.start_soon(leave, scope)
    assert discarded.wait(10)
