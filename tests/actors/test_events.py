"""The mailbox loses no letter and leaves no question open; watchers hold nobody."""

import anyio
import pytest

from agentkit import Action, RolloutEnded, user
from agentkit.actors.events import Broadcast, Letter, Mailbox, Observed, Reply


def letters(*texts: str):
    return [user(text) for text in texts]


async def test_a_cancelled_reader_loses_no_letter() -> None:
    mailbox, got = Mailbox(), []
    mailbox.put(Letter(user("waiting")))
    with anyio.CancelScope() as scope:
        scope.cancel()
        got += await mailbox.receive()
    assert got + mailbox.take() == letters("waiting")


async def test_a_reader_cancelled_as_a_letter_arrives_loses_nothing() -> None:
    mailbox, got = Mailbox(), []

    async def read() -> None:
        got.extend(await mailbox.receive())

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.sleep(1)
        mailbox.put(Letter(user("late")))
        group.cancel_scope.cancel()
    assert got + mailbox.take() == letters("late")


async def test_a_reader_wakes_for_a_letter_and_for_the_end() -> None:
    mailbox, got = Mailbox(), []

    async def read() -> None:
        with anyio.fail_after(10):
            while messages := await mailbox.receive():
                got.append(messages)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        for text in ("one", "two"):
            await anyio.sleep(1)
            mailbox.put(Letter(user(text)))
        await anyio.sleep(1)
        mailbox.close()
    assert got == [letters("one"), letters("two")]


async def test_a_closed_mailbox_takes_no_letter_and_keeps_those_it_has() -> None:
    mailbox = Mailbox()
    mailbox.put(Letter(user("in time")))
    mailbox.close()
    with pytest.raises(RolloutEnded):
        mailbox.put(Letter(user("late")))
    assert await mailbox.receive() == letters("in time")
    assert await mailbox.receive() == []


async def test_a_question_is_answered_once_it_was_read_or_fails_at_the_end() -> None:
    mailbox, read, unread = Mailbox(), Reply(), Reply()
    mailbox.put(Letter(user("1?"), read))
    mailbox.take()
    mailbox.put(Letter(user("2?"), unread))
    mailbox.answer(Action("one"))
    with anyio.fail_after(1):
        assert (await read.wait()).text == "one"
    mailbox.abandon()
    with anyio.fail_after(1), pytest.raises(RolloutEnded, match="before it answered"):
        await unread.wait()


async def test_a_watcher_that_never_listens_holds_nobody_and_a_late_one_sees_the_end() -> None:
    broadcast = Broadcast()
    with broadcast.watch() as idle:
        for turn in range(1000):
            broadcast.publish(Observed(turn, ()))
        broadcast.close()
        with anyio.fail_after(1):
            assert [event.turn async for event in idle] == list(range(1000))
    with broadcast.watch() as late, anyio.fail_after(1):
        assert [event async for event in late] == []


def test_letters_are_read_in_order() -> None:
    mailbox = Mailbox()
    for text in ("one", "two", "three"):
        mailbox.put(Letter(user(text)))
    assert mailbox.take() == letters("one", "two", "three")
    assert mailbox.take() == []
