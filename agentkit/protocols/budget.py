"""The limits of a rollout, as a value."""

import math
from collections.abc import Mapping
from contextvars import ContextVar
from difflib import get_close_matches

import attrs
from attrs import frozen

from agentkit.errors import ConfigError


@frozen(kw_only=True)
class Budget:
    """The limits of one rollout: seconds, counts, and what waiting costs. On by default.

    `trajectory_s` bounds set-up and interaction together; the grade then has `reward_s`, and user code that outlives a
    limit has `grace_s` to end before it is abandoned. So a rollout is sealed within `trajectory_s + reward_s +
    grace_s` of its start (without a reward: `trajectory_s + grace_s`), and its env closes within a further `grace_s`.

    `max_tokens` is the length of a chain, prompt included: the context window of the policy or of the trainer.
    `max_format_errors` counts consecutive turns without one valid call; `max_tool_timeouts` counts those of the whole
    rollout that are forgiven. With `count_waiting` false, time spent waiting for a generation permit, or while the
    trainer syncs weights, does not count against `trajectory_s`.
    """

    trajectory_s: float = 1800.0
    setup_s: float = 300.0
    generation_s: float = 600.0
    tool_s: float = 120.0
    reward_s: float = 300.0
    grace_s: float = 10.0
    max_turns: int = 100
    max_tokens: int = 131_072
    max_tool_timeouts: int = 3
    max_format_errors: int = 3
    count_waiting: bool = True

    def __attrs_post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < lowest:
                raise ConfigError(f"budget.{name} must be a number >= {lowest}, found {value!r}")

    def override(self, overrides: Mapping[str, object]) -> "Budget":
        """This budget with the fields of `overrides` replaced.

        Raises:
            ConfigError: a key is no field of a budget, or its value is out of range.
        """
        names = [field.name for field in attrs.fields(Budget)]
        for key in overrides:
            if key not in names:
                near = get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(names)}"
                raise ConfigError(f"budget has no field {key!r}: {hint}")
        return attrs.evolve(self, **overrides)  # type: ignore[arg-type]  # the values are checked after init


_ENV_LIFETIME_S: ContextVar[float | None] = ContextVar("agentkit_env_lifetime_s", default=None)


def env_lifetime_s() -> float | None:
    """Within `Env.start`: seconds from its call until the env is closed at the latest, grading included.

    What an env makes elsewhere, a container say, needs to live no longer. None outside of a rollout, and where waiting
    does not count against the budget (`count_waiting: false`), so that nobody knows when it ends.
    """
    return _ENV_LIFETIME_S.get()


def set_env_lifetime_s(seconds: float) -> None:
    """Say it to the env that the running task is about to start; infinity stands for nobody knows."""
    _ENV_LIFETIME_S.set(None if math.isinf(seconds) else seconds)


_LOWEST: Mapping[str, float] = {
    "trajectory_s": 0.0,
    "setup_s": 0.0,
    "generation_s": 0.0,
    "tool_s": 0.0,
    "reward_s": 0.0,
    "grace_s": 0.0,
    "max_turns": 1,
    "max_tokens": 1,
    "max_tool_timeouts": 0,
    "max_format_errors": 1,
}
