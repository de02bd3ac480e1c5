"""The life of one rollout: start, interact, grade, close, again if need be, seal.

The supervisor awaits nothing but its own code: every piece of user code runs in a `Detached` task that it can end. So
it always gets to the end, on time, whoever cancels it, and whatever the model, tool, env or reward does (B1, B4).
"""

import logging
import math
from collections.abc import Sequence
from inspect import isawaitable
from typing import Any, cast

import anyio
from attrs import evolve

from agentkit.actors._guard import Abandoned, Detached, as_fault, describe
from agentkit.actors._record import Record
from agentkit.actors._services import Services
from agentkit.actors._transcript import tell_closed, tell_end, told
from agentkit.actors.agent import Agent, RewardFactory
from agentkit.actors.events import Broadcast, Ended, Mailbox
from agentkit.actors.outcomes import UNGRADED, exit_for
from agentkit.actors.rollout import Rollout
from agentkit.errors import ConfigError, SandboxDead
from agentkit.logs import enter_rollout, redact
from agentkit.protocols import (
    Attempt,
    Blame,
    Env,
    ExitReason,
    Grade,
    GradeStatus,
    Message,
    Outcome,
    Reward,
    RolloutKey,
    Score,
    Task,
    Tool,
    Trajectory,
)
from agentkit.protocols.budget import set_env_lifetime_s
from agentkit.rewards import as_score
from agentkit.tools import check_needs

logger = logging.getLogger(__name__)


