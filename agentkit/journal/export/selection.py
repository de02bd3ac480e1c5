"""Which trajectories are exported, and what became of an export."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import field, frozen

from agentkit.journal.reader import JournalReader, Summary
from agentkit.protocols import ExitReason, GradeStatus, Outcome, Trajectory


def _reasons(value: "frozenset[ExitReason] | set[ExitReason] | None") -> "frozenset[ExitReason] | None":
    return None if value is None else frozenset(map(ExitReason, value))


def _outcomes(value: "frozenset[Outcome] | set[Outcome] | None") -> "frozenset[Outcome] | None":
    return None if value is None else frozenset(map(Outcome, value))


@frozen(kw_only=True)
class Selection:
    """What is wanted: each of the three that is not None must hold.

    `min_score` leaves out what has no score. Sub-agents go with the rollout that they belong to.
    """

    exit_reasons: "frozenset[ExitReason] | None" = field(default=None, converter=_reasons)
    outcomes: "frozenset[Outcome] | None" = field(default=None, converter=_outcomes)
    min_score: float | None = None

    def why_not(self, summary: Summary) -> str | None:
        """Why a trajectory is left out: the first reason that applies, None where it is wanted."""
        if self.exit_reasons is not None and summary.exit_reason not in self.exit_reasons:
            return f"exit reason {summary.exit_reason.value}"
        if self.outcomes is not None and summary.outcome not in self.outcomes:
            return f"outcome {summary.outcome}"
        if self.min_score is None:
            return None
        if summary.grade != GradeStatus.OK or summary.score is None:
            return "no score"
        return None if summary.score >= self.min_score else f"score below {self.min_score:g}"


@frozen
class Exported:
    """What an export did. `left_out` counts trajectories by reason; `unfinished` rollouts have no trajectory yet."""

    path: Path
    written: int
    left_out: Mapping[str, int] = field(factory=dict)
    unfinished: int = 0


class Tally:
    """Counts what is left out while an export goes on."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()

    def selected(self, reader: JournalReader, selection: Selection) -> Iterator[Trajectory]:
        """The trajectories that are wanted, in the order sealed, one in memory at a time; the others are counted.

        Raises:
            JournalError: the journal cannot be read or a record is damaged.
        """
        for summary in reader.summaries():
            reason = selection.why_not(summary)
            if reason is not None:
                self.left_out[reason] += 1
                continue
            trajectory = reader.trajectory(summary.key.task_id, summary.key.index)
            if trajectory is not None:
                yield trajectory
