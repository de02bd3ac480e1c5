"""What a simulation found."""

from collections.abc import Mapping

from attrs import field, frozen

from agentkit.errors import AgentkitError
from agentkit.protocols import ExitReason, RolloutKey, Trajectory
from agentkit.testing.plan import FaultPlan


class SimulationFailed(AgentkitError, AssertionError):
    """Something did not hold under a fault plan; the message says what, and how to see it again."""


@frozen
class Problem:
    """Something that must never be. `key` is the rollout it belongs to, None where it belongs to none."""

    key: RolloutKey | None
    what: str


@frozen
class SimulationReport:
    """What became of `rollouts` rollouts under `plan` on the event loop `backend`.

    `trajectories` are those that were sealed, as the sink has them. `left` names what outlived the pool, `stuck` what
    it said could not be ended or closed in time, as it must where a plan has code that will not. `seconds` are virtual.
    """

    plan: FaultPlan
    backend: str
    rollouts: int
    trajectories: tuple[Trajectory, ...] = field(repr=False)
    left: tuple[str, ...]
    problems: tuple[Problem, ...]
    struck: Mapping[str, int]
    """How often each fault happened."""
    stuck: tuple[str, ...] = field(repr=False)
    sittings: int
    """How many host processes it took: one more than died."""
    seconds: float

    @property
    def seed(self) -> int:
        """The seed of the plan."""
        return self.plan.seed

    @property
    def sealed(self) -> int:
        """How many trajectories were sealed."""
        return len(self.trajectories)

    @property
    def counts(self) -> Mapping[ExitReason, int]:
        """How many rollouts ended for each exit reason."""
        reasons = [trajectory.exit_reason for trajectory in self.trajectories]
        return {reason: reasons.count(reason) for reason in ExitReason if reason in reasons}

    def check(self) -> None:
        """Nothing, if every rollout has its one trajectory, all of them are sound, and nothing is left.

        Raises:
            SimulationFailed: says what is wrong, with the seed, and how to run one rollout that it went wrong in alone.
        """
        wrong = [f"left behind: {name}" for name in self.left]
        wrong += [
            problem.what if problem.key is None else f"{problem.key}: {problem.what}" for problem in self.problems
        ]
        if not wrong:
            return
        lines = [f"{len(wrong)} things do not hold under {self.plan!r} on {self.backend}", *wrong[:_SHOWN]]
        lines += [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        key = next((problem.key for problem in self.problems if problem.key is not None), None)
        if key is not None:
            attempt = f", attempt={key.attempt}" if key.attempt else ""
            lines.append(
                f"see it alone: replay({self.plan!r}, {key.task_id!r}, {key.index}{attempt}, backend={self.backend!r})"
            )
        raise SimulationFailed("\n  ".join(lines))


_SHOWN = 5
