"""One agent in one of verl's worker processes: a pool for all sessions, which each session asks for its rows.

verl makes a new loop object for each trajectory. What is worth keeping lives here, once a process: the agent, the pool
with this worker's share of the limits, the journal, and the groups under way. The pool is held open by a task of its
own, so that no session's cancellation reaches it; it ends with the event loop, or by `close`.
"""

import asyncio
import functools
import logging
import os
import socket
from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
from attrs import evolve, frozen

from agentkit.actors import Actor, Agent, Pool
from agentkit.journal import Journal
from agentkit.logs import escape, redact
from agentkit.protocols import ExitReason, GradeStatus, ObservationStatus, Outcome, Task, Trajectory
from agentkit_verl.building import Built
from agentkit_verl.groups import Group, GroupLost, GroupRules
from agentkit_verl.kinds import kinds_of
from agentkit_verl.media import prompt_media
from agentkit_verl.model import TAKEN, Taken
from agentkit_verl.outputs import Row, rows_of
from agentkit_verl.pauses import find_board
from agentkit_verl.rows import KindSpan, RowInfo
from agentkit_verl.tasks import TaskDefaults, task_of

logger = logging.getLogger(__name__)

_KEPT_AGENTS = 256
"""Agents of distinct overrides that are kept."""


def _tell(task: "asyncio.Task[None]") -> None:
    """Say why a worker ended by itself; else asyncio would, at some later time, as of an error that nobody took."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s ended: %r", task.get_name(), error)


@frozen(kw_only=True)
class SessionRows:
    """What a session hands over: rows, the whole session's facts, and what the servers said beside tokens."""

    rows: tuple[Row, ...]
    info: RowInfo
    taken: Taken
    trajectory: Trajectory | None


