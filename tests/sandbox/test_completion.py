"""Work is done to its end, whatever cancels the task that asked for it."""

import anyio
import pytest

from agentkit.sandbox.completion import complete
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
