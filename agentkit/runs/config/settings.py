"""A whole run as a value: what `load_config` makes of a YAML file, and what Python code may build itself."""

import math
from collections.abc import Iterator, Sequence

from attrs import field, frozen

from agentkit.actors import Agent
from agentkit.errors import ConfigError
from agentkit.protocols import Task
from agentkit.runs.dataset import Dataset, Survey


@frozen(kw_only=True)
class PoolLimits:
    """How much of a run happens at once, and how many rollouts each task has; see `agentkit.Pool`."""

    max_rollouts: int = 256
    max_starts: int = 16
    max_generations: float = math.inf
    group_size: int = 1

    def __attrs_post_init__(self) -> None:
        for name in ("max_rollouts", "max_starts", "max_generations", "group_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
                raise ConfigError(f"pool.{name} must be a number >= 1, found {value!r}")


def _dataset(value: "Dataset | Sequence[Task]") -> "Dataset | tuple[Task, ...]":
    return value if isinstance(value, Dataset) else tuple(value)


@frozen(kw_only=True)
class RunConfig:
    """Everything a run needs: an agent, the tasks it works on, and the limits of the pool.

    `load_config` makes one from YAML; the fields are the sections of the file. `secrets` are the values that came from
    environment variables, for whoever writes logs to hide; no text that this class makes holds them.

    A task whose metadata has `overrides` (a row's `overrides`) has an agent of its own, `agent_of(task)`: the mapping
    is laid over the agent section. `overridable` are the fields of the agent that it may name.
    """

    name: str = "run"
    agent: Agent
    dataset: Dataset | tuple[Task, ...] = field(converter=_dataset)
    pool: PoolLimits = field(factory=PoolLimits)
    overridable: tuple[str, ...] = ("env", "tools", "reward", "loop", "budget", "params", "outcomes")
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def tasks(self) -> Iterator[Task]:
        """The tasks, in order, read as they are asked for.

        Raises:
            ConfigError: while iterating, where a row is at fault.
        """
        return iter(self.dataset)

    def agent_of(self, task: Task) -> Agent:
        """The agent that works on `task`, for `Pool(..., agent_of=config.agent_of)`.

        Raises:
            ConfigError: its overrides do not fit; the message names the task, the path and what was found.
        """
        raise NotImplementedError

    def survey(self) -> Survey:
        """How many tasks there are and a digest of them, after a look at every row and every distinct override.

        Reads the whole dataset, so it blocks for as long as that takes.

        Raises:
            ConfigError: rows are at fault; the message lists the first of them.
        """
        raise NotImplementedError

    def to_yaml(self, *, defaults: bool = False) -> str:
        """The run as YAML, to be shown: variables stay `${NAME}`, secrets written in the file are left out.

        With `defaults`, budget, outcomes, pool and dataset are complete. What was composed in Python is named only.

        Raises:
            MissingExtraError: the extra `yaml` is not installed.
        """
        raise NotImplementedError
