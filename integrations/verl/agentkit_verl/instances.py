"""Instances of verl's tools, which live as long as the env of their rollout.

A tool of verl is one object for all rollouts, with an instance for each: made when a rollout first calls it, and
released when the rollout ends. A tool of an agent has no end, but its env has: `with_tools` has any env hold them.
"""

import logging
from collections.abc import Sequence
from inspect import signature
from typing import Any, Protocol, cast, runtime_checkable
from uuid import uuid4

import anyio
from attrs import define, field

from agentkit.actors.agent import EnvFactory
from agentkit.errors import ConfigError
from agentkit.protocols import Env, Message, Task
from agentkit.runs.dataset.rows import Fault
from agentkit_verl.plain import deep_merge, mapping

logger = logging.getLogger(__name__)

_RELEASE_S = 5.0


@runtime_checkable
class HoldsVerlTools(Protocol):
    """An env that holds the instances of verl's tools that its rollout made: see `with_tools`."""

    @property
    def verl_instances(self) -> "Instances":
        """The instances."""
        ...


def with_tools(env: EnvFactory | None) -> EnvFactory:
    """Envs like those of `env`, which also hold what verl's tools make for their rollout, and release it in the end.

    Such an env is to everybody else what is in it: it has its attributes and is an instance of its class.
    """

    def make() -> Env:
        return cast("Env", EnvWithTools(None if env is None else env()))

    return make


class Instances:
    """The instances of verl's tools that one rollout made. Released once, when its env closes."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._open: list[tuple[str, Any, str]] = []  # name, tool and id of all that must be released
        self._making: dict[str, anyio.Lock] = {}
        self.agent_data = AgentData()
        """What tools are called with."""

    def begin(self, task: Task) -> None:
        """Take the arguments of tools from the task's data.

        Raises:
            ConfigError: they are no object.
        """
        try:
            found = mapping(task.data.get("tools_kwargs"), "tools_kwargs")
        except Fault as error:
            raise ConfigError(f"task {task.id!r}: data.{error}") from None
        self.agent_data = AgentData(tools_kwargs=deep_merge({}, found))

    async def of(self, tool: Any, name: str) -> str:
        """The id of the rollout's instance of a tool, which is made when it is first asked for.

        Cancellation: what `create` may have made is released with the rest, if the tool takes the id that it is given.
        """
        async with self._making.setdefault(name, anyio.Lock()):
            if name not in self._ids:
                given = mapping(self.agent_data.tools_kwargs.get(name), f"tools_kwargs.{name}")
                arguments = mapping(given.get("create_kwargs"), f"tools_kwargs.{name}.create_kwargs")
                self._ids[name] = await self._create(tool, name, arguments)
            return self._ids[name]

    async def release(self) -> None:
        """Release them all, the last first; what fails is logged, for nobody could mend it now.

        Cancellation: shielded, for 5 s in all.
        """
        name = ""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _RELEASE_S) as scope:
            while self._open:
                name, tool, instance_id = self._open.pop()
                try:
                    await tool.release(instance_id)
                except Exception as error:
                    logger.warning("tool %r did not release its instance: %r", name, error)
        if scope.cancelled_caught:
            left = ", ".join(repr(each) for each, _, _ in self._open) or "none"
            logger.warning("tool %r took longer than %g s to release; not asked: %s", name, _RELEASE_S, left)

    async def _create(self, tool: Any, name: str, arguments: dict[str, Any]) -> str:
        asked = uuid4().hex if "instance_id" in signature(tool.create).parameters else ""
        opened = (name, tool, asked)
        if asked:
            self._open.append(opened)  # before it is there: half of it may be when it is cancelled
        try:
            created = await tool.create(**({"instance_id": asked} if asked else {}), create_kwargs=arguments)
        except Exception:
            if asked:
                self._open.remove(opened)
            raise
        made = str(created[0] if isinstance(created, tuple) else created)
        if asked:
            self._open.remove(opened)
        self._open.append((name, tool, made))
        return made


@define
class AgentData:
    """The `agent_data` that verl's tools are called with: what a tool may need of that of verl's own loop."""

    request_id: str = field(factory=lambda: uuid4().hex)
    tools_kwargs: dict[str, Any] = field(factory=dict)
    extra_fields: dict[str, Any] = field(factory=dict)
    metrics: dict[str, Any] = field(factory=dict)


class EnvWithTools:
    """An env, and the instances of verl's tools beside it: see `with_tools`."""

    __slots__ = ("_inner", "verl_instances")

    verl_instances: Instances
    _inner: Any

    def __init__(self, inner: Env | None = None) -> None:
        """Around `inner`, or around nothing: then the task's own messages open the conversation."""
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "verl_instances", Instances())

    @property  # type: ignore[misc]  # read-only: `isinstance` asks it where the type itself says no
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        return type(self) if self._inner is None else type(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __repr__(self) -> str:
        return f"<{self._inner!r} with verl's tools>"

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Start the env within.

        Raises:
            ConfigError: `tools_kwargs` of the task's data are no object.
        """
        self.verl_instances.begin(task)
        return None if self._inner is None else await cast("Env", self._inner).start(task)

    async def close(self) -> None:
        """Release the instances, and close the env within. Cancellation: releasing is shielded, for 5 s in all."""
        try:
            await self.verl_instances.release()
        finally:
            if self._inner is not None:
                await cast("Env", self._inner).close()
