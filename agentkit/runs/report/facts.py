"""What a report needs to know of a run, read without its tokens: about 300 bytes a rollout, whatever it holds."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field, frozen

from agentkit.journal import JournalReader, journal_path
from agentkit.protocols import (
    ExitReason,
    FinishReason,
    Observation,
    ObservationStatus,
    Outcome,
    RolloutKey,
    SpanKind,
    Trajectory,
)
from agentkit.runs.causes import causes, count_causes
from agentkit.runs.folder import RunFolder
from agentkit.runs.info import RunInfo

_NAMES_KEPT = 200  # the policy writes names: a run may hold any number of them
OTHERS = "(others)"
ENV = "(env)"


@frozen
class RolloutFacts:
    """One sealed rollout. Seconds by stage are its own; tokens and turns with a format error include sub-agents'."""

    key: RolloutKey
    exit_reason: ExitReason
    blame: str | None
    grade: str | None
    score: float | None
    outcome: Outcome
    replaces: int | None
    retries: int
    turns: int
    format_error_turns: int
    tokens: int
    sampled: int
    queued_s: float
    setup_s: float
    generation_s: float
    tool_s: float
    reward_s: float
    total_s: float
    sampling_s: float
    """Generation, sub-agents' included: what `sampled` took."""
    cut_turns: int = 0
    """Turns that a limit of tokens ended before the policy did, sub-agents' included."""


@define
class ToolUse:
    """How often a tool was called, and what came of it."""

    calls: int = 0
    errors: int = 0
    timeouts: int = 0
    skipped: int = 0


@frozen(kw_only=True)
class Facts:
    """A run, as far as a report is concerned. `info` is None for a journal that is no run's."""

    path: Path
    info: RunInfo | None
    rollouts: tuple[RolloutFacts, ...]
    unfinished: tuple[RolloutKey, ...] = ()
    tools: Mapping[str, ToolUse] = field(factory=dict)
    faults: Mapping[str, int] = field(factory=dict)
    given_up: Mapping[str, int] = field(factory=dict)
    """Attempts that were retried, by exit reason."""
    stuck: Mapping[str, int] = field(factory=dict)
    errors: Mapping[str, int] = field(factory=dict)
    """What was raised and ended rollouts or kept them from a score, a line each."""

    @property
    def wall_s(self) -> float | None:
        """Seconds that the run was at work, all sittings together; None where that is not known."""
        sittings = () if self.info is None else self.info.sittings
        spans = [(each.ended - each.started).total_seconds() for each in sittings if each.ended is not None]
        return sum(spans) if spans and len(spans) == len(sittings) else None


def read_facts(run: "str | os.PathLike[str]") -> Facts:
    """What the journal of `run` and its `run.json`, if any, say; blocks, one trajectory in memory at a time.

    Raises:
        ConfigError: `run.json` is damaged.
        JournalError: the journal cannot be read.
    """
    folder = RunFolder(journal_path(run).parent)
    counts = _Counts()
    with JournalReader.open(run) as reader:
        rollouts = tuple(counts.add(trajectory) for trajectory in reader.trajectories(tokens=False))
        unfinished = reader.unfinished_keys()
    return Facts(
        path=Path(run),
        info=folder.info() if folder.exists else None,
        rollouts=rollouts,
        unfinished=unfinished,
        tools=counts.tools,
        faults=counts.faults,
        given_up=counts.given_up,
        stuck=counts.stuck,
        errors=counts.errors,
    )


class _Counts:
    """What is counted over all rollouts."""

    def __init__(self) -> None:
        self.tools: dict[str, ToolUse] = {}
        self.faults: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        self.stuck: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._task_ids: dict[str, str] = {}

    def add(self, trajectory: Trajectory) -> RolloutFacts:
        family = list(trajectory.walk())
        wrong = sum(self._turns(each) for each in family)
        for attempt in trajectory.attempts:
            self.given_up[attempt.exit_reason.value] += 1
        count_causes(self.errors, causes(trajectory))
        for each in family:
            for name in each.stuck:
                self.stuck[self._room(self.stuck, name.replace(str(each.key), "..."))] += 1
        spans = [span for each in family for chain in each.chains for span in chain.spans]
        key, timings = trajectory.key, trajectory.timings
        task_id = self._task_ids.setdefault(key.task_id, key.task_id)  # one string a task, not one a rollout
        return RolloutFacts(
            key=RolloutKey(task_id, key.index, key.attempt),
            exit_reason=trajectory.exit_reason,
            blame=None if trajectory.blame is None else trajectory.blame.value,
            grade=None if trajectory.grade is None else trajectory.grade.status.value,
            score=trajectory.score,
            outcome=trajectory.outcome,
            replaces=trajectory.replaces,
            retries=len(trajectory.attempts),
            turns=sum(len(each.turns) for each in family),
            format_error_turns=wrong,
            tokens=sum(span.stop - span.start for span in spans),
            sampled=sum(span.stop - span.start for span in spans if span.kind is SpanKind.SAMPLED),
            queued_s=timings.queued_s,
            setup_s=timings.setup_s,
            generation_s=timings.generation_s,
            tool_s=timings.tool_s,
            reward_s=timings.reward_s,
            total_s=timings.total_s,
            sampling_s=sum(each.timings.generation_s for each in family),
            cut_turns=sum(turn.action.finish is FinishReason.LENGTH for each in family for turn in each.turns),
        )

    def _turns(self, trajectory: Trajectory) -> int:
        wrong = 0
        for turn in trajectory.turns:
            faults = turn.action.faults
            for fault in faults:
                self.faults[fault.status.value] += 1
            wrong += bool(faults) or any(o.status is ObservationStatus.FORMAT_ERROR for o in turn.observations)
            for observation in turn.observations:
                self._use(observation)
        return wrong

    def _use(self, observation: Observation) -> None:
        status = observation.status
        if status is ObservationStatus.FORMAT_ERROR:  # no tool was called; its name is whatever the policy wrote
            return
        name = ENV if observation.call_id is None else observation.name or OTHERS
        use = self.tools.setdefault(self._room(self.tools, name), ToolUse())
        use.calls += 1
        use.errors += status is ObservationStatus.ERROR
        use.timeouts += status is ObservationStatus.TIMEOUT
        use.skipped += status is ObservationStatus.SKIPPED

    @staticmethod
    def _room(table: "Mapping[str, object]", name: str) -> str:
        return name if name in table or len(table) < _NAMES_KEPT else OTHERS
