"""One thread for what blocks: turns, order, ends, and a hand-over that loses nothing."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator

import anyio
import pytest
from agentkit_hf.worker import Stream, Worker

from agentkit.errors import ModelError

pytestmark = pytest.mark.slow

Push = Callable[[object], None]
Job = Generator[None, None, str]


def counting(name: str, steps: int, log: list[str] | None = None) -> Callable[[Push], Job]:
    def job(push: Push) -> Job:
        for i in range(steps):
            push(i)
            if log is not None:
                log.append(name)
            yield
        return name

    return job


def endless(push: Push) -> Job:
    while True:
        push("tick")
        yield


async def all_of(stream: Stream[object, str]) -> tuple[list[object], str]:
    items: list[object] = []
    while some := await stream.take():
        items += some
    return items, stream.result()


def open_worker(width: int = 4) -> Worker:
    worker = Worker("agentkit-hf:test", width=width)
    worker.open()
    return worker


async def test_everything_pushed_is_taken_in_order():
    worker = open_worker()
    taken: dict[str, tuple[list[object], str]] = {}

    async def take(name: str) -> None:
        taken[name] = await all_of(worker.start(counting(name, 500)))

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            for name in "abcdefgh":
                group.start_soon(take, name)
    assert taken == {name: (list(range(500)), name) for name in "abcdefgh"}
    assert await worker.close(wait_s=30)


async def held(worker: Worker) -> tuple[threading.Event, Stream[object, None]]:
    """The worker is in a step until the event is set, so that what is started meanwhile is all there when it ends."""
    gate, begun = threading.Event(), threading.Event()

    def job(_: Push) -> Generator[None, None, None]:
        begun.set()
        gate.wait(30)
        yield

    stream: Stream[object, None] = worker.start(job)
    while not begun.is_set():
        await anyio.sleep(0.01)
    return gate, stream


async def test_jobs_take_turns_a_step_each():
    worker, log = open_worker(), []
    gate, _ = await held(worker)
    streams = [worker.start(counting(name, 3, log)) for name in "abc"]
    gate.set()
    for stream in streams:
        await all_of(stream)
    assert log == ["a", "b", "c"] * 3
    assert await worker.close(wait_s=30)


async def test_jobs_beyond_the_width_wait_in_the_order_they_came():
    worker, log = open_worker(width=1), []
    gate, _ = await held(worker)
    streams = [worker.start(counting(name, 2, log)) for name in "cab"]
    gate.set()
    for stream in streams:
        await all_of(stream)
    assert log == list("ccaabb")
    assert await worker.close(wait_s=30)


async def test_an_urgent_job_waits_for_one_step_only():
    worker = open_worker(width=1)
    endless_one = worker.start(endless)
    await endless_one.take()
    items, result = await all_of(worker.start(counting("urgent", 3), urgent=True))
    assert (items, result) == ([0, 1, 2], "urgent")
    endless_one.cancel()
    assert await worker.close(wait_s=30)


async def test_a_short_job_ends_beside_an_endless_one():
    worker = open_worker(width=2)
    worker.start(endless)
    assert (await all_of(worker.start(counting("short", 5))))[1] == "short"
    assert await worker.close(wait_s=30)


async def test_a_cancelled_job_is_closed_and_makes_room():
    worker, closed = open_worker(width=1), threading.Event()

    def job(push: Push) -> Job:
        try:
            while True:
                push("tick")
                yield
        finally:
            closed.set()

    stream = worker.start(job)
    await stream.take()
    stream.cancel()
    assert (await all_of(worker.start(counting("next", 1))))[1] == "next"
    assert closed.is_set()
    assert await worker.close(wait_s=30)


async def test_a_job_cancelled_before_another_was_started_has_ended_before_that_begins():
    worker, log = open_worker(width=8), []

    def first(push: Push) -> Job:
        try:
            while True:
                push("tick")
                yield
        finally:
            log.append("first closed")

    def second(_: Push) -> Job:
        log.append("second begun")
        yield
        return ""

    for _ in range(50):
        log.clear()
        stream = worker.start(first)
        await stream.take()
        stream.cancel()
        await all_of(worker.start(second))
        assert log == ["first closed", "second begun"]
    assert await worker.close(wait_s=30)


async def test_what_a_job_raises_is_raised_where_it_is_waited_for():
    worker = open_worker()

    def fails(error: BaseException) -> Callable[[Push], Job]:
        def job(push: Push) -> Job:
            push("before")
            yield
            raise error

        return job

    with pytest.raises(ZeroDivisionError):
        await all_of(worker.start(fails(ZeroDivisionError())))
    with pytest.raises(ModelError, match="raised SystemExit"):
        await all_of(worker.start(fails(SystemExit(3))))
    stream = worker.start(fails(ZeroDivisionError()))
    await anyio.sleep(0.2)
    assert await stream.take() == ["before"]
    assert (await all_of(worker.start(counting("after", 1))))[1] == "after"
    assert await worker.close(wait_s=30)


async def test_a_job_that_fails_while_it_is_closed_does_not_end_the_thread():
    worker = open_worker()

    def job(push: Push) -> Job:
        try:
            while True:
                push("tick")
                yield
        finally:
            raise SystemExit

    stream = worker.start(job)
    await stream.take()
    stream.cancel()
    assert (await all_of(worker.start(counting("after", 1))))[1] == "after"
    assert await worker.close(wait_s=30)


async def test_closing_ends_what_is_under_way_and_waiting_and_the_thread():
    worker = open_worker(width=1)
    streams = [worker.start(endless) for _ in range(3)]
    await streams[0].take()
    assert await worker.close(wait_s=30)
    assert worker.name not in [thread.name for thread in threading.enumerate()]
    for stream in streams:
        with pytest.raises(ModelError, match="agentkit-hf:test was closed"):
            await all_of(stream)
    with pytest.raises(ModelError, match="agentkit-hf:test is closed"):
        worker.start(endless)


async def test_closing_does_not_wait_for_a_step_that_never_ends():
    worker = open_worker()
    gate, _ = await held(worker)
    started = time.monotonic()
    assert not await worker.close(wait_s=0.2)
    assert time.monotonic() - started < 5
    gate.set()
    assert await worker.close(wait_s=30)


async def test_a_cancelled_wait_loses_nothing():
    worker = open_worker()
    gate = threading.Event()

    def job(push: Push) -> Job:
        push("one")
        yield
        gate.wait(30)
        push("two")
        yield
        return "done"

    stream = worker.start(job)
    assert await stream.take() == ["one"]
    with anyio.move_on_after(0.1) as scope:
        await stream.take()
    assert scope.cancelled_caught
    gate.set()
    with anyio.fail_after(20):
        assert await all_of(stream) == (["two"], "done")
    assert await worker.close(wait_s=30)


def test_a_loop_that_is_gone_ends_its_jobs():
    workers: list[Worker] = []
    gone = threading.Event()

    def job(push: Push) -> Job:
        try:
            while True:
                push("tick")
                time.sleep(0.01)
                yield
        finally:
            gone.set()

    async def leave() -> None:
        workers.append(open_worker())
        await workers[0].start(job).take()

    anyio.run(leave)
    assert gone.wait(30)

    async def close() -> None:
        assert await workers[0].close(wait_s=30)

    anyio.run(close)


PROGRAM = """
import sys, time, anyio
from agentkit_hf.worker import Worker
def job(push):
    while True:
        push(1)
        time.sleep({step_s})
        yield
async def main():
    worker = Worker("w", width=1)
    worker.open()
    await worker.start(job).take()
    print("leaving", flush=True)
anyio.run(main, backend={backend!r})
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("step_s", [0.01, 3600])
def test_interpreter_exit_is_not_held_up(backend: str, step_s: float):
    program = PROGRAM.format(step_s=step_s, backend=backend)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
    assert time.monotonic() - started < 25
