"""Many rollouts at once: limits, fairness, back-pressure, groups, and one place where all of it ends."""

import inspect
import logging
import math
from collections.abc import (
    Callable,
    Container,
    Coroutine,
    Iterator,
)
from itertools import count
from secrets import token_hex
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import anyio
from anyio.abc import TaskGroup

from agentkit.actors._record import Record
from agentkit.actors._services import Services
from agentkit.actors._source import Source, Tasks, as_task
from agentkit.actors.actor import Actor
from agentkit.actors.agent import Agent
from agentkit.actors.permits import FairPermits
from agentkit.actors.run import Run
from agentkit.errors import AgentkitError, ConfigError, InvariantError
from agentkit.protocols import Sink, Task
from agentkit.tools import stuck_threads

logger = logging.getLogger(__name__)


@runtime_checkable
class Resumable(Protocol):
    """A sink that knows what an earlier run left: the pool skips what is sealed and numbers attempts after those."""

    def sealed(self) -> Container[tuple[str, int]]:
        """The (task id, index) pairs that are sealed."""
        ...

    def next_attempt(self, task_id: str, index: int, /) -> int:
        """The number of the next attempt at a rollout."""
        ...


@runtime_checkable
class Replacing(Protocol):
    """A resumable sink that also knows which replacements an earlier run still owed when it was cut off."""

    def replaced(self, task_id: str, /) -> int:
        """How many of the rollouts of a task that are sealed have the outcome `replace`."""
        ...


