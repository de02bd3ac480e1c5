"""When to try again: exponential back-off with jitter, the server's own wish, and never past the deadline."""

import math
import random
import re
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from itertools import count
from typing import TypeVar

import anyio
from attrs import frozen

from agentkit.errors import ConfigError, ContextOverflow, InvariantError, ModelError
from agentkit_openai.faults import Refused

T = TypeVar("T")

_LONGEST_WISH_S = 3600.0  # a server that wishes for more is not waited for, where there is no deadline
_SECONDS = re.compile(r"\s*\d{1,9}(\.\d{1,9})?\s*")


@frozen
class Backoff:
    """How often, and after how long: `first_s` doubled at each try, at most `longest_s`, half of it left to chance."""

    retries: int = 6
    first_s: float = 0.5
    longest_s: float = 30.0

    def __attrs_post_init__(self) -> None:
        retries: object = self.retries
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ConfigError(f"retries must be a whole number >= 0, found {retries!r}")

    def wait_s(self, attempt: int, *, chance: float, retry_after_s: float | None, left_s: float) -> float | None:
        """Seconds to wait after try number `attempt` (from 0) failed; None to give up.

        `chance` in [0, 1) spreads those who failed together. A server's `retry_after_s` is kept and spread likewise. A
        wait that would outlast `left_s`, the time to the deadline, or an hour, is not begun.
        """
        if attempt >= self.retries:
            return None
        step_s = min(self.longest_s, self.first_s * 2.0 ** min(attempt, 60))
        wait_s = step_s * (1.0 + chance) / 2.0
        if retry_after_s is not None:
            wait_s = max(wait_s, retry_after_s + step_s * chance / 2.0)
        return wait_s if wait_s < min(left_s, _LONGEST_WISH_S) else None


def retry_after_s(value: str | None, *, now: float) -> float | None:
    """What a `Retry-After` header asks for, in seconds from `now` (Unix time); None where it says nothing readable."""
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


async def retried(
    ask: Callable[[], Awaitable[T]], *, backoff: Backoff, deadline: float = math.inf, began: Callable[[], bool]
) -> T:
    """What `ask` gives, tried again while `began` says that nothing of an answer was passed on.

    These are the only tries: the client knows what the server wished for, so whoever called it need not try again on
    top. An error that all tries ended in is therefore not retryable any more; with no retries allowed here it is left
    as it came, for the caller to decide.

    Raises:
        ContextOverflow: at once; trying again cannot help.
        ModelError: it is not retryable, something was passed on already, the tries are used up, or the next would begin
            after the `deadline`.
    Cancellation: goes through at once, from the wait as well.
    """
    for attempt in count():
        try:
            return await ask()
        except ContextOverflow:
            raise
        except ModelError as error:
            if began():
                raise ModelError(f"{error} (after a part of the answer had come)") from error
            if not error.retryable or backoff.retries == 0:
                raise
            wish = error.retry_after_s if isinstance(error, Refused) else None
            left_s = deadline - anyio.current_time()
            wait_s = backoff.wait_s(attempt, chance=random.random(), retry_after_s=wish, left_s=left_s)
            if wait_s is None:
                raise ModelError(f"{error} (tried {attempt + 1} times)") from error
        await anyio.sleep(wait_s)
    raise InvariantError("the tries have no end")
