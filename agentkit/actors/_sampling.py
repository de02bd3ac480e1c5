"""One turn of the policy: the permit, the generation, its faults, and the turn it leaves in the record."""

import math
from collections.abc import Callable
from itertools import count

import anyio

from agentkit.actors._bounds import Bounds
from agentkit.actors._guard import Abandoned
from agentkit.actors._policy import Generation, Policy
from agentkit.actors._record import OpenTurn, Record
from agentkit.actors._waiting import Waiting
from agentkit.actors.permits import FairPermits
from agentkit.errors import ConfigError, ContextOverflow, InvariantError, ModelError, RolloutEnded
from agentkit.protocols import Action, Blame, ExitReason, Finish, FinishReason, Message

_RETRY_S = 0.5  # before the first new try at a generation; doubled each time


class Sampler:
    """Samples the turns of one rollout. `end` notes an end and gives the exception to raise."""

    def __init__(
        self,
        record: Record,
        policy: Policy,
        bounds: Bounds,
        permits: FairPermits,
        *,
        retries: int,
        end: Callable[[ExitReason, BaseException | str | None], RolloutEnded],
    ) -> None:
        self._record = record
        self._policy = policy
        self._bounds = bounds
        self._permits = permits
        self._retries = retries
        self._end = end
        self._scope: anyio.CancelScope | None = None

    def enter(self, scope: anyio.CancelScope) -> None:
        """The scope that enforces the trajectory's deadline."""
        self._scope = scope

    async def next(self, pending: list[Message]) -> Action:
        """The action that answers `pending`, which is emptied once the policy has it; its turn is left open.

        Raises:
            RolloutEnded: an end was reached.
        Cancellation: what was sampled until then is recorded.
        """
        queued_s = await self._permit()  # before anything is rendered: whoever cuts the wait has lost nothing
        try:
            room = self._policy.render(pending)
            pending.clear()
            if room <= 0:
                raise self._end(ExitReason.TOKEN_LIMIT, None)
            return await self._generate(room, queued_s)
        finally:
            self._permits.release()

    async def _permit(self) -> float:
        if self._permits.take():
            return 0.0
        record, started = self._record, self._bounds.now()
        deadline = record.deadline
        if not record.budget.count_waiting:
            self._move_deadline(math.inf)
        try:
            await self._permits.acquire(record.key.task_id)
        except BaseException:
            now = self._bounds.now()
            record.queued_s += now - started
            if record.budget.count_waiting and now >= deadline:  # the policy was not even asked
                record.finish(ExitReason.TRAJECTORY_TIMEOUT, at=now, blame=Blame.INFRASTRUCTURE)
            raise
        finally:
            waited = self._bounds.now() - started
            if not record.budget.count_waiting:
                self._move_deadline(deadline + waited)
        return waited

    def _move_deadline(self, deadline: float) -> None:
        self._record.deadline = min(deadline, self._record.outer_deadline)
        if self._scope is not None:
            self._scope.deadline = self._record.deadline

    async def _generate(self, room: int, queued_s: float) -> Action:
        record, policy, bounds = self._record, self._policy, self._bounds
        turn = OpenTurn(record.begun, Action(""), queued_s=queued_s)
        generation = policy.begin(turn, room)
        started = bounds.now()
        finish: Finish | None = None
        fault: Exception | None = None
        is_cut = True
        bounds.interrupted = False
        with anyio.CancelScope(deadline=started + record.budget.generation_s) as scope:
            bounds.scopes.add(scope)
            waiting = Waiting(record, bounds, scope, self._move_deadline)
            try:
                finish = await self._ask(generation, scope, waiting)
                if generation.full:  # whatever the model makes of it, it was cut
                    finish = Finish(FinishReason.LENGTH, finish.message)
            except Abandoned:
                record.stuck.append(policy.name)
            except RolloutEnded:
                if not generation.full:
                    fault = ModelError("the model pushed into a generation that was over")
                finish = Finish(FinishReason.LENGTH)
            except Exception as error:  # whatever a model raises is its own fault, not the rollout's
                fault, is_cut = error, False
            finally:
                bounds.scopes.discard(scope)
                generation.close()
                waiting.close()
                turn.generation_s = bounds.now() - started - waiting.seconds
                turn.queued_s += waiting.seconds
                if finish is not None or generation.emitted or is_cut:
                    turn.action = generation.read(finish)
                    if finish is not None:
                        turn.stop_string, turn.min_tokens = finish.stop_string, finish.min_tokens
                    record.open(turn, generation.said(turn.action, finish))
        if fault is not None:
            raise self._end(_exit_reason(fault), fault) from fault
        if finish is None:
            if not bounds.interrupted:
                raise self._end(ExitReason.GENERATION_TIMEOUT, None)
            turn.interrupted = True
        elif finish.reason is FinishReason.ABORTED:
            raise self._end(ExitReason.MODEL_ERROR, "the server aborted the generation")
        return turn.action

    async def _ask(self, generation: Generation, scope: anyio.CancelScope, waiting: Waiting) -> Finish:
        """One generation, tried again while nothing was sampled and trying again may help."""
        for attempt in count():
            try:
                finish = await self._bounds.drive(
                    generation.ask(scope.deadline, waiting), name=self._policy.name, scope=scope
                )
                if isinstance(finish, Finish):
                    return finish
                raise ModelError(f"{self._policy.name} must return a Finish, found {finish!r}")
            except ModelError as error:
                if not error.retryable or generation.emitted or attempt >= self._retries:
                    raise
            await anyio.sleep(_RETRY_S * 2**attempt)
        raise InvariantError("the tries have no end")


def _exit_reason(fault: Exception) -> ExitReason:
    """Of a generation that failed. What the caller must mend is not tried again: another attempt would do no better."""
    if isinstance(fault, ContextOverflow):
        return ExitReason.TOKEN_LIMIT
    return ExitReason.INTERNAL_ERROR if isinstance(fault, ConfigError) else ExitReason.MODEL_ERROR