class Worker:
    """An agent's pool in one process."""

    def __init__(self, built: Built) -> None:
        self.built = built
        settings, config = built.entry.settings, built.entry.config
        self._settings = settings
        self._defaults = TaskDefaults(
            tools_kwargs=settings.tools_kwargs, prompt_key=built.handed.data_config.get("prompt_key", None) or "prompt"
        )
        self._rules = GroupRules(
            min_group=settings.min_group,
            fails=settings.on_lost_group == "fail" or (settings.on_lost_group == "auto" and built.refills),
        )
        self._agents: dict[Hashable, tuple[Agent, Agent]] = {}
        self._params: dict[str, Mapping[str, Any]] = {}
        self._begun: dict[Hashable, float] = {}
        share = functools.partial(_share, workers=built.workers)
        self._pool_options: dict[str, Any] = {
            "max_rollouts": share(config.pool.max_rollouts),
            "max_starts": share(config.pool.max_starts),
            "max_generations": share(config.pool.max_generations),
        }
        self._pool: Pool | None = None
        self._ends = False
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[Pool] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(), name=f"agentkit worker {config.name}")
        self._task.add_done_callback(_tell)

    @property
    def alive(self) -> bool:
        """Whether sessions can run: false once its pool has ended, by a journal that cannot be written, say."""
        return not (self._ends or self._task.done())

    async def close(self) -> None:
        """End what is under way, and close its envs.

        Cancellation: it ends all the same.
        """
        self._stop.set()
        await asyncio.wait((self._task,))

    async def _serve(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                journal = None
                if self._settings.journal is not None:
                    journal = await stack.enter_async_context(Journal.open(self._folder()))
                follower = asyncio.create_task(self._follow())
                stack.callback(follower.cancel)
                pool = Pool(self.built.entry.config.agent, sink=journal, agent_of=self._agent_of, **self._pool_options)
                self._pool = await stack.enter_async_context(pool)
                self._ready.set_result(pool)
                try:
                    await self._stop.wait()
                finally:
                    self._ends = True
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()  # whoever waits hears of it; nobody may be waiting
            raise

    def _folder(self) -> Path:
        name = f"{self.built.entry.config.name}-{socket.gethostname()}-{os.getpid()}"
        return Path(str(self._settings.journal)) / name

    async def _follow(self) -> None:
        board = await asyncio.to_thread(find_board)
        if board is not None:
            await self.built.pauses.follow(board)

    def _agent_of(self, task: Task) -> Agent:
        plain = self.built.entry.config.agent_of(task)
        params = self._params[task.id]
        key = (id(plain), repr(sorted(params.items())))
        if key not in self._agents:
            while len(self._agents) >= _KEPT_AGENTS:
                del self._agents[next(iter(self._agents))]
            self._agents[key] = plain, self.built.agent(plain, params)  # the plain one lives on, so its id is its own
        return self._agents[key][1]

    async def session(
        self, row: Mapping[str, Any], sampling_params: Mapping[str, Any], group: Group, *, number: int, validate: bool
    ) -> SessionRows:
        """Run one session to its end, wait for its siblings, and give what the batch may have of it.

        Raises:
            ConfigError: the row is no task.
            GroupLost: too few of its group are fit to train on; said to one of them.
        Cancellation: the rollout is ended, sealed and its env closed before the cancellation goes on.
        """
        taken, outcome, why = Taken(), Outcome.DROP, "failed"
        rows: tuple[Row, ...] = ()
        try:
            pool = await asyncio.shield(self._ready)
            trajectory, replaced = await self._rollout(pool, row, sampling_params, group, number, validate, taken)
            info = self._info(row, trajectory, number, replaced, taken)
            if trajectory is not None:
                kinds = self._kinds if self._settings.kinds else None
                rows = rows_of(trajectory, limits=self.built.limits, settings=self._settings, info=info, kinds=kinds)
                if rows:  # else nothing of it fits, whatever its outcome
                    outcome = trajectory.outcome
            why = _why(trajectory, outcome)
        finally:
            self.built.model.forget(taken)
            group.settle(outcome, why)
        # v0 spreads a group over workers, so that nobody here sees the whole of it: its manager does
        verdict = await group.verdict(self._rules, validate=validate or "session_id" not in row)
        if verdict != "keep" and group.tell_once():
            logger.warning("task %r is given up: of its %d sessions %s", info.task_id, group.joined, group.told())
        if verdict == "fail":
            raise GroupLost(
                f"of the {group.joined} sessions of task {info.task_id!r} too few are fit to train on: {group.told()}"
            )
        return SessionRows(rows=rows if verdict == "keep" else (), info=info, taken=taken, trajectory=trajectory)

    async def _rollout(
        self,
        pool: Pool,
        row: Mapping[str, Any],
        sampling_params: Mapping[str, Any],
        group: Group,
        number: int,
        validate: bool,
        taken: Taken,
    ) -> tuple[Trajectory | None, int]:
        """The trajectory of a session, or of what was begun in its place; None where its step was over before."""
        handed = self.built.handed
        media = await prompt_media(
            row["raw_prompt"],
            dataset_cls=handed.dataset_cls,
            data_config=handed.data_config,
            processor=handed.processor,
        )
        task = task_of(row, validate=validate, defaults=self._defaults, media=media)
        if "uid" not in row:  # then the task has the same id in every epoch
            task = evolve(task, id=f"{task.id}~{group.number}")
        if group.deadline is None:
            group.deadline = self._step_deadline(row, validate)
        deadline = group.deadline
        self._params[task.id] = dict(sampling_params)
        token = TAKEN.set(taken)
        index, replaced = number, 0
        try:
            while True:
                trajectory = await self._one(pool, task, index, deadline)
                if trajectory is None or trajectory.outcome is not Outcome.REPLACE:
                    return trajectory, replaced
                outcomes = pool.agent_of(task).outcomes
                if anyio.current_time() >= deadline or not group.take_replacement(outcomes.replacements):
                    return trajectory, replaced
                replaced += 1
                index = group.joined + group.replaced - 1
        finally:
            TAKEN.reset(token)
            if group.running <= 1:
                self._params.pop(task.id, None)

    async def _one(self, pool: Pool, task: Task, index: int, deadline: float) -> Trajectory | None:
        with anyio.CancelScope(deadline=deadline) as waiting:
            await pool.live.acquire(task.id)
        if waiting.cancelled_caught:
            return None
        try:
            budget = pool.agent_of(task).budget.override(task.budget)
            left = deadline - anyio.current_time()
            if left < budget.trajectory_s:
                task = evolve(task, budget={**task.budget, "trajectory_s": max(0.0, left)})
            actor = pool.start(task, index=index)
            # where waiting is free, a rollout's own deadline may move past that of its step
            return await _result(actor, deadline + budget.reward_s + 2 * budget.grace_s)
        finally:
            pool.live.release()

    def _step_deadline(self, row: Mapping[str, Any], validate: bool) -> float:
        """When the rollouts of this row's step end: `batch_s` after the first of them began; validation is another.

        A group that comes when its step is over was fetched in place of one that was lost: the time begins anew.
        """
        if self._settings.batch_s is None:
            return float("inf")
        step, now = row.get("global_steps"), anyio.current_time()
        if step is None and self._pool is not None and not self._pool.live.held:
            self._begun.pop((None, validate), None)  # without a step's number, a step is what runs without a break
        key = (None if step is None else int(step), validate)
        if now >= self._begun.get(key, now) + self._settings.batch_s:
            del self._begun[key]
        begun = self._begun.setdefault(key, now)
        while len(self._begun) > 64:
            del self._begun[next(iter(self._begun))]
        return begun + self._settings.batch_s

    def _kinds(self, trajectory: Trajectory, turn: Any) -> tuple[KindSpan, ...]:
        ids = trajectory.chains[turn.chain].ids[turn.start : turn.stop]
        return kinds_of(pieces_of(self.built.renderer, ids), turn.action)

    def _info(
        self, row: Mapping[str, Any], trajectory: Trajectory | None, session: int, replaced: int, taken: Taken
    ) -> RowInfo:
        name, source = self.built.entry.config.name, str(row.get("data_source", "unknown"))
        if trajectory is None:
            return RowInfo(
                task_id=str(row.get("uid", "")),
                session=session,
                agent=name,
                data_source=source,
                exit_reason="cancelled",
                blame="caller",
                outcome=str(Outcome.DROP),
                counts={"turns": 0, "sampled": 0, "replaced": replaced},
            )
        timings = trajectory.timings
        return RowInfo(
            task_id=trajectory.task_id,
            session=session,
            agent=name,
            data_source=source,
            exit_reason=str(trajectory.exit_reason),
            blame=None if trajectory.blame is None else str(trajectory.blame),
            outcome=str(trajectory.outcome),
            score=trajectory.score,
            grade=None if trajectory.grade is None else str(trajectory.grade.status),
            seconds={
                "queued": timings.queued_s,
                "setup": timings.setup_s,
                "generation": timings.generation_s,
                "tool": timings.tool_s,
                "reward": timings.reward_s,
                "total": timings.total_s,
                "synced": taken.synced_s,
            },
            counts={**_counts(trajectory), "replaced": replaced},
        )


def _share(limit: float, *, workers: int) -> float:
    """A worker's part of what the whole run may do at once, and never less than one."""
    return limit if limit == float("inf") else max(1, int(limit) // workers)


async def _result(actor: Actor, hard_deadline: float) -> Trajectory:
    try:
        with anyio.CancelScope(deadline=hard_deadline):
            await actor.settled()
        if not actor.done:
            actor.cancel()
            await actor.settled()
    except BaseException:
        actor.cancel()
        while not actor.done:  # a second native cancel gets past the shield; what the rollout holds is not let go early
            with suppress(asyncio.CancelledError), anyio.CancelScope(shield=True):
                await actor.settled()
        raise
    return await actor.result()


def _why(trajectory: Trajectory | None, outcome: Outcome) -> str:
    """Why a session came to its outcome, in a line: its end, and the error of that or of the reward."""
    if trajectory is None:
        return "verl.batch_s was over before it began"
    grade = trajectory.grade
    found = [_last_line(trajectory.error)]
    if grade is not None and grade.status is not GradeStatus.OK:
        found.append(f"no score: {_last_line(grade.error) or grade.status}")
    if outcome is Outcome.DROP and trajectory.outcome is not Outcome.DROP:
        if any(chain.mask_bytes.count(1) for chain in trajectory.chains):
            found.append("no turn fits data.max_prompt_length and data.max_response_length")
        elif trajectory.exit_reason is ExitReason.TOKEN_LIMIT:
            found.append("its opening is longer than budget.max_tokens, or than verl's prompt and response")
        else:
            found.append("nothing was sampled")
    return "; ".join([str(trajectory.exit_reason), *filter(None, found)])


def _last_line(error: str | None) -> str:
    """What was raised, of a traceback: short, without secrets, and with nothing that could forge another line."""
    lines = (error or "").strip().splitlines()
    return escape(redact(lines[-1].strip()))[:300] if lines else ""


def _counts(trajectory: Trajectory) -> dict[str, int]:
    counts: Counter[str] = Counter(turns=0, tool_calls=0, tool_errors=0, tool_timeouts=0, format_errors=0, sampled=0)
    for each in trajectory.walk():
        counts["sampled"] += sum(chain.mask_bytes.count(1) for chain in each.chains)
        counts["turns"] += len(each.turns)
        for turn in each.turns:
            counts["format_errors"] += len(turn.action.faults)
            for observation in turn.observations:
                if observation.call_id is None:
                    continue
                status = observation.status
                counts["tool_calls"] += status not in (ObservationStatus.FORMAT_ERROR, ObservationStatus.SKIPPED)
                counts["tool_errors"] += status is ObservationStatus.ERROR
                counts["tool_timeouts"] += status is ObservationStatus.TIMEOUT
    counts["attempts"] = len(trajectory.attempts) + 1
    return dict(counts)


def pieces_of(renderer: Any, token_ids: Any) -> list[str]:
    """The text that each token adds. Characters that several tokens make are added by the last of them."""
    pieces: list[str] = []
    known, begin, shown = "", 0, ""
    for stop in range(1, len(token_ids) + 1):
        text = renderer.decode(token_ids[begin:stop])
        if text.endswith("\ufffd"):
            pieces.append("")
            continue
        pieces.append(text[len(shown) :])
        known, shown = known + text[len(shown) :], text
        if stop - begin >= 16:  # a window, so that the work stays linear; it begins where a character does
            begin, shown = stop, ""
    total = renderer.decode(token_ids)
    if pieces and len(known) < len(total):
        pieces[-1] += total[len(known) :]
    return pieces