class Supervisor:
    """Runs one (task, index) to its sealed trajectory."""

    def __init__(
        self,
        services: Services,
        agent: Agent,
        task: Task,
        index: int,
        *,
        mailbox: Mailbox,
        broadcast: Broadcast,
        parent: Record | None = None,
        first_attempt: int = 0,
        replaces: int | None = None,
    ) -> None:
        self._services = services
        self._agent = agent
        self._task = task
        self._index = index
        self._mailbox = mailbox
        self._broadcast = broadcast
        self._parent = parent
        self._first_attempt = first_attempt
        self._replaces = replaces
        self._cancelled = False
        self._wake = anyio.Event()
        self.rollout: Rollout | None = None

    async def run(self) -> Trajectory:
        """The sealed trajectory.

        Cancellation: the rollout ends as `cancelled`, is sealed and its env closed; then the trajectory is returned
        all the same, and the cancellation goes on at the caller's next await.
        """
        policy, attempts = self._agent.outcomes, list[Attempt]()
        while True:
            number = self._first_attempt + len(attempts)
            record, env, trajectory = await self._attempt(number, tuple(attempts))
            outcome = policy.decide(trajectory.exit_reason, trajectory.blame, trajectory.grade, attempt=len(attempts))
            again = outcome is Outcome.RETRY and not self._cancelled
            if outcome is Outcome.RETRY and not again:
                outcome = policy.exhausted
            tell_end(trajectory)
            with anyio.CancelScope(shield=True):
                try:
                    if not again:
                        # Sealed before the env closes: a close that hangs costs time, but never the record.
                        trajectory = evolve(trajectory, outcome=outcome)
                        await self._seal(trajectory)
                finally:
                    if env is not None:
                        await self._close(record, env)
            tell_closed(record.key, f"outcome: {outcome}")
            if again:
                attempts.append(Attempt(number, trajectory.exit_reason, trajectory.error, trajectory.timings.total_s))
                if await self._back_off(policy.backoff_s * 2 ** (len(attempts) - 1)):
                    continue
                # Cancelled while waiting to try again: the attempt that was given up is the one that is kept.
                trajectory = evolve(trajectory, outcome=policy.exhausted)
                with anyio.CancelScope(shield=True):
                    await self._seal(trajectory)
            self._broadcast.publish(Ended(trajectory))
            self._broadcast.close()
            return trajectory

    async def _seal(self, trajectory: Trajectory) -> None:
        if self._services.sink is not None:
            await self._services.sink.seal(trajectory)
        path = trajectory.path()
        if trajectory.exit_reason is ExitReason.FINISHED and path:
            self._mailbox.answer(path[-1].action)
        self._mailbox.abandon()

    async def _back_off(self, seconds: float) -> bool:
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            self._cancelled = True
        return not self._cancelled

    async def _attempt(self, number: int, attempts: tuple[Attempt, ...]) -> tuple[Record, Env | None, Trajectory]:
        now = anyio.current_time()
        outer = math.inf if self._parent is None else self._parent.deadline
        key = RolloutKey(self._task.id, self._index, number)
        enter_rollout(key)
        record = Record(key, self._task, self._agent.budget, started=now, deadline=outer, outer_deadline=outer)
        env: Env | None = None
        try:
            record.budget = self._agent.budget.override(self._task.budget)
            if self._parent is not None:  # its loop and its env both end within the grace of its parent
                grace_s = min(record.budget.grace_s, self._parent.budget.grace_s / 2)
                record.budget = evolve(record.budget, grace_s=grace_s)
            record.deadline = min(now + record.budget.trajectory_s, outer)
            if self._services.sink is not None:
                await self._services.sink.begin(key)
            env, tools = self._make(record)
            if record.end is None:
                await self._start(record, env, tools)
            if record.end is None:
                await self._interact(record, env, tools)
        except anyio.get_cancelled_exc_class():
            self._cancelled = True
            record.finish(ExitReason.CANCELLED, at=anyio.current_time())
        except Exception as error:  # a fault of ours is an exit reason too (B5)
            record.finish(ExitReason.INTERNAL_ERROR, at=anyio.current_time(), error=error)
        with anyio.CancelScope(shield=True):
            await self._end_children(record)
            for driven in list(record.calls):  # begun by tasks that the loop left behind
                await driven.end()
            if self.rollout is not None:
                try:
                    await self.rollout.flush()
                except Exception:  # the seal is about to meet the same sink, and says so
                    logger.debug("the last turn of %s was not written", key, exc_info=True)
        record.closed = True
        draft = record.freeze(now=anyio.current_time(), attempts=attempts, replaces=self._replaces)
        grade = await self._grade(record, draft, env)
        timings = record.timings(draft.turns, anyio.current_time())
        return record, env, evolve(draft, grade=grade, timings=timings, stuck=tuple(map(redact, record.stuck)))

    def _make(self, record: Record) -> tuple[Env | None, tuple[Tool, ...]]:
        try:
            env, tools = self._agent.make_env(), self._agent.make_tools()
        except BaseException as error:  # factories are user code, and nothing is awaited here
            fault = as_fault(error, "a factory of the agent")
            record.finish(ExitReason.ENV_START_FAILED, at=anyio.current_time(), error=fault)
            return None, ()
        if env is None or isinstance(env, Env):
            return env, tools
        error_text = f"agent.env made {env!r:.200}, which has no start and close"
        record.finish(ExitReason.ENV_START_FAILED, at=anyio.current_time(), error=error_text)
        return None, ()

    async def _start(self, record: Record, env: Env | None, tools: tuple[Tool, ...]) -> None:
        if env is None:
            record.history.extend(self._task.messages)
            return
        budget, starts, asked = record.budget, self._services.starts, anyio.current_time()
        with anyio.CancelScope(deadline=record.deadline if budget.count_waiting else record.outer_deadline) as waiting:
            await starts.acquire(record.key.task_id)
        now = anyio.current_time()
        record.queued_s = now - asked
        if waiting.cancelled_caught:
            record.finish(ExitReason.TRAJECTORY_TIMEOUT, at=now, blame=Blame.INFRASTRUCTURE)
            return
        try:
            if not budget.count_waiting:
                record.deadline = min(record.deadline + record.queued_s, record.outer_deadline)
            limit = min(now + budget.setup_s, record.deadline)
            # Beyond the deadline there is the grade, and twice the grace: to end the loop, and to close the env.
            last = record.deadline if budget.count_waiting else record.outer_deadline
            lifetime_s = last - now + budget.reward_s + 2 * budget.grace_s

            async def start() -> Sequence[Message] | None:
                set_env_lifetime_s(lifetime_s)
                return await env.start(self._task)

            started: Detached[Sequence[Message] | None] = Detached(start, name=f"{type(env).__name__}.start")
            try:
                await started.settle(deadline=limit, grace_s=budget.grace_s)
            finally:
                if not started.done.is_set() or isinstance(started.error, Abandoned):
                    record.stuck.append(started.name)
        finally:
            starts.release()
        record.setup_s = anyio.current_time() - now
        late = started.scope.cancelled_caught or isinstance(started.error, Abandoned) or not started.done.is_set()
        if late:
            reason = ExitReason.TRAJECTORY_TIMEOUT if limit < now + budget.setup_s else ExitReason.ENV_START_FAILED
            record.finish(
                reason,
                at=anyio.current_time(),
                error=f"{started.name} took longer than {limit - now:g} s",
                blame=Blame.ENVIRONMENT,
            )
        elif started.error is not None:
            # What is misconfigured is no better in a fresh env: it is not tried again.
            misconfigured = isinstance(started.fault, ConfigError)
            reason = ExitReason.INTERNAL_ERROR if misconfigured else ExitReason.ENV_START_FAILED
            record.finish(reason, at=anyio.current_time(), error=started.fault)
        else:
            said: object = self._task.messages if started.result is None else started.result
            if isinstance(said, Sequence) and all(isinstance(message, Message) for message in said):
                record.history.extend(said)
                check_needs(tools, env)  # what only the started env itself can tell
            else:
                error = f"{started.name} must return a sequence of messages or None, found {said!r}"
                record.finish(ExitReason.ENV_START_FAILED, at=anyio.current_time(), error=error)

    async def _interact(self, record: Record, env: Env | None, tools: tuple[Tool, ...]) -> None:
        self.rollout = rollout = Rollout(
            record,
            agent=self._agent,
            env=env,
            tools=tools,
            services=self._services,
            mailbox=self._mailbox,
            broadcast=told(record, self._broadcast),
            wake=self._awaken,
            is_asked=lambda: loop.is_asked(),
        )

        async def body() -> None:
            with anyio.CancelScope(deadline=record.deadline) as scope:
                rollout.enter(scope)
                loop.scopes.append(scope)
                await self._agent.loop(rollout)
            if scope.cancelled_caught:
                record.finish(ExitReason.TRAJECTORY_TIMEOUT, at=anyio.current_time())

        loop: Detached[None] = Detached(body, name=f"loop of {record.key}", on_done=self._awaken)
        try:
            await self._watch(record, loop)
        except anyio.get_cancelled_exc_class():
            self._cancelled = True
            record.finish(ExitReason.CANCELLED, at=anyio.current_time())
            await loop.end(grace_s=record.budget.grace_s)
        stuck = not loop.done.is_set() or isinstance(loop.error, Abandoned)
        if stuck:
            record.stuck.append(loop.name)
        if record.stuck:  # who refuses to end may have started others that do
            for name in loop.left_behind():
                self._services.report(f"task {name} of {record.key} does not end")
        now = anyio.current_time()
        if record.end is None and now >= record.deadline:
            record.finish(ExitReason.TRAJECTORY_TIMEOUT, at=now)
        if record.end is None and loop.error is not None:
            record.finish(exit_for(loop.error), at=now, error=loop.fault)
        record.finish(ExitReason.FINISHED, at=now)  # the loop returned of its own accord

    def _awaken(self) -> None:
        self._wake.set()

    async def _watch(self, record: Record, loop: Detached[None]) -> None:
        """Until the loop has ended, or was ended: on time even where it does not listen to its deadlines."""
        budget = record.budget
        while not loop.done.is_set():
            record.next_look = self._next_look(record)
            with anyio.CancelScope(deadline=record.next_look):
                await self._wake.wait()
            self._wake = anyio.Event()
            if loop.done.is_set():
                return
            now = anyio.current_time()
            if record.end is not None and record.refused:
                await loop.end(grace_s=max(0.0, record.end.at + budget.grace_s - now))
                return
            over = record.deadline if record.end is None else min(record.deadline, record.end.at)
            if now >= over + budget.grace_s:
                await loop.end(grace_s=0.0)
                return
            for driven, deadline in list(record.calls.items()):
                if now >= deadline + budget.grace_s and not driven.forced:
                    await driven.end()

    def _next_look(self, record: Record) -> float:
        budget = record.budget
        looks = [record.deadline, *(deadline for driven, deadline in record.calls.items() if not driven.forced)]
        if record.end is not None:
            looks.append(record.end.at)
        return min(looks) + budget.grace_s

    async def _end_children(self, record: Record) -> None:
        children = list(record.running_children)
        for child in children:
            child.cancel()
        for child in children:
            await child.settled()

    async def _grade(self, record: Record, draft: Trajectory, env: Env | None) -> Grade | None:
        reward = self._agent.reward
        if reward is None:
            return None
        status = GradeStatus.SKIPPED if self._cancelled else UNGRADED.get(draft.exit_reason)
        if status is not None:
            blame = Blame.CALLER if self._cancelled else draft.blame
            return Grade(status, blame=blame, error=f"not graded: the rollout ended as {draft.exit_reason}")
        started, budget = anyio.current_time(), record.budget
        grace_s = max(0.0, budget.grace_s - max(0.0, started - record.deadline))  # what stopping the loop has left
        try:
            judging: Detached[float | Score] = Detached(lambda: self._judge(reward, draft, env), name="reward")
            try:
                await judging.settle(deadline=started + budget.reward_s, grace_s=grace_s)
            finally:
                record.reward_s = anyio.current_time() - started
                if not judging.done.is_set() or isinstance(judging.error, Abandoned):
                    record.stuck.append(judging.name)
            late = judging.scope.cancelled_caught or isinstance(judging.error, Abandoned)
            if late or not judging.done.is_set():
                return Grade(
                    GradeStatus.TIMEOUT, blame=Blame.GRADER, error=f"the reward took longer than {budget.reward_s:g} s"
                )
            if judging.fault is not None:
                raise judging.fault
            if judging.result is None:
                raise TypeError("the reward returned None: a score is a number or a Score")
            return Grade(GradeStatus.OK, _fitting(as_score(judging.result), draft))
        except anyio.get_cancelled_exc_class():
            self._cancelled = True
            return Grade(GradeStatus.SKIPPED, blame=Blame.CALLER, error="cancelled while grading")
        except Exception as error:  # a grader's fault is a grade without a score, never a zero
            blame = Blame.ENVIRONMENT if isinstance(error, SandboxDead) else Blame.GRADER
            return Grade(GradeStatus.ERROR, blame=blame, error=redact(describe(error)))

    async def _judge(self, reward: "Reward[Any] | RewardFactory", draft: Trajectory, env: Env | None) -> float | Score:
        verdict: Any = self._agent.make_reward(reward)(draft, env)
        # A plain function will do: it has nothing to wait for, or holds the loop while it thinks.
        return cast("float | Score", await verdict if isawaitable(verdict) else verdict)

    async def _close(self, record: Record, env: Env) -> None:
        name = f"{type(env).__name__}.close of {record.key}"
        closing: Detached[None] = Detached(lambda: env.close(), name=name)
        grace_s = record.budget.grace_s
        await closing.settle(deadline=anyio.current_time() + grace_s, grace_s=0.0)
        if not closing.done.is_set() or closing.scope.cancelled_caught or isinstance(closing.error, Abandoned):
            self._services.report(f"{name} took longer than {grace_s:g} s and was abandoned")
        elif closing.error is not None:
            self._services.report(f"{name} failed: {redact(describe(closing.error))}")


def _fitting(score: Score, draft: Trajectory) -> Score:
    """The score, whose parts must match the trajectory's."""
    if score.turns is not None and len(score.turns) != len(draft.turns):
        raise ValueError(f"the score has {len(score.turns)} parts for {len(draft.turns)} turns")
    for chain, values in (score.tokens or {}).items():
        expected = len(draft.chains[chain]) if 0 <= chain < len(draft.chains) else None
        if len(values) != expected:
            raise ValueError(f"the score has {len(values)} parts for the tokens of chain {chain}, expected {expected}")
    return score
