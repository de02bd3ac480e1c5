"""When a request is tried again, and when not."""

import math
from email.utils import formatdate
from functools import partial

import anyio
import pytest
from agentkit_openai.faults import Refused
from agentkit_openai.retry import Backoff, retried, retry_after_s
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, ContextOverflow, ModelError

CHANCE = st.floats(0, 1, exclude_max=True)


@given(st.integers(0, 2000), CHANCE, st.none() | st.floats(0, 1e6), st.floats(-10, 1e6))
def test_a_wait_is_bounded_and_ends_before_the_deadline(
    attempt: int, chance: float, wish: float | None, left_s: float
) -> None:
    backoff = Backoff(retries=1000)
    wait_s = backoff.wait_s(attempt, chance=chance, retry_after_s=wish, left_s=left_s)
    step_s = min(30.0, 0.5 * 2.0 ** min(attempt, 60))
    if wait_s is not None:
        assert attempt < 1000
        assert wait_s < left_s
        assert wait_s >= step_s / 2
        assert wait_s >= (wish or 0.0)
        assert wait_s <= max(step_s, (wish or 0.0) + step_s)
    else:
        assert attempt >= 1000 or min(left_s, 3600.0) <= max(step_s, (wish or 0.0) + step_s)


def test_a_wish_for_more_than_an_hour_is_not_kept() -> None:
    """Without a deadline it would be waited for."""
    wait = partial(Backoff().wait_s, 0, chance=0.0, left_s=math.inf)
    assert wait(retry_after_s=3000.0) == 3000.0
    assert wait(retry_after_s=1e9) is None


def test_those_who_failed_together_do_not_come_back_together() -> None:
    waits = [Backoff().wait_s(2, chance=chance / 10, retry_after_s=3.0, left_s=99.0) for chance in range(10)]
    assert len(set(waits)) == 10


@pytest.mark.parametrize("retries", [-1, True, 1.5, "3"])
def test_a_number_of_retries_that_is_none_is_refused(retries: object) -> None:
    with pytest.raises(ConfigError, match="retries"):
        Backoff(retries)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), ("3", 3.0), (" 0.5 ", 0.5), ("-1", None), ("nan", None), ("1e9", None), ("soon", None), ("", None)],
)
def test_seconds_are_read(value: str | None, expected: float | None) -> None:
    assert retry_after_s(value, now=0.0) == expected


def test_a_date_is_read_as_seconds_from_now() -> None:
    assert retry_after_s(formatdate(1_000_010, usegmt=True), now=1_000_000.0) == 10.0
    assert retry_after_s(formatdate(1_000_010, usegmt=True), now=2_000_000.0) == 0.0


@given(st.text())
def test_any_header_gives_seconds_or_nothing(value: str) -> None:
    found = retry_after_s(value, now=0.0)
    assert found is None or (found >= 0 and math.isfinite(found))


class Server:
    """Fails as told, then answers."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.times: list[float] = []

    async def ask(self) -> str:
        self.times.append(anyio.current_time())
        if self.faults:
            raise self.faults.pop(0)
        return "answer"


def busy(retry_after_s: float | None = None) -> Refused:
    return Refused("busy", retryable=True, status=429, retry_after_s=retry_after_s)


def never() -> bool:
    return False


async def test_a_fault_that_passes_is_tried_again_later_each_time() -> None:
    server = Server(busy(), busy(), busy())
    assert await retried(server.ask, backoff=Backoff(), began=never) == "answer"
    waits = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert all(low <= wait <= high for wait, (low, high) in zip(waits, [(0.25, 0.5), (0.5, 1), (1, 2)], strict=True))


async def test_the_server_s_own_wish_is_kept() -> None:
    server = Server(busy(20.0))
    await retried(server.ask, backoff=Backoff(), began=never)
    assert 20.0 <= server.times[1] - server.times[0] <= 21.0


async def test_a_try_that_would_begin_after_the_deadline_is_not_waited_for() -> None:
    server = Server(busy(20.0))
    start = anyio.current_time()
    with pytest.raises(ModelError, match=r"busy \(tried 1 times\)") as caught:
        await retried(server.ask, backoff=Backoff(), deadline=start + 10, began=never)
    assert anyio.current_time() == start
    assert not caught.value.retryable


async def test_the_caller_is_not_asked_to_try_again_after_all_tries() -> None:
    server = Server(*[busy()] * 9)
    with pytest.raises(ModelError, match="tried 3 times") as caught:
        await retried(server.ask, backoff=Backoff(2), began=never)
    assert not caught.value.retryable
    assert len(server.times) == 3


async def test_without_retries_the_caller_decides() -> None:
    server = Server(busy())
    with pytest.raises(Refused) as caught:
        await retried(server.ask, backoff=Backoff(0), began=never)
    assert caught.value.retryable


async def test_what_has_begun_is_not_asked_for_twice() -> None:
    server = Server(busy())
    with pytest.raises(ModelError, match="part of the answer") as caught:
        await retried(server.ask, backoff=Backoff(), began=lambda: True)
    assert not caught.value.retryable
    assert len(server.times) == 1


@pytest.mark.parametrize("fault", [ContextOverflow("full", retryable=True), ModelError("no"), ZeroDivisionError()])
async def test_what_cannot_pass_is_raised_as_it_is(fault: Exception) -> None:
    server = Server(fault)
    with pytest.raises(type(fault)) as caught:
        await retried(server.ask, backoff=Backoff(), began=never)
    assert caught.value is fault
    assert len(server.times) == 1
