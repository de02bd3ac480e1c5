"""Thousands of rollouts under a plan of faults, in the production loop, on virtual time: what must hold is checked."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
from anyio.lowlevel import checkpoint
from attrs import evolve, frozen

from agentkit.actors import Agent, Pool
from agentkit.errors import AgentkitError, ConfigError
from agentkit.journal import Journal, JournalReader
from agentkit.protocols import Outcome, RolloutKey, Task, Trajectory
from agentkit.testing.clocks import BackendOptions, virtual_asyncio, virtual_trio
from agentkit.testing.faulty_parts import faulty_agent
from agentkit.testing.plan import FaultPlan
from agentkit.testing.report import Problem, SimulationReport
from agentkit.testing.simulated import simulated_agent, simulated_task
from agentkit.testing.sinks import MortalSink, Resumable, ResumableSink
from agentkit.testing.witness import Witness

Loop = Literal["asyncio", "trio"]


def simulate(
    plan: FaultPlan,
    *,
    rollouts: int | None = None,
    agent: Agent | None = None,
    tasks: Iterable[Task] | None = None,
    group_size: int = 1,
    max_rollouts: int = 256,
    journal: "str | os.PathLike[str] | None" = None,
    backend: Loop = "asyncio",
) -> SimulationReport:
    """Run a `Simulation` on a virtual event loop of its own, and report.

    Raises:
        ConfigError: see `Simulation`.
    """
    simulation = Simulation(
        plan,
        rollouts=rollouts,
        agent=agent,
        tasks=tasks,
        group_size=group_size,
        max_rollouts=max_rollouts,
        journal=journal,
    )
    name, options = _options(backend)
    return anyio.run(simulation.run, backend=name, backend_options=options)


def replay(
    plan: FaultPlan,
    task: Task | str,
    index: int = 0,
    *,
    attempt: int = 0,
    agent: Agent | None = None,
    backend: Loop = "asyncio",
) -> Trajectory:
    """One rollout of a simulation alone: with the same plan, agent and task it meets the same faults and the same end.

    `task` is the task, or the id of one that a simulation without tasks made. `attempt` is the one it began with, which
    is not 0 where the host died before.
    """
    task = simulated_task(task) if isinstance(task, str) else task
    witness = Witness()
    faulty = faulty_agent(agent or simulated_agent(), evolve(plan, deaths=0), witness=witness)
    begun = [RolloutKey(task.id, index, attempt - 1)] if attempt else []

    async def run() -> Trajectory:
        async with Pool(faulty, sink=ResumableSink(begun_before=begun)) as pool:
            return await pool.start(task, index=index).result()

    name, options = _options(backend)
    return anyio.run(run, backend=name, backend_options=options)


def _options(backend: str) -> BackendOptions:
    if backend not in ("asyncio", "trio"):
        raise ConfigError(f"backend must be 'asyncio' or 'trio', found {backend!r}")
    return virtual_asyncio() if backend == "asyncio" else virtual_trio()


@frozen(kw_only=True)
class _Sitting:
    """What one host process left."""

    died: bool
    left: tuple[str, ...]
    stuck: tuple[str, ...]


def _tasks(tasks: Iterable[Task] | None, rollouts: int | None, group_size: int) -> tuple[Task, ...]:
    if tasks is not None:
        if rollouts is not None:
            raise ConfigError("give a simulation its rollouts or its tasks: of tasks it makes group_size rollouts each")
        return tuple(tasks)
    number = 300 * group_size if rollouts is None else rollouts
    if number < 1 or number % group_size:
        raise ConfigError(f"rollouts must be a multiple of group_size {group_size}, and at least 1, found {number!r}")
    return tuple(simulated_task(f"task-{n}") for n in range(number // group_size))


class Simulation:
    """Rollouts of an agent under a plan of faults, all of what must hold being checked.

    Without an `agent` a built-in one runs; any other is wrapped by `faulty_agent`. `tasks` are its tasks; without them
    `rollouts` are made of built-in ones (300 where it is not said). Replacements are counted beside what was asked for.
    What is sealed is kept in memory, or with `journal`, a folder, in a real journal that writes on the event loop; a
    host that dies is started again and goes on from there.

    Raises:
        ConfigError: rollouts and tasks do not fit each other.
    """

    def __init__(
        self,
        plan: FaultPlan,
        *,
        rollouts: int | None = None,
        agent: Agent | None = None,
        tasks: Iterable[Task] | None = None,
        group_size: int = 1,
        max_rollouts: int = 256,
        journal: "str | os.PathLike[str] | None" = None,
    ) -> None:
        self.plan = plan
        self.tasks = _tasks(tasks, rollouts, group_size)
        self.witness = Witness()
        self.agent = faulty_agent(agent or simulated_agent(), plan, witness=self.witness)
        self._group_size = group_size
        self._max_rollouts = max_rollouts
        self._journal = journal

    async def run(self) -> SimulationReport:
        """Run it on the event loop that runs, which must be on virtual time, and report.

        Cancellation: the rollouts are cancelled, and no report is made.
        """
        started, backend = anyio.current_time(), _running_loop()
        before = await _settled()
        sittings: list[_Sitting] = []
        async with self._sink() as sink:
            while not sittings or sittings[-1].died:
                sittings.append(await self._sit(sink, number=len(sittings), before=before))
            trajectories = tuple(sink.trajectories) if isinstance(sink, ResumableSink) else ()
        if self._journal is not None:
            with JournalReader.open(self._journal) as reader:
                trajectories = tuple(reader.trajectories())
        return SimulationReport(
            self.plan,
            backend,
            len(self.tasks) * self._group_size,
            trajectories,
            tuple(name for sitting in sittings for name in sitting.left),
            tuple(self._problems(trajectories)),
            dict(self.witness.struck),
            tuple(name for sitting in sittings for name in sitting.stuck),
            len(sittings),
            anyio.current_time() - started,
        )

    @asynccontextmanager
    async def _sink(self) -> AsyncIterator[Resumable]:
        if self._journal is None:
            yield ResumableSink()
        else:
            async with Journal.open(self._journal, writer="inline") as journal:
                yield journal

    async def _sit(self, sink: Resumable, *, number: int, before: Sequence[str]) -> _Sitting:
        """One host process: it runs what is not sealed, until all is or it dies."""
        mortal = MortalSink(sink, self._dies_after(number, sink))
        pool = Pool(
            self.agent,
            max_rollouts=self._max_rollouts,
            max_starts=max(1, self._max_rollouts // 4),
            max_generations=max(1, self._max_rollouts // 2),
            group_size=self._group_size,
            sink=mortal,
        )
        try:
            async with pool:
                async for _ in pool.run(self.tasks):
                    pass
        except AgentkitError:
            if not mortal.dead:
                raise
        after = Counter(await _settled())
        after.subtract(before)
        left = [f"task {name}" for name, count in after.items() for _ in range(count)]
        left += list(self.witness.open.values())
        left += [f"{held} permits {name}" for name, held in _held(pool).items() if held]
        self.witness.open.clear()
        return _Sitting(died=mortal.dead, left=tuple(left), stuck=pool.stuck)

    def _dies_after(self, number: int, sink: Resumable) -> int | None:
        if number >= self.plan.deaths:
            return None
        sealed = sink.sealed()
        live = sum((task.id, index) not in sealed for task in self.tasks for index in range(self._group_size))
        # A rollout writes at least two records, so within this share of what is left it dies for certain.
        share = 2 * live / (self.plan.deaths - number)
        return 1 + int(self.plan.draw("death", RolloutKey("", 0), number) * share)

    def _problems(self, trajectories: Sequence[Trajectory]) -> list[Problem]:
        asked = {(task.id, index) for task in self.tasks for index in range(self._group_size)}
        sealed = Counter((trajectory.task_id, trajectory.key.index) for trajectory in trajectories)
        found = [Problem(RolloutKey(*rollout), "it was not sealed") for rollout in sorted(asked - set(sealed))]
        found += [Problem(RolloutKey(*rollout), "it was sealed twice") for rollout, n in sealed.items() if n > 1]
        found += [Problem(key, what) for key, what in self.witness.problems]
        for trajectory in trajectories:
            key = trajectory.key
            first = RolloutKey(key.task_id, key.index, key.attempt - len(trajectory.attempts))
            wrong = [what for each in trajectory.walk() for what in self.witness.verify(each)]
            wrong += _ends(trajectory, self.agent)
            if (key.task_id, key.index) not in asked and trajectory.replaces is None:
                wrong.append("nobody asked for it")
            found += [Problem(first, what) for what in wrong]
        return found


def _ends(trajectory: Trajectory, agent: Agent) -> list[str]:
    """What is wrong with the time it took (B1), and with what is to be done with it."""
    budget, timings = agent.budget.override(trajectory.task.budget), trajectory.timings
    limit_s = budget.trajectory_s + budget.reward_s + budget.grace_s
    taken_s = timings.total_s - (0.0 if budget.count_waiting else timings.queued_s)
    wrong = [f"it took {taken_s:.1f} s, at most {limit_s:.1f} were allowed"] if taken_s > limit_s + 0.01 else []
    if trajectory.outcome is Outcome.RETRY:
        wrong.append("it was sealed to be tried again")
    if agent.reward is not None and trajectory.grade is None:
        wrong.append("it has no grade")
    return wrong


def _held(pool: Pool) -> dict[str, int]:
    services = pool._services
    return {
        "to live": pool.live.held,
        "to start": services.starts.held,
        "to generate": services.generations.held,
        "waited for": pool.live.waiting + services.starts.waiting + services.generations.waiting,
    }


async def _settled() -> list[str]:
    """The names of the tasks that run, once those that are about to end have ended."""
    for _ in range(20):
        await checkpoint()
    return sorted(str(info.name) for info in anyio.get_running_tasks())


def _running_loop() -> Loop:
    return "trio" if hasattr(anyio.lowlevel.current_token().native_token, "run_sync_soon") else "asyncio"
