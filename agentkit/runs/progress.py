"""How far a run is: a sink that counts what passes through it, and a value that says so."""

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import anyio
from attrs import field, frozen

from agentkit.actors.pool import Resumable
from agentkit.journal import Summary
from agentkit.protocols import Blame, ChainDelta, ExitReason, RolloutKey, Sink, Trajectory, Turn
from agentkit.runs.causes import causes, count_causes
from agentkit.runs.stop import StopLevel

_WINDOW_S = 30.0
_ENOUGH = 3


@frozen(kw_only=True)
class Progress:
    """A run at one moment. What earlier sittings sealed is in `done`, `reasons` and `mean_score`, not in the rates."""

    expected: int | None
    """Rollouts of the whole run, replacements aside; None as long as nobody has counted the tasks."""
    done: int
    """Rollouts that are sealed and stay so."""
    done_before: int
    """Those of them that earlier sittings sealed."""
    live: int
    """Rollouts under way."""
    reasons: Mapping[ExitReason, int]
    graded: int
    score_sum: float
    turns: int
    """Turns made in this sitting, those of attempts that were given up included."""
    sampled: int
    """Tokens sampled in this sitting; 0 for models that give messages."""
    elapsed_s: float
    """Seconds of this sitting."""
    turns_per_s: float
    """Over the last 30 seconds; so is `tokens_per_s`."""
    tokens_per_s: float
    oldest: tuple[RolloutKey, float] | None = None
    """The rollout that has been under way longest, and for how many seconds."""
    stopping: StopLevel = StopLevel.GO_ON
    causes: Mapping[str, int] = field(factory=dict)
    """What was raised in this sitting and ended rollouts or kept them from a score: one line each, and how often."""

    @property
    def mean_score(self) -> float | None:
        """Of the rollouts that have a score."""
        return self.score_sum / self.graded if self.graded else None

    @property
    def left(self) -> int | None:
        """Rollouts not done yet; while the run is drained, those under way."""
        if self.stopping:
            return self.live
        return None if self.expected is None else max(0, self.expected - self.done)

    @property
    def eta_s(self) -> float | None:
        """Seconds that the rest takes at the pace of this sitting; None as long as too few have ended to tell."""
        ended = self.done - self.done_before
        if self.stopping or self.left is None or ended < _ENOUGH:
            return 0.0 if self.left == 0 else None
        return self.left * self.elapsed_s / ended


class Meter:
    """Counts what becomes of the rollouts of one sitting."""

    def __init__(
        self,
        expected: int | None,
        *,
        group_size: int = 1,
        done_before: int = 0,
        before: Iterable[Summary] = (),
        redact: Callable[[str], str] = str,
    ) -> None:
        self.expected = expected
        self._group_size = group_size
        self.stopping = StopLevel.GO_ON
        self._reasons: Counter[ExitReason] = Counter()
        self._causes: Counter[str] = Counter()
        self._redact = redact
        self._graded, self._score_sum = 0, 0.0
        for summary in before:
            self._count(summary.exit_reason, summary.score)
        self._done_before = self._done = done_before
        self._turns = self._sampled = 0
        self._live: dict[tuple[str, int], tuple[RolloutKey, float]] = {}
        self._started = anyio.current_time()
        self._marks: deque[tuple[float, int, int]] = deque([(self._started, 0, 0)])

    def begun(self, key: RolloutKey) -> None:
        """An attempt has begun; the first one starts the clock of its rollout."""
        self._live.setdefault((key.task_id, key.index), (key, anyio.current_time()))

    def turned(self, deltas: Sequence[ChainDelta]) -> None:
        """A turn is complete."""
        self._turns += 1
        self._sampled += sum(delta.piece.mask_bytes.count(1) for delta in deltas)

    def sealed(self, trajectory: Trajectory) -> None:
        """A rollout has ended; one that the caller cut short is to be made again, and a replacement is a bonus."""
        self._live.pop((trajectory.task_id, trajectory.key.index), None)
        cut_short = trajectory.exit_reason is ExitReason.CANCELLED or (
            trajectory.grade is not None and trajectory.grade.blame is Blame.CALLER
        )
        self._done += trajectory.key.index < self._group_size and not cut_short
        self._count(trajectory.exit_reason, trajectory.score)
        count_causes(self._causes, causes(trajectory, redact=self._redact))

    def read(self) -> Progress:
        """How far the run is now."""
        now = anyio.current_time()
        marks = self._marks
        while len(marks) > 1 and now - marks[1][0] >= _WINDOW_S:
            marks.popleft()
        since, turns, sampled = marks[0]
        if now - marks[-1][0] >= 1.0:
            marks.append((now, self._turns, self._sampled))
        span = max(now - since, 1e-9)
        oldest = next(iter(self._live.values()), None)  # in the order begun
        return Progress(
            expected=self.expected,
            done=self._done,
            done_before=self._done_before,
            live=len(self._live),
            reasons=dict(self._reasons),
            graded=self._graded,
            score_sum=self._score_sum,
            turns=self._turns,
            sampled=self._sampled,
            elapsed_s=now - self._started,
            turns_per_s=(self._turns - turns) / span,
            tokens_per_s=(self._sampled - sampled) / span,
            oldest=None if oldest is None else (oldest[0], now - oldest[1]),
            stopping=self.stopping,
            causes=dict(self._causes),
        )

    def _count(self, reason: ExitReason, score: float | None) -> None:
        self._reasons[reason] += 1
        if score is not None:
            self._graded += 1
            self._score_sum += score


@frozen
class MeteredSink:
    """A sink that tells a meter what it has written; `journal` and `replace` know what earlier sittings left."""

    sink: Sink
    journal: Resumable
    meter: Meter
    replace: Mapping[str, int] = field(factory=dict)
    """How many sealed rollouts of a task were to be replaced."""

    async def begin(self, key: RolloutKey, /) -> None:
        self.meter.begun(key)
        await self.sink.begin(key)

    async def append(self, key: RolloutKey, turn: Turn, deltas: Sequence[ChainDelta], /) -> None:
        await self.sink.append(key, turn, deltas)
        self.meter.turned(deltas)

    async def seal(self, trajectory: Trajectory, /) -> None:
        await self.sink.seal(trajectory)
        self.meter.sealed(trajectory)

    def sealed(self) -> Container[tuple[str, int]]:
        return self.journal.sealed()

    def next_attempt(self, task_id: str, index: int, /) -> int:
        return self.journal.next_attempt(task_id, index)

    def replaced(self, task_id: str, /) -> int:
        return self.replace.get(task_id, 0)
