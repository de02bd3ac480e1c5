"""How a start that failed for now is tried again."""

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import Sandbox, SandboxSpec
from agentkit.sandbox import StartPolicy, start_sandbox


class Flaky:
    """Fails `failures` times, then hands out `made`."""

    def __init__(self, failures: int, *, retryable: bool = True) -> None:
        self.failures = failures
        self.retryable = retryable
        self.at: list[float] = []
        self.made: Sandbox = object()  # type: ignore[assignment]  # only handed on

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        self.at.append(anyio.current_time())
        await anyio.lowlevel.checkpoint()
        if len(self.at) <= self.failures:
            raise SandboxError(f"failure {len(self.at)}", retryable=self.retryable)
        return self.made


async def test_a_start_that_fails_for_now_is_tried_again():
    backend = Flaky(2)
    assert await start_sandbox(backend, SandboxSpec()) is backend.made
    assert len(backend.at) == 3


async def test_waits_grow_and_have_a_longest():
    backend = Flaky(9)
    await start_sandbox(backend, SandboxSpec(), StartPolicy(attempts=10, first_wait_s=1, longest_wait_s=8))
    waits = [after - before for before, after in zip(backend.at, backend.at[1:], strict=False)]
    assert all(wait <= most for wait, most in zip(waits, [1, 2, 4, 8, 8, 8, 8, 8, 8], strict=True))
    assert sum(waits) > 0


async def test_the_last_error_is_told():
    backend = Flaky(9)
    with pytest.raises(SandboxError, match="failure 3"):
        await start_sandbox(backend, SandboxSpec())
    assert len(backend.at) == 3


async def test_what_will_never_work_is_tried_once():
    backend = Flaky(9, retryable=False)
    with pytest.raises(SandboxError, match="failure 1"):
        await start_sandbox(backend, SandboxSpec())
    assert len(backend.at) == 1


async def test_no_time_for_another_attempt_is_the_error_and_no_timeout():
    backend = Flaky(9_999)
    with anyio.fail_after(10), pytest.raises(SandboxError, match="failure"):
        await start_sandbox(backend, SandboxSpec(), StartPolicy(attempts=9_999, first_wait_s=50, longest_wait_s=50))


async def test_cancelling_while_it_waits():
    backend = Flaky(99)
    async with anyio.create_task_group() as group:
        group.start_soon(start_sandbox, backend, SandboxSpec(), StartPolicy(attempts=10_000, first_wait_s=5))
        await anyio.sleep(1000)
        group.cancel_scope.cancel()
    assert len(backend.at) > 1
    assert backend.at[-1] <= anyio.current_time()


@given(st.integers(1, 10_000), st.floats(0, 100), st.floats(0, 100))
def test_a_wait_is_never_longer_than_the_longest(failed: int, first_s: float, longest_s: float):
    assert 0 <= StartPolicy(first_wait_s=first_s, longest_wait_s=longest_s).wait_s(failed) <= longest_s


@pytest.mark.parametrize("keys", [{"attempts": 0}, {"first_wait_s": -1.0}, {"longest_wait_s": float("nan")}])
def test_policies_that_cannot_be(keys: dict[str, float]):
    with pytest.raises(ConfigError, match=r"starts\."):
        StartPolicy(**keys)  # type: ignore[arg-type]
