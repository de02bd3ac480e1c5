"""A rollout as its loop sees it: sample, act, observe."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
from attrs import frozen

from agentkit.actors._bounds import Bounds
from agentkit.actors._calls import INTERRUPTED, TurnCalls, run_calls
from agentkit.actors._conversation import Bookmark, Conversation
from agentkit.actors._guard import describe
from agentkit.actors._policy import policy_of
from agentkit.actors._record import OpenTurn, Prefix, Record
from agentkit.actors._sampling import Sampler
from agentkit.actors._services import Services
from agentkit.actors.agent import Agent
from agentkit.actors.events import Answered, Broadcast, Mailbox, Observed, Sampled
from agentkit.actors.limits import count_format_errors, observation_end, turn_end
from agentkit.errors import ConfigError, RolloutEnded
from agentkit.protocols import (
    Action,
    Budget,
    Env,
    ExitReason,
    FinishReason,
    Message,
    Observation,
    ObservationStatus,
    RolloutKey,
    Steps,
    Task,
    Tool,
    Trajectory,
    as_message,
)
from agentkit.tokens import Mark

if TYPE_CHECKING:
    from agentkit.actors.actor import Actor

_CUT = "Your last message was cut off at its length limit. Be shorter."


@frozen
class Result:
    """What an action caused, and whether the rollout has ended with it."""

    observations: tuple[Observation, ...]
    done: bool


class Rollout:
    """One rollout, in the hands of its loop. `async for action in rollout` samples until an end is reached.

    Limits, deadlines and recording happen inside; the loop decides only what to do next. Once an end is reached every
    method raises `RolloutEnded`, and code that goes on regardless is stopped (invariant B6).
    """

    def __init__(
        self,
        record: Record,
        *,
        agent: Agent,
        env: Env | None,
        tools: tuple[Tool, ...],
        services: Services,
        mailbox: Mailbox,
        broadcast: Broadcast,
        wake: Callable[[], None],
        is_asked: Callable[[], bool],
    ) -> None:
        self._record = record
        self._agent = agent
        self._env = env
        self._tools = {tool.spec.name: tool for tool in tools}
        self._specs = tuple(tool.spec for tool in tools)
        self._services = services
        self._mailbox = mailbox
        self._broadcast = broadcast
        self._wake = wake
        self._id = f"{record.key}.{record.key.attempt}-{services.new_id()}"
        self.bounds = Bounds(record, wake=wake, is_asked=is_asked)
        """Where the user code of this rollout runs: for the calls of a turn."""
        policy = policy_of(agent, record, self._specs, self._id)
        self._talk = Conversation(record, policy)
        self._sampler = Sampler(
            record, policy, self.bounds, services.generations, retries=agent.model_retries, end=self.end
        )
        self._at_work: str | None = None
        self._mark: Mark = record.ledger.mark()
        self._format_errors = 0
        self._tool_timeouts = 0

    # what a loop may look at

    @property
    def id(self) -> str:
        """Names this attempt, also among those of other pools; the same for every request of the trajectory."""
        return self._id

    @property
    def key(self) -> RolloutKey:
        """Which rollout of the run this is."""
        return self._record.key

    @property
    def task(self) -> Task:
        """What is asked."""
        return self._record.task

    @property
    def env(self) -> Env | None:
        """The world, started."""
        return self._env

    @property
    def budget(self) -> Budget:
        """The limits, the task's overrides applied."""
        return self._record.budget

    @property
    def remaining_s(self) -> float:
        """Seconds until the trajectory's deadline."""
        return max(0.0, self._record.deadline - self.bounds.now())

    @property
    def turns(self) -> int:
        """How many turns have begun."""
        return self._record.begun

    @property
    def messages(self) -> Prefix:
        """The conversation so far; a view, not a copy."""
        return Prefix(self._record.history)

    @property
    def ended(self) -> bool:
        """Whether an end has been reached."""
        return self._record.end is not None

    # what a loop may do

    def __aiter__(self) -> "Rollout":
        return self

    async def __anext__(self) -> Action:
        try:
            return await self.sample()
        except RolloutEnded:
            raise StopAsyncIteration from None

    async def sample(self) -> Action:
        """The policy's next action.

        Raises:
            RolloutEnded: an end was reached; the trajectory says which.
            ConfigError: nothing was said since the last action, or another `sample` or `act` is under way.
        Cancellation: what was sampled until then is recorded.
        """
        await self._refuse_after_end()
        await self._begin("sample")
        try:
            return await self._sample()
        finally:
            self._at_work = None

    async def candidates(self, count: int) -> tuple[Action, ...]:
        """`count` actions that answer the same prompt, one sampled after another; `act` takes one, and drops the rest.

        All of them are turns of the trajectory, trained as their tokens were sampled, each on a chain that shares the
        prompt. There are fewer where `max_turns` allows no more, or an interrupt cuts one short. Without an `act` or
        `take` the conversation goes on from the last.

        Raises:
            RolloutEnded: an end was reached; the trajectory says which.
            ConfigError: as for `sample`, or `count` is below 1.
        Cancellation: what was sampled until then is recorded.
        """
        await self._refuse_after_end()
        if count < 1:
            raise await self._refusal(f"rollout.candidates takes a count of at least 1, found {count!r}")
        await self._begin("candidates")
        record = self._record
        try:
            actions = [await self._sample()]
            while len(actions) < count and not record.open_turns[-1].interrupted:
                if turn_end(record.budget, turns=record.begun):
                    break
                self._talk.start_over()
                actions.append(await self._next())
            return tuple(actions)
        finally:
            self._at_work = None

    async def _sample(self) -> Action:
        record = self._record
        await self._close_turns()
        for message in self._mailbox.take():
            self._talk.tell(message)
        if reason := turn_end(record.budget, turns=len(record.turns)):
            raise self.end(reason)
        if not record.turns:
            record.prompt = tuple(record.history)
            record.heard, record.rewritten = [], False
        return await self._next()

    async def _next(self) -> Action:
        record = self._record
        try:
            action = await self._sampler.next(self._talk.to_answer())
        except ConfigError as error:
            raise await self._refusal(str(error)) from error
        if self._broadcast:
            self._broadcast.publish(Sampled(record.tip, action))
        return action

    async def act(self, action: Action) -> Result:
        """Run the action's tool calls, or step the env; the observations are appended for the next turn.

        Of several candidates any may be taken; the conversation goes on from it. An action without a call ends the
        rollout as `finished`, unless the env answers it, the action was cut short, or an interrupt cut it: then the
        next message of the mailbox is awaited.

        Raises:
            RolloutEnded: the rollout had ended before.
            ConfigError: `action` is neither the one sampled last nor one of the last candidates, or another `sample` or
                `act` is under way.
        Cancellation: calls under way are cancelled; the others are recorded as `skipped`.
        """
        await self._refuse_after_end()
        await self._begin("act")
        try:
            turn = self._talk.take(action)
            if turn is None or turn.observations:
                raise await self._refusal("rollout.act takes the action that was sampled last, once")
            return await self._act(action, turn)
        finally:
            self._at_work = None

    async def _act(self, action: Action, turn: OpenTurn) -> Result:
        started = self.bounds.now()
        calls = TurnCalls(action.attempts)
        try:
            if turn.interrupted:
                await self._await_user()
            elif action.attempts:
                await run_calls(calls, self, self._tools)
            elif self._env is not None and isinstance(self._env, Steps):
                turn.observations = (await self._step(self._env, action),)
            elif action.finish is FinishReason.LENGTH:
                turn.observations = (Observation(_CUT, status=ObservationStatus.FORMAT_ERROR),)
            else:
                self.end(ExitReason.FINISHED)
        finally:
            if action.attempts and not turn.interrupted:
                turn.observations = calls.answered()
            turn.tool_s = self.bounds.now() - started
            for observation in turn.observations:
                self._talk.say(observation.message())
        self._count(action, calls, turn)
        await self._close_turns()
        if self.bounds.interrupted and not turn.interrupted and not self.ended:
            await self._await_user()
        if self._broadcast:
            self._broadcast.publish(Observed(turn.index, turn.observations))
        return Result(turn.observations, done=self.ended)

    def observe(self, *messages: Message | str) -> None:
        """Say something to the policy before its next turn; a string is a user message.

        Raises:
            RolloutEnded: the rollout has ended.
            ConfigError: one of them is neither a message nor a string.
        """
        self._refuse_now()
        for message in messages:
            self._talk.tell(as_message(message))

    def finish(self) -> None:
        """End the rollout as `finished`."""
        self.end(ExitReason.FINISHED)

    def rewrite(self, messages: Sequence[Message | str]) -> None:
        """Go on from `messages` instead of the conversation so far (compaction); a string is a user message.

        The next turn forks the chain after the last turn up to which both conversations are the same, if the template
        lets the other messages follow it, and else starts a new chain. What was sampled stays as it was.

        Raises:
            RolloutEnded: the rollout has ended.
            ConfigError: one of them is neither a message nor a string, or `sample` or `act` is under way.
        """
        self._refuse_now("rewrite")
        self._talk.rewrite([as_message(message) for message in messages])

    def rollback(self, turns: int = 1) -> None:
        """Go back to before the last turn, or the last `turns`, of the conversation: the next `sample` tries again.

        The policy sees the same prompt as before, on a fork of its chain. Only the conversation goes back: the turns
        stay in the trajectory, and count towards `max_turns`; the env and whatever tools did stay as they are.

        Raises:
            RolloutEnded: the rollout has ended.
            ConfigError: the conversation has fewer turns, or `sample` or `act` is under way.
        """
        self._refuse_now("rollback")
        self._talk.rollback(turns)

    def take(self, action: Action) -> None:
        """Go on from one of the last candidates without acting on it: the others are dropped.

        Raises:
            RolloutEnded: the rollout has ended.
            ConfigError: `action` is none of them, or `sample` or `act` is under way.
        """
        self._refuse_now("take")
        if self._talk.take(action) is None:
            raise ConfigError("rollout.take takes one of the candidates sampled last, not acted on yet")

    def bookmark(self) -> Bookmark:
        """Where the conversation is now, to come back to with `back_to`, any number of times.

        Raises:
            RolloutEnded: the rollout has ended.
            ConfigError: `sample` or `act` is under way.
        """
        self._refuse_now("bookmark")
        return self._talk.here()

    def back_to(self, bookmark: Bookmark) -> None:
        """Go on from an earlier place of the conversation, or one of another branch: see `rollback` for what stays.

        Raises:
            RolloutEnded: the rollout has ended.
            ConfigError: it is the bookmark of another rollout, or `sample` or `act` is under way.
        """
        self._refuse_now("back_to")
        self._talk.back_to(bookmark)

    async def answer(self, action: Action) -> bool:
        """Give `action` to whoever asked, and wait for the next user message; False once the mailbox is closed.

        Cancellation: no message is lost.
        """
        await self._refuse_after_end()
        self._talk.take(action)
        await self._close_turns()
        self._mailbox.answer(action)
        if self._broadcast:
            self._broadcast.publish(Answered(self._record.tip, action))
        return await self._await_user()

    async def receive(self) -> tuple[Message, ...]:
        """Messages told to this rollout, waiting for the first; empty once the mailbox is closed. Not observed yet.

        Cancellation: no message is lost.
        """
        await self._refuse_after_end()
        return tuple(await self._mailbox.receive())

    async def child(self, agent: Agent, task: Task | str, *, index: int | None = None) -> Trajectory:
        """Run a sub-agent within what remains of this rollout's time; its trajectory becomes a child of this one's.

        Raises:
            RolloutEnded: this rollout has ended.
        Cancellation: the sub-agent is cancelled and sealed first.
        """
        await self._refuse_after_end()
        child = self.start_child(agent, task, index=index)
        try:
            return await child.result()
        except BaseException:
            child.cancel()
            with anyio.CancelScope(shield=True):
                await child.settled()
            raise

    def start_child(self, agent: Agent, task: Task | str, *, index: int | None = None) -> "Actor":
        """Start a sub-agent and give a handle on it; what has not ended when this rollout ends is cancelled then.

        Raises:
            RolloutEnded: this rollout has ended.
        """
        self._refuse_now()
        number = self._record.children_begun if index is None else index
        self._record.children_begun += 1
        if isinstance(task, str):
            task = Task(f"{self._record.key}/{agent.name}", task)
        return self._services.start_child(agent, task, number, parent=self._record)

    async def _begin(self, what: str) -> None:
        if self._at_work is not None:
            raise await self._refusal(
                f"rollout.{what} was called while {self._at_work} is under way: a rollout has one loop"
            )
        self._at_work = what

    def _refuse_now(self, what: str | None = None) -> None:
        if self._record.end is not None:
            raise RolloutEnded(f"the rollout has ended: {self._record.end.reason}")
        if what is not None and self._at_work is not None:
            raise ConfigError(f"rollout.{what} was called while {self._at_work} is under way")

    async def _refusal(self, message: str) -> ConfigError:
        # A loop that catches everything and tries again must not hold the event loop.
        await anyio.lowlevel.checkpoint()
        return ConfigError(message)

    # used by the supervisor, the calls of a turn, and actors

    def enter(self, scope: anyio.CancelScope) -> None:
        """The scope that enforces the trajectory's deadline."""
        self._sampler.enter(scope)

    def end(self, reason: ExitReason, error: BaseException | str | None = None) -> RolloutEnded:
        """Note an end; gives the exception to raise."""
        self._record.finish(reason, at=self.bounds.now(), error=error)
        self._wake()
        return RolloutEnded(f"the rollout has ended: {reason}")

    def interrupt(self) -> None:
        """Cut the generation or the calls under way short; the loop goes on with what the mailbox says."""
        self.bounds.interrupt()

    async def flush(self) -> None:
        """Write what the sink has not seen yet."""
        await self._close_turns()

    async def _refuse_after_end(self) -> None:
        record = self._record
        if record.end is None:
            return
        await anyio.lowlevel.checkpoint()
        if record.refused:  # this is not the first time: whoever catches everything may wait for the supervisor
            self._wake()
            await anyio.sleep_forever()
        record.refused = True
        raise RolloutEnded(f"the rollout has ended: {record.end.reason}")

    async def _step(self, env: Steps, action: Action) -> Observation:
        limit_s, name = self._record.budget.tool_s, f"{type(env).__name__}.step"
        try:
            observation, timed_out = await self.bounds.run(lambda: env.step(action), name=name, limit_s=limit_s)
        except Exception as error:  # an env that fails to answer can carry no further turn
            self.end(ExitReason.ENV_DEAD, error)
            return Observation(f"The environment failed: {describe(error)}", status=ObservationStatus.ERROR)
        if self.bounds.interrupted:
            return Observation(INTERRUPTED, status=ObservationStatus.SKIPPED)
        if timed_out:
            self._tool_timeouts += 1
            return Observation(f"Timed out after {limit_s:g} s.", status=ObservationStatus.TIMEOUT)
        if not isinstance(observation, Observation):
            self.end(ExitReason.ENV_DEAD, f"{name} must return an Observation, found {observation!r}")
            return Observation("The environment failed.", status=ObservationStatus.ERROR)
        if observation.done:
            self.end(ExitReason.FINISHED)
        return observation

    def _count(self, action: Action, calls: TurnCalls, turn: OpenTurn) -> None:
        if turn.interrupted:
            return
        self._format_errors = count_format_errors(action, valid=calls.valid, consecutive=self._format_errors)
        self._tool_timeouts += calls.timeouts
        reason = observation_end(
            self._record.budget, format_errors=self._format_errors, tool_timeouts=self._tool_timeouts
        )
        if reason is not None:
            self.end(reason)

    async def listen(self) -> bool:
        """Wait for the mailbox and observe what it holds; once it is closed the rollout is `finished`, and this False.

        Raises:
            RolloutEnded: an end was reached before.
        Cancellation: no message is lost.
        """
        await self._refuse_after_end()
        return await self._await_user()

    async def _await_user(self) -> bool:
        messages = await self._mailbox.receive()
        for message in messages:
            self._talk.tell(message)
        if not messages:
            self.end(ExitReason.FINISHED)
        return bool(messages)

    async def _close_turns(self) -> None:
        record, sink = self._record, self._services.sink
        for turn in self._talk.settled():
            if sink is not None:
                deltas = record.ledger.deltas(self._mark)
                self._mark = record.ledger.mark()
                await sink.append(record.key, turn, deltas)
