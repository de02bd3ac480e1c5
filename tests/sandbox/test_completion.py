"""Work is done to its end, whatever cancels the task that asked for it."""

import anyio
import pytest

from agentkit.sandbox.completion import complete, finish
from agentkit.testing.sandboxes.sweep import awaits_of, cancel_at, on_asyncio


@pytest.mark.parametrize("natively", [False, True])
async def test_cancelled_at_any_await_it_is_done(natively: bool) -> None:
    done: list[int] = []

    async def work() -> None:
        for _ in range(5):
            await anyio.sleep(0.01)
        done.append(1)

    async def ask() -> None:
        await complete(work)

    if natively and not on_asyncio():
        pytest.skip("only asyncio's tasks can be cancelled so")
    total = await awaits_of(ask)
    for at in range(1, total + 1):
        done.clear()
        went = await cancel_at(ask, at, natively=natively)
        assert went.sent
        assert done == [1]


async def test_an_error_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        await complete(work)


@pytest.mark.parametrize("natively", [False, True])
async def test_work_gets_its_grace_and_no_more(natively: bool) -> None:
    went: list[str] = []

    async def work(seconds: float) -> str:
        try:
            await anyio.sleep(seconds)
        except BaseException:
            went.append("cut")
            raise
        went.append("done")
        return "result"

    if natively and not on_asyncio():
        pytest.skip("only asyncio's tasks can be cancelled so")
    assert await finish(lambda: work(1.0), grace_s=0.0) == "result"
    for seconds, how in ((3.0, "done"), (100.0, "cut")):
        went.clear()
        cancelled = await cancel_at(
            lambda seconds=seconds: finish(lambda: work(seconds), grace_s=5.0), 1, natively=natively
        )
        assert cancelled.sent
        assert went == [how]
        assert cancelled.late_s <= 5.5
    with pytest.raises(LookupError):
        await finish(lambda: _fail(), grace_s=1.0)


async def _fail() -> None:
    raise LookupError("no")
