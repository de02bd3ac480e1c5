"""Which rollout the running code belongs to: wherever it runs, tasks and tool threads included."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentkit.protocols import RolloutKey

_CURRENT: "ContextVar[RolloutKey | None]" = ContextVar("agentkit_rollout", default=None)


def current_rollout() -> RolloutKey | None:
    """The attempt at a rollout that this code runs for, None outside of rollouts.

    It is known in loops, models, envs, tools and rewards, in tasks they start, and in the threads of blocking tools.
    """
    return _CURRENT.get()


@contextmanager
def within_rollout(key: RolloutKey) -> Iterator[None]:
    """What runs inside belongs to `key`."""
    token = _CURRENT.set(key)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def enter_rollout(key: RolloutKey) -> None:
    """From here on the running task, and what it starts, belong to `key`: for code that gives a rollout a task."""
    _CURRENT.set(key)


def rollout_name(key: RolloutKey) -> str:
    """`task#index.attempt`."""
    return f"{key}.{key.attempt}"
