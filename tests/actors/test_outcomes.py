"""What becomes of a trajectory: decided by plain values, without a loop."""

import pytest

from agentkit import Blame, ConfigError, ExitReason, Outcome, OutcomePolicy
from agentkit.actors.outcomes import UNGRADED, blame_for
from agentkit.protocols import Grade, GradeStatus, Score

GOOD = Grade(GradeStatus.OK, Score(1.0))


@pytest.mark.parametrize("status", [GradeStatus.ERROR, GradeStatus.TIMEOUT, GradeStatus.SKIPPED])
def test_a_trajectory_that_the_reward_could_not_judge_is_not_trained_on(status) -> None:
    policy = OutcomePolicy(ungraded=Outcome.MASK)
    assert policy.decide(ExitReason.FINISHED, None, GOOD, attempt=0) is Outcome.TRAIN
    assert policy.decide(ExitReason.FINISHED, None, Grade(status), attempt=0) is Outcome.MASK


def test_blame_overrides_the_exit_reason() -> None:
    policy = OutcomePolicy(blames={Blame.ENVIRONMENT: Outcome.MASK})
    assert policy.decide(ExitReason.TRAJECTORY_TIMEOUT, Blame.ENVIRONMENT, GOOD, attempt=0) is Outcome.MASK
    assert policy.decide(ExitReason.TRAJECTORY_TIMEOUT, Blame.POLICY, GOOD, attempt=0) is Outcome.TRAIN


def test_retries_run_out() -> None:
    policy = OutcomePolicy(retries=2, exhausted=Outcome.REPLACE)
    decided = [policy.decide(ExitReason.ENV_DEAD, Blame.ENVIRONMENT, None, attempt=k) for k in range(4)]
    assert decided == [Outcome.RETRY, Outcome.RETRY, Outcome.REPLACE, Outcome.REPLACE]


def test_what_the_caller_cancelled_is_never_retried() -> None:
    policy = OutcomePolicy(exits=dict.fromkeys(ExitReason, Outcome.RETRY))
    assert policy.decide(ExitReason.CANCELLED, Blame.CALLER, None, attempt=0) is Outcome.DROP


def test_a_retry_cannot_stand_for_what_follows_the_retries() -> None:
    for field in ("exhausted", "ungraded"):
        with pytest.raises(ConfigError, match=f"outcomes.{field} cannot be 'retry'"):
            OutcomePolicy(**{field: Outcome.RETRY})


def test_mask_abnormal_masks_all_but_finished() -> None:
    policy = OutcomePolicy.mask_abnormal()
    decided = {reason: policy.decide(reason, blame_for(reason), GOOD, attempt=0) for reason in ExitReason}
    assert decided.pop(ExitReason.FINISHED) is Outcome.TRAIN
    assert set(decided.values()) == {Outcome.MASK}


def test_no_fault_of_ours_or_of_the_world_is_the_policys() -> None:
    ours = {Blame.INFRASTRUCTURE, Blame.ENVIRONMENT, Blame.CALLER}
    for reason in (
        ExitReason.GENERATION_TIMEOUT,
        ExitReason.MODEL_ERROR,
        ExitReason.INTERNAL_ERROR,
        ExitReason.ENV_START_FAILED,
        ExitReason.ENV_DEAD,
        ExitReason.CANCELLED,
    ):
        assert blame_for(reason) in ours
        assert OutcomePolicy().decide(reason, blame_for(reason), None, attempt=9) is Outcome.DROP
    assert all(blame_for(reason) in ours for reason in UNGRADED), "only what is not the policy's goes ungraded"
