"""Slots go round in order, none is lost, whoever gives up."""

import asyncio

import anyio
import pytest
from agentkit_openai.slots import Slots
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

STEPS = st.lists(st.tuples(st.sampled_from(["ask", "cancel", "give", "tick"]), st.integers(0, 20)), max_size=40)


async def play(limit: int, steps: list[tuple[str, int]]) -> None:
    slots = Slots(limit)
    granted: list[int] = []
    tasks: dict[int, asyncio.Task[None]] = {}
    given_back: set[int] = set()
    release: dict[int, asyncio.Event] = {}

    async def holder(number: int) -> None:
        await slots.acquire()
        granted.append(number)
        try:
            await release[number].wait()
        finally:
            slots.release()
            given_back.add(number)

    for kind, number in steps:
        if kind == "ask" and number not in tasks:
            release[number] = asyncio.Event()
            tasks[number] = asyncio.create_task(holder(number))
            await checkpoint()  # so that asking has an order
        elif kind == "cancel" and number in tasks:
            tasks[number].cancel()  # perhaps in the very turn in which a slot was handed over
        elif kind == "give" and number in release:
            release[number].set()
        elif kind == "tick":
            for _ in range(3):
                await checkpoint()
        held = [each for each in granted if each not in given_back]
        assert len(held) <= limit
    for number, event in release.items():
        event.set()
        assert number in tasks
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    order = [number for number in tasks if number in granted]
    assert granted == order  # first come, first served
    assert slots.free == limit
    assert slots.waiting == 0


@given(st.integers(1, 3), STEPS)
def test_no_slot_is_lost_or_given_twice(limit: int, steps: list[tuple[str, int]]) -> None:
    asyncio.run(play(limit, steps))


async def test_a_slot_handed_to_one_who_gave_up_goes_on() -> None:
    slots = Slots(1)
    await slots.acquire()
    got: list[str] = []

    async def waiter(name: str) -> None:
        await slots.acquire()
        got.append(name)

    first, second = asyncio.create_task(waiter("first")), asyncio.create_task(waiter("second"))
    await checkpoint()
    slots.release()  # goes to the first
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with anyio.fail_after(1):
        await second
    assert got == ["second"]


async def test_those_who_give_up_leave_no_trace() -> None:
    slots = Slots(1)
    await slots.acquire()
    tasks = [asyncio.create_task(slots.acquire()) for _ in range(5)]
    await checkpoint()
    assert slots.waiting == 5
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert slots.waiting == 0
    slots.release()
    assert slots.free == 1