class Pool:
    """Runs an agent's rollouts concurrently; `async with` bounds their lives.

    `agent_of`, if given, says which agent works on a task instead; it is asked once for each task of a run, so that all
    rollouts of a group, retries and replacements included, have the same. It must be quick, and not async.

    `max_rollouts` limits live rollouts, `max_starts` envs that start at once, `max_generations` requests to the model;
    permits are handed out fairly across groups. `group_size` rollouts are made of each task. Leaving the block cancels
    what is left, seals it, closes every env, and logs what could not be ended (`stuck`).
    """

    def __init__(
        self,
        agent: Agent,
        *,
        max_rollouts: float = 256,
        max_starts: float = 16,
        max_generations: float = math.inf,
        group_size: int = 1,
        sink: Sink | None = None,
        agent_of: Callable[[Task], Agent] | None = None,
    ) -> None:
        if inspect.iscoroutinefunction(agent_of):
            raise ConfigError(f"pool.agent_of must be a function of a task that is not async, found {agent_of!r}")
        if group_size < 1:
            raise ConfigError(f"pool.group_size must be at least 1, found {group_size!r}")
        if sink is not None and not isinstance(sink, Sink):
            raise ConfigError(
                f"pool.sink must have begin, append and seal, found {sink!r}: "
                "`async with Journal.open(folder) as journal`, then sink=journal"
            )
        self._id, self._requests = token_hex(4), count()
        self.agent = agent
        self._agent_of = agent_of
        self.group_size = group_size
        self.live = FairPermits(max_rollouts, name="pool.max_rollouts")
        self._reports: list[str] = []
        self._services = Services(
            self._new_id,
            self._start_child,
            self._reports.append,
            sink,
            FairPermits(max_starts, name="pool.max_starts"),
            FairPermits(max_generations, name="pool.max_generations"),
        )
        self._group: TaskGroup | None = None
        self._under_way: set[tuple[str, int]] = set()
        self._numbers = count()

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        group, self._group = self._group, None
        if group is None:
            raise InvariantError("a pool was left that was not entered")
        group.cancel_scope.cancel()
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        try:
            if cancelled:
                return await group.__aexit__(kind, error, trace)
            # An exception of the block goes on as it is: the group would wrap it, or take it for its own cancellation.
            await group.__aexit__(None, None, None)
            return None
        except BaseExceptionGroup as errors:
            faults = list(_leaves(errors))
            if all(isinstance(fault, AgentkitError) for fault in faults):  # the sink's, say: the first says it all
                raise faults[0] from errors
            raise
        finally:
            for name in self.stuck:
                logger.warning("left behind: %s", name)

    @property
    def stuck(self) -> tuple[str, ...]:
        """What could not be ended or closed so far, and user threads that still run."""
        return (*self._reports, *stuck_threads())

    def _new_id(self) -> str:
        return f"{self._id}.{next(self._requests)}"

    def pause(self) -> None:
        """Begin no generation until `resume`, while weights are synchronised, say; those under way go on."""
        self._services.generations.pause()

    def resume(self) -> None:
        """Let generations begin again."""
        self._services.generations.resume()

    def start(self, task: Task | str, *, index: int = 0) -> Actor:
        """Start one rollout now, past `max_rollouts`, and give a handle on it. A string is a user message.

        Raises:
            ConfigError: the pool is not entered or already left, this rollout is under way or sealed, or `agent_of`
                gave no agent.
        """
        self._open_group()
        if isinstance(task, str):
            task = as_task(task, next(self._numbers))
        if (task.id, index) in self.sealed():
            raise ConfigError(f"rollout {task.id}#{index} is sealed in the sink: give another task id or index")
        agent = self.agent_of(task)
        self.claim(task.id, index)
        actor = self.actor(agent, task, index)
        self.spawn(self._run_started, actor, name=f"rollout {actor.key}")
        return actor

    async def _run_started(self, actor: Actor) -> None:
        try:
            await actor.run()
        finally:
            self.release(actor.key.task_id, actor.key.index)

    def claim(self, task_id: str, index: int) -> None:
        """Note that a rollout is begun.

        Raises:
            ConfigError: it is under way in this pool already.
        """
        if (task_id, index) in self._under_way:
            raise ConfigError(f"rollout {task_id}#{index} is under way: give another task id or index")
        self._under_way.add((task_id, index))

    def release(self, task_id: str, index: int) -> None:
        """Note that a rollout has ended."""
        self._under_way.discard((task_id, index))

    def agent_of(self, task: Task) -> Agent:
        """The agent that works on `task`.

        Raises:
            ConfigError: the pool was given a function for this, and it returned something else.
        """
        if self._agent_of is None:
            return self.agent
        agent: object = self._agent_of(task)
        if not isinstance(agent, Agent):
            raise ConfigError(f"pool.agent_of must return an Agent for task {task.id!r}, found {agent!r:.200}")
        return agent

    def actor(self, agent: Agent, task: Task, index: int, *, replaces: int | None = None) -> Actor:
        """A handle on a rollout that is not running yet; `Pool.start` is what you want."""
        sink: object = self._services.sink
        first = sink.next_attempt(task.id, index) if sink is not None and isinstance(sink, Resumable) else 0
        return Actor(self._services, agent, task, index, first_attempt=first, replaces=replaces)

    def spawn(self, function: Callable[..., Coroutine[Any, Any, object]], *args: object, name: str) -> None:
        """Run `function(*args)` until the pool is left.

        Raises:
            ConfigError: the pool is not entered, or already left.
        """
        self._open_group().start_soon(function, *args, name=name)

    def _open_group(self) -> TaskGroup:
        if self._group is None:
            raise ConfigError("the pool is not open: use it inside `async with Pool(...) as pool`")
        return self._group

    def sealed(self) -> Container[tuple[str, int]]:
        """The (task id, index) pairs that the sink held sealed when asked."""
        sink: object = self._services.sink
        return sink.sealed() if sink is not None and isinstance(sink, Resumable) else ()

    def replaced(self, task_id: str) -> int:
        """How many sealed rollouts of a task were to be replaced, as far as the sink knows."""
        sink: object = self._services.sink
        return sink.replaced(task_id) if isinstance(sink, Replacing) else 0

    def run(self, tasks: Tasks) -> Run:
        """The rollouts of `tasks`: iterate for trajectories as they finish, await for a list, enter to leave early.

        Rollouts that the sink already holds sealed are skipped. Tasks are taken from the source only as rollouts end.
        """
        return Run(self, Source(tasks))

    def _start_child(self, agent: Agent, task: Task, index: int, *, parent: Record) -> Actor:
        # A child is sealed within its parent's trajectory, so it has no sink of its own.
        services = Services(
            self._services.new_id,
            self._start_child,
            self._reports.append,
            None,
            self._services.starts,
            self._services.generations,
        )
        actor = Actor(services, agent, task, index, parent=parent)
        parent.running_children.append(actor)
        self.spawn(self._tend_child, actor, parent, name=f"child {actor.key}")
        return actor

    async def _tend_child(self, actor: Actor, parent: Record) -> None:
        try:
            parent.children.append(await actor.run())
        finally:
            parent.running_children.remove(actor)


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
