"""Work that is done to its end, whoever cancels how often."""

import asyncio

import anyio
import pytest
from agentkit_swerex.through import through


async def test_its_result_and_its_error() -> None:
    async def work(fails: bool) -> int:
        await anyio.sleep(1.0)
        if fails:
            raise LookupError("it")
        return 7

    assert await through(work(False)) == 7
    with pytest.raises(LookupError):
        await through(work(True))


@pytest.mark.parametrize("fails", [False, True])
async def test_cancelled_twice_natively_and_by_a_scope(fails: bool) -> None:
    done: list[str] = []

    async def work() -> None:
        await anyio.sleep(2.0)
        done.append("work")
        if fails:
            raise LookupError("nobody hears it")

    async def caller() -> None:
        try:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await through(work())
        finally:
            done.append("caller")

    task = asyncio.get_running_loop().create_task(caller())
    await anyio.sleep(0.5)
    task.cancel()
    await anyio.sleep(0.5)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert done == ["work", "caller"]
