"""Blocking tools: threads of our own, abandoned when the wait is cancelled, in nobody's way."""

import contextvars
import subprocess
import sys
import threading
import time

import anyio
import pytest

from agentkit.errors import ToolError
from agentkit.protocols import Observation, ToolCall, ToolContext
from agentkit.tools import stuck_threads, tool

pytestmark = pytest.mark.slow

WHO = contextvars.ContextVar("who", default="nobody")


def context_for(rollout_id: str = "task#0") -> ToolContext:
    return ToolContext(ToolCall("call_0", "t", {}), None, rollout_id, float("inf"))


async def test_a_sync_tool_runs_in_a_named_daemon_thread_with_the_callers_context():
    @tool
    def who(suffix: str) -> list[object]:
        thread = threading.current_thread()
        return [thread.name, thread.daemon, WHO.get() + suffix]

    WHO.set("me")
    assert await who.call({"suffix": "!"}, context_for()) == Observation('["agentkit-tool:who:task#0", true, "me!"]')


async def test_cancelling_abandons_the_thread_and_names_it():
    release = threading.Event()

    @tool
    def block() -> None:
        release.wait(30)

    started = time.monotonic()
    with anyio.move_on_after(0.1) as scope:
        await block.call({}, context_for("abandoned#1"))
    assert scope.cancelled_caught
    assert time.monotonic() - started < 5
    assert "agentkit-tool:block:abandoned#1" in stuck_threads()
    release.set()
    with anyio.fail_after(10):
        while "agentkit-tool:block:abandoned#1" in stuck_threads():
            await anyio.sleep(0.01)


async def test_a_cancelled_call_starts_no_thread():
    ran = threading.Event()

    @tool
    def late() -> None:
        ran.set()

    with anyio.CancelScope() as scope:
        scope.cancel()
        await late.call({}, context_for())
    await anyio.sleep(0.05)
    assert scope.cancelled_caught
    assert not ran.is_set()


async def test_many_blocked_tools_do_not_starve_a_sibling():
    release = threading.Event()

    @tool
    def block() -> None:
        release.wait(30)

    @tool
    def quick() -> str:
        return "done"

    async with anyio.create_task_group() as tasks:
        for index in range(60):  # more than the worker threads either loop would lend
            tasks.start_soon(block.call, {}, context_for(f"r#{index}"))
        await anyio.sleep(0.1)
        with anyio.fail_after(5):
            assert await quick.call({}, context_for()) == Observation("done")
        release.set()


async def test_errors_come_back_and_exits_become_tool_errors(recwarn):
    @tool
    def fail(kind: str) -> None:
        raise {"value": ValueError("bad"), "exit": SystemExit(2), "interrupt": KeyboardInterrupt()}[kind]

    with pytest.raises(ValueError, match="bad"):
        await fail.call({"kind": "value"}, context_for())
    for kind in ("exit", "interrupt"):
        with pytest.raises(ToolError, match="tool raised"):
            await fail.call({"kind": kind}, context_for())
    assert not recwarn.list


async def test_a_sync_tool_may_run_a_loop_of_its_own():
    @tool
    def nested() -> str:
        anyio.run(anyio.sleep, 0)
        return "ran"

    assert await nested.call({}, context_for()) == Observation("ran")


async def test_an_awaitable_from_a_sync_function_is_awaited():
    async def inner() -> str:
        await anyio.sleep(0)
        return "awaited"

    assert await tool(name="outer")(lambda: inner()).call({}, context_for()) == Observation("awaited")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_outlives_its_loop_is_silent_and_holds_no_exit(backend):
    program = f"""
import threading, time, anyio
from agentkit.protocols import ToolCall, ToolContext
from agentkit.tools import tool

@tool
def block(seconds: float) -> None:
    time.sleep(seconds)

async def main():
    with anyio.move_on_after(0.05):
        async with anyio.create_task_group() as tasks:
            for seconds in (0.2, 600):
                context = ToolContext(ToolCall("c", "block", {{}}), None, "r#0", float("inf"))
                tasks.start_soon(block.call, {{"seconds": seconds}}, context)

anyio.run(main, backend={backend!r})
time.sleep(0.4)
print(sum(t.name.startswith("agentkit-tool:") for t in threading.enumerate()))
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")
