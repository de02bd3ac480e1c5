"""Announcements of weight syncs: on the board, and among those who want to hear of them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from agentkit_verl.pauses import Board, Pauses, find_board


def test_listeners_hear_each_change_once_and_what_is_the_case() -> None:
    pauses, heard = Pauses(), list[bool]()
    with pauses.told(heard.append):
        pauses.tell(True)
        pauses.tell(True)
        pauses.tell(False)
    pauses.tell(True)
    assert heard == [True, False]
    with pauses.told(heard.append):
        assert heard == [True, False, True]  # at once
    pauses.tell(False)
    assert heard == [True, False, True]


def test_a_listener_that_leaves_while_others_are_told() -> None:
    pauses, heard = Pauses(), list[str]()
    with pauses.told(lambda paused: heard.append("a")), pauses.told(lambda paused: heard.append("b")):
        pauses.tell(True)
    assert sorted(heard) == ["a", "b"]
    assert not pauses._listeners


def handle(board: Board) -> Any:
    """As Ray's handle on the actor."""
    return SimpleNamespace(changed=SimpleNamespace(remote=board.changed))


async def test_what_is_announced_is_followed() -> None:
    board, pauses, heard = Board(), Pauses(), list[bool]()
    following = asyncio.create_task(pauses.follow(handle(board)))
    with pauses.told(heard.append):
        for paused in (True, True, False, True):
            await board.announce(paused)
            await asyncio.sleep(0.01)
        assert heard == [True, False, True]
        await board.announce(False)
        await asyncio.sleep(0.01)
    following.cancel()
    assert heard == [True, False, True, False]


async def test_who_follows_late_hears_how_it_stands() -> None:
    board, pauses = Board(), Pauses()
    await board.announce(True)
    following = asyncio.create_task(pauses.follow(handle(board)))
    await asyncio.sleep(0.01)
    assert pauses.paused
    following.cancel()


async def test_a_question_to_the_board_is_answered_in_time_without_a_change() -> None:
    board = Board()
    assert await board.changed(-1, 5.0) == (0, False)
    assert await asyncio.wait_for(board.changed(0, 0.02), 1.0) == (0, False)


async def test_a_board_that_is_gone_pauses_nobody() -> None:
    async def gone(seen: int, within_s: float) -> tuple[int, bool]:
        if seen < 0:
            return 1, True
        raise ConnectionError("the actor died")

    pauses = Pauses()
    await asyncio.wait_for(pauses.follow(SimpleNamespace(changed=SimpleNamespace(remote=gone))), 1.0)
    assert not pauses.paused


@pytest.mark.skipif(ray.is_initialized(), reason="another test's Ray is there")
def test_without_ray_there_is_no_board() -> None:
    assert find_board() is None
