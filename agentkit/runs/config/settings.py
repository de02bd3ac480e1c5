"""A whole run as a value: what `load_config` makes of a YAML file, and what Python code may build itself."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Literal

from attrs import field, frozen

from agentkit.actors import Agent
from agentkit.errors import ConfigError
from agentkit.journal import Codec
from agentkit.protocols import Task
from agentkit.runs.config.overrides import KEPT_AGENTS, OVERRIDABLE, OverriddenAgents, digest_of
from agentkit.runs.config.problems import Problems, nearest, shown, spell
from agentkit.runs.config.sections import AGENT_FIELDS
from agentkit.runs.config.shown import as_yaml, plain_tree, tree_of_agent, tree_of_source
from agentkit.runs.config.source import Source
from agentkit.runs.config.variables import WRITTEN, hide_in
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
            kind = int if name == "group_size" else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or not value >= 1:
                raise ConfigError(
                    f"pool.{name} must be a {'whole ' if kind is int else ''}number >= 1, found {value!r}"
                )


@frozen(kw_only=True)
class LogSettings:
    """What a run logs: from which level, as JSON lines, and one readable file a rollout."""

    level: Literal["debug", "info", "warning", "error", "critical"] = "warning"
    json: bool = False
    per_rollout: bool = False


def _dataset(value: "Dataset | Sequence[Task]") -> "Dataset | tuple[Task, ...]":
    return value if isinstance(value, Dataset) else tuple(value)


@frozen(kw_only=True)
class RunConfig:
    """Everything a run needs: an agent, the tasks it works on, and the limits of the pool.

    `load_config` makes one from YAML; the fields are the sections of the file. `secrets` are the values that came from
    environment variables or stand under keys such as `api_key`, for whoever writes logs to hide; no text that this
    class makes holds them.

    A task whose metadata has `overrides` (a row's `overrides`) has an agent of its own, `agent_of(task)`: the mapping
    is laid over the agent section. `overridable` are the fields of the agent that it may name.
    """

    name: str = "run"
    agent: Agent
    dataset: Dataset | tuple[Task, ...] = field(converter=_dataset)
    pool: PoolLimits = field(factory=PoolLimits)
    overridable: tuple[str, ...] = field(default=OVERRIDABLE, converter=tuple)
    logs: LogSettings = field(factory=LogSettings)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    _source: Source | None = field(default=None, alias="source", repr=False, eq=False)
    _agents: OverriddenAgents = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        self._check_kinds()
        for name in self.overridable:
            if name not in OVERRIDABLE:
                fixed = name in AGENT_FIELDS or name == "model"
                hint = "it is one for all tasks of a run" if fixed else nearest(name, OVERRIDABLE, kind="fields")
                raise ConfigError(f"run.overridable cannot have {name!r}: {hint}")
        agents = OverriddenAgents(self.agent, self.overridable, self._source)
        object.__setattr__(self, "_agents", agents)  # frozen, and still being made

    def _check_kinds(self) -> None:
        found: Mapping[str, object] = {name: getattr(self, name) for name in ("name", "agent", "pool", "logs")}
        for name, kind in (("name", str), ("agent", Agent), ("pool", PoolLimits), ("logs", LogSettings)):
            if not isinstance(found[name], kind):
                raise ConfigError(f"run.{name} must be of the class {kind.__name__}, found {shown(found[name])}")
        tasks: Sequence[object] = () if isinstance(self.dataset, Dataset) else self.dataset
        for number, task in enumerate(tasks):
            if not isinstance(task, Task):
                raise ConfigError(f"run.dataset[{number}] must be a Task, found {shown(task)}: Task('id', 'prompt')")

    @property
    def spells_out_secrets(self) -> bool:
        """Whether the file has a text under a key such as `api_key` that is no `${NAME}`: a copy of it has, too."""
        return self._source is not None and WRITTEN in self._source.secrets.values()

    def __repr__(self) -> str:  # arguments and params of the agent may be secret
        return f"RunConfig(name={self.name!r}, dataset={_short(self.dataset)}, pool={self.pool!r}, ...)"

    def tasks(self) -> Iterator[Task]:
        """The tasks, in order, read as they are asked for.

        Raises:
            ConfigError: while iterating, where a row is at fault.
        """
        return iter(self.dataset)

    def agent_of(self, task: Task) -> Agent:
        """The agent that works on `task`, for `Pool(..., agent_of=config.agent_of)`.

        Agents of equal overrides are one object, as long as there are not too many kinds of them.

        Raises:
            ConfigError: its overrides do not fit; the message names the task, the path and what was found.
        """
        overrides = task.metadata.get("overrides")
        if not overrides and (overrides is None or isinstance(overrides, Mapping)):
            return self.agent
        try:
            return self._agents.make(overrides)
        except Problems as error:
            raise ConfigError(f"task {task.id!r}: {self._told(error)}") from None

    def survey(self) -> Survey:
        """How many tasks there are and a digest of them, after a look at every row and every distinct override.

        Agents are made for the first distinct overrides, so that what they name is imported now; of the others only
        the form is checked. Reads the whole dataset, so it blocks for as long as that takes.

        Raises:
            ConfigError: rows are at fault; the message lists the first of them.
        """
        seen: set[str] = set()

        def check(task: Task) -> str | None:
            overrides = task.metadata.get("overrides")
            if overrides is None:
                return None
            try:
                digest = digest_of(overrides)
                if digest in seen:
                    return None
                if len(seen) < KEPT_AGENTS:
                    self._agents.make(overrides)
                else:
                    self._agents.check(overrides)
                seen.add(digest)
            except Problems as error:
                return self._told(error)
            return None

        if isinstance(self.dataset, Dataset):
            return self.dataset.survey(check)
        return _survey(self.dataset, check)

    def to_yaml(self, *, defaults: bool = False) -> str:
        """The run as YAML, to be shown: variables stay `${NAME}`, secrets written in the file are masked.

        With `defaults` the plain values are complete. What was composed in Python is named, not described.

        Raises:
            MissingExtraError: the extra `yaml` is not installed.
        """
        sections = {name: getattr(self, name) for name in ("name", "pool", "overridable", "logs")}
        if isinstance(self.dataset, Dataset):
            sections["dataset"] = self.dataset
        if self._source is not None:
            return as_yaml(tree_of_source(self._source, sections, self.agent, defaults=defaults))
        model = type(self.agent.model)
        tree: dict[str, object] = {"name": self.name, "model": f"{model.__module__}:{model.__qualname__}"}
        tree["agent"] = tree_of_agent(self.agent, defaults=defaults)
        return as_yaml({**tree, **{name: plain_tree(value) for name, value in sections.items()}})

    def hide_variables(self, text: str) -> str:
        """`text` with the value of each variable replaced by `${NAME}`, which says more than that it was hidden.

        Only values as they are: a `Redactor` of `secrets` then finds them encoded, too.
        """
        return hide_in(text, self._source.secrets) if self._source is not None else text

    def _told(self, error: Problems) -> str:
        told = "; ".join(f"{spell(('overrides', *problem.path))} {problem.text}" for problem in error.problems)
        return self.hide_variables(told)


def _short(dataset: Dataset | tuple[Task, ...]) -> str:
    return repr(dataset) if isinstance(dataset, Dataset) else f"({len(dataset)} tasks)"


def _survey(tasks: Sequence[Task], check: Callable[[Task], str | None]) -> Survey:
    """As `Dataset.survey`, of tasks that were made in Python."""
    codec, digest, seen = Codec(), sha256(), set[str]()
    for number, task in enumerate(tasks):
        fault = f"the id {task.id!r} is that of an earlier task too" if task.id in seen else check(task)
        if fault is not None:
            raise ConfigError(f"dataset[{number}]: {fault}")
        seen.add(task.id)
        overrides = json.dumps(task.metadata.get("overrides"), sort_keys=True)
        digest.update(json.dumps([task.id, codec.task_digest(task).hex(), overrides]).encode())
    return Survey(len(tasks), digest.hexdigest())
