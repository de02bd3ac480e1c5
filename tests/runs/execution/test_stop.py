"""What ends a run early: in order, never less than before, and by signals at any time, the loop held or not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.runs import Stop, StopLevel


@given(st.lists(st.sampled_from(["drain", "cancel"])), st.integers(0, 5))
def test_a_stop_is_heard_once_a_level_and_never_taken_back(asked: list[str], listen_at: int) -> None:
    stop, heard, expected, level = Stop(), list[StopLevel](), list[StopLevel](), StopLevel.GO_ON

    def ask(names: list[str]) -> None:
        for name in names:
            getattr(stop, name)()

    ask(asked[:listen_at])
    for name in asked[:listen_at]:
        level = max(level, StopLevel[name.upper()])
    if level:
        expected.append(level)
    with stop.heard_by(heard.append):
        ask(asked[listen_at:])
        for name in asked[listen_at:]:
            if StopLevel[name.upper()] > level:
                level = StopLevel[name.upper()]
                expected.append(level)
    assert heard == expected
    assert stop.level is level
    stop.cancel()
    assert heard == expected, "who has left hears nothing more"


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_drains_and_the_second_cancels(number: signal.Signals) -> None:
    stop, before = Stop(), signal.getsignal(number)
    with stop.on_signals():
        os.kill(os.getpid(), number)
        await until(lambda: stop.level is StopLevel.DRAIN)
        await anyio.sleep(0.2)
        assert stop.level is StopLevel.DRAIN
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: stop.level is StopLevel.CANCEL)
    assert signal.getsignal(number) is before


@pytest.mark.slow
async def test_a_signal_wakes_a_loop_that_waits_for_nothing() -> None:
    stop, heard = Stop(), anyio.Event()
    with stop.on_signals(), stop.heard_by(lambda _: heard.set()), anyio.fail_after(20):
        from threading import Timer

        Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        await heard.wait()


@pytest.mark.slow
async def test_outside_the_main_thread_signals_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT)

    def elsewhere() -> None:
        async def main() -> None:
            with Stop().on_signals():
                assert signal.getsignal(signal.SIGINT) is before

        anyio.run(main)

    await anyio.to_thread.run_sync(elsewhere)


PRESSED = """
import os, signal, sys, anyio
from agentkit.runs import Stop

async def main():
    stop = Stop()
    with stop.on_signals():
        for _ in range(5):  # the terminal's, and those that a wrapper passes on
            os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(0.05)
        print(stop.level.name)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_key_press_that_arrives_many_times_is_one_signal(backend: str) -> None:
    done = subprocess.run([sys.executable, "-c", PRESSED, backend], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "DRAIN\n")


HELD = """
import sys, time, anyio
from agentkit.runs import Stop

async def main():
    with Stop().on_signals():
        print("ready", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:  # user code that does not let the loop run again (not for ever: see its parent)
            pass

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_third_signal_kills_even_where_user_code_holds_the_loop(backend: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HELD, backend], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(2):
            child.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20) == -signal.SIGINT
