import random

import anyio
import pytest
from agentkit_remote.frames import CHUNK_BYTES, WINDOW_BYTES, WireError
from agentkit_remote.streams import Inflow, Outflow


async def test_no_more_is_under_way_than_there_is_room_for() -> None:
    chance = random.Random(3)
    data = chance.randbytes(5 * WINDOW_BYTES + 17)
    under_way: list[bytes] = []
    most = 0

    async def send(piece: bytes) -> None:
        nonlocal most
        assert len(piece) <= CHUNK_BYTES
        under_way.append(piece)
        most = max(most, sum(map(len, under_way)))
        await anyio.sleep(chance.choice((0, 0.001)))

    outflow = Outflow(send)
    inflow = Inflow(outflow.credit)
    got = bytearray()

    async def arrive() -> None:
        while True:
            await anyio.sleep(0.01)
            while under_way:
                inflow.feed(under_way.pop(0))

    async def take() -> None:
        while (piece := await inflow.take()) is not None:
            got.extend(piece)
            await anyio.sleep(chance.choice((0, 0.02)))

    async with anyio.create_task_group() as group:
        group.start_soon(arrive)
        async with anyio.create_task_group() as both:
            both.start_soon(take)
            await outflow.send(data)
            while under_way:
                await anyio.sleep(0.01)
            inflow.feed(None)
        group.cancel_scope.cancel()
    assert bytes(got) == data
    assert most <= WINDOW_BYTES


async def test_a_sender_without_credit_waits_until_there_is_some_or_nobody_listens() -> None:
    sent: list[bytes] = []

    async def send(piece: bytes) -> None:
        sent.append(piece)

    outflow = Outflow(send)
    with anyio.move_on_after(100) as scope:
        await outflow.send(b"x" * (WINDOW_BYTES + 1))
    assert scope.cancelled_caught
    assert sum(map(len, sent)) == WINDOW_BYTES
    outflow.close()
    await outflow.send(b"x" * WINDOW_BYTES)
    assert sum(map(len, sent)) == WINDOW_BYTES


def test_more_than_was_granted_is_refused() -> None:
    inflow = Inflow(lambda _: None)
    for _ in range(WINDOW_BYTES // CHUNK_BYTES):
        inflow.feed(b"x" * CHUNK_BYTES)
    with pytest.raises(WireError, match="credit"):
        inflow.feed(b"x")


async def test_what_came_before_the_end_is_taken_still() -> None:
    inflow = Inflow(lambda _: None)
    inflow.feed(b"a")
    inflow.feed(None)
    inflow.feed(b"b")
    inflow.close()
    inflow.feed(b"late")
    assert [await inflow.take() for _ in range(5)] == [b"a", None, b"b", None, None]


def test_credit_grows_no_larger_than_the_window() -> None:
    async def send(piece: bytes) -> None:
        raise AssertionError

    outflow = Outflow(send)
    outflow.credit(2**31)
    assert outflow._credit == WINDOW_BYTES
