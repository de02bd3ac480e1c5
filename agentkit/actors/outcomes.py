"""How rollouts end, whose fault that is, and what the trainer should do about it: plain values and functions."""

from collections.abc import Mapping

from attrs import field, frozen

from agentkit.errors import BudgetExceeded, ConfigError, ContextOverflow, ModelError, SandboxDead
from agentkit.protocols import Blame, ExitReason, Grade, GradeStatus, Outcome

_BLAME: Mapping[ExitReason, Blame | None] = {
    ExitReason.FINISHED: None,
    ExitReason.TURN_LIMIT: Blame.POLICY,
    ExitReason.TOKEN_LIMIT: Blame.POLICY,
    ExitReason.FORMAT_ERRORS: Blame.POLICY,
    ExitReason.TRAJECTORY_TIMEOUT: Blame.POLICY,
    ExitReason.TOOL_TIMEOUTS: Blame.POLICY,
    ExitReason.GENERATION_TIMEOUT: Blame.INFRASTRUCTURE,
    ExitReason.MODEL_ERROR: Blame.INFRASTRUCTURE,
    ExitReason.INTERNAL_ERROR: Blame.INFRASTRUCTURE,
    ExitReason.ENV_START_FAILED: Blame.ENVIRONMENT,
    ExitReason.ENV_DEAD: Blame.ENVIRONMENT,
    ExitReason.CANCELLED: Blame.CALLER,
}

UNGRADED: Mapping[ExitReason, GradeStatus] = {
    ExitReason.ENV_START_FAILED: GradeStatus.ERROR,
    ExitReason.ENV_DEAD: GradeStatus.ERROR,
    ExitReason.MODEL_ERROR: GradeStatus.SKIPPED,
    ExitReason.INTERNAL_ERROR: GradeStatus.SKIPPED,
    ExitReason.CANCELLED: GradeStatus.SKIPPED,
}
"""Ends that the reward is not asked about: the fault is not the policy's, so no score may stand for it."""


def blame_for(reason: ExitReason) -> Blame | None:
    """Whose fault an exit reason is; None where nobody's."""
    return _BLAME[reason]


def exit_for(error: BaseException) -> ExitReason:
    """The exit reason of an exception that reached the top of a loop."""
    if isinstance(error, SandboxDead):
        return ExitReason.ENV_DEAD
    if isinstance(error, ContextOverflow | BudgetExceeded):
        return ExitReason.TOKEN_LIMIT
    if isinstance(error, ModelError):
        return ExitReason.MODEL_ERROR
    return ExitReason.INTERNAL_ERROR


def _default_exits() -> Mapping[ExitReason, Outcome]:
    return {
        ExitReason.FINISHED: Outcome.TRAIN,
        ExitReason.TURN_LIMIT: Outcome.TRAIN,
        ExitReason.TOKEN_LIMIT: Outcome.TRAIN,
        ExitReason.FORMAT_ERRORS: Outcome.TRAIN,
        ExitReason.TRAJECTORY_TIMEOUT: Outcome.TRAIN,
        ExitReason.TOOL_TIMEOUTS: Outcome.TRAIN,
        ExitReason.GENERATION_TIMEOUT: Outcome.DROP,
        ExitReason.MODEL_ERROR: Outcome.RETRY,
        ExitReason.ENV_START_FAILED: Outcome.RETRY,
        ExitReason.ENV_DEAD: Outcome.RETRY,
        ExitReason.INTERNAL_ERROR: Outcome.DROP,
        ExitReason.CANCELLED: Outcome.DROP,
    }


@frozen(kw_only=True)
class OutcomePolicy:
    """What becomes of a trajectory, by exit reason and by blame.

    `exits` decides first. Where the reward could not say anything and that is not the policy's fault, `ungraded`
    decides instead of `train`, so that no fault of ours or of the grader enters a baseline as a zero. `blames` has
    the last word. A `retry` tries again in a fresh env, `retries` times with a back-off of `backoff_s * 2 ** attempt`
    seconds, and then becomes `exhausted`. A `replace` starts at most `replacements` further rollouts per group.
    """

    exits: Mapping[ExitReason, Outcome] = field(factory=_default_exits)
    blames: Mapping[Blame, Outcome] = field(factory=dict)
    ungraded: Outcome = Outcome.DROP
    exhausted: Outcome = Outcome.DROP
    retries: int = 2
    backoff_s: float = 1.0
    replacements: int = 1

    def __attrs_post_init__(self) -> None:
        for name in ("exhausted", "ungraded"):
            if getattr(self, name) is Outcome.RETRY:
                raise ConfigError(f"outcomes.{name} cannot be 'retry': use train, mask, drop or replace")

    @classmethod
    def mask_abnormal(cls) -> "OutcomePolicy":
        """Mask all but `finished`."""
        return cls(
            exits={reason: Outcome.TRAIN if reason is ExitReason.FINISHED else Outcome.MASK for reason in ExitReason}
        )

    def decide(self, reason: ExitReason, blame: Blame | None, grade: Grade | None, *, attempt: int) -> Outcome:
        """The outcome of an attempt; `attempt` counts from 0. `retry` is never given once the retries are spent."""
        outcome = self.exits.get(reason, Outcome.DROP)
        if outcome is Outcome.TRAIN and grade is not None and grade.status is not GradeStatus.OK:
            outcome = self.ungraded
        if blame is not None:
            outcome = self.blames.get(blame, outcome)
        if outcome is Outcome.RETRY and (attempt >= self.retries or reason is ExitReason.CANCELLED):
            outcome = self.exhausted
        if outcome is Outcome.REPLACE and reason is ExitReason.CANCELLED:  # the caller wants no more of it
            outcome = Outcome.DROP
        return outcome
