"""Permits are handed out fairly, and come back by every path."""

import anyio
import pytest

from agentkit import ConfigError
from agentkit.actors import FairPermits


async def test_a_pause_hands_out_nothing_and_a_resume_serves_who_waits() -> None:
    permits, served = FairPermits(2), []
    permits.pause()

    async def want(name: str) -> None:
        await permits.acquire("g")
        served.append(name)

    async with anyio.create_task_group() as group:
        for name in ("first", "second", "third"):
            group.start_soon(want, name)
            await anyio.sleep(1)
        assert (served, permits.held, permits.waiting) == ([], 0, 3)
        permits.resume()
        await anyio.sleep(1)
        assert (sorted(served), permits.held, permits.waiting) == (["first", "second"], 2, 1)
        permits.release()
        await anyio.sleep(1)
        assert (served[2:], permits.held, permits.waiting) == (["third"], 2, 0)


async def test_a_release_during_a_pause_is_not_handed_on() -> None:
    permits = FairPermits(1)
    await permits.acquire("a")
    permits.pause()
    async with anyio.create_task_group() as group:
        group.start_soon(permits.acquire, "b")
        await anyio.sleep(1)
        permits.release()
        await anyio.sleep(1)
        assert (permits.held, permits.waiting) == (0, 1)
        permits.resume()
        await anyio.sleep(1)
        assert (permits.held, permits.waiting) == (1, 0)


def test_nothing_is_taken_during_a_pause() -> None:
    permits = FairPermits(1)
    permits.pause()
    assert not permits.take()
    permits.resume()
    assert permits.take()


def test_less_than_one_permit_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="starts must be at least 1, found 0"):
        FairPermits(0, name="starts")
