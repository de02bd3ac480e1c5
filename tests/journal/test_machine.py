"""The journal equals a few dictionaries, for every sequence of operations, reopening among them."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentkit.errors import InvariantError
from agentkit.journal import Journal
from agentkit.protocols import Action, Blame, ChainDelta, ExitReason, Grade, GradeStatus, RolloutKey, Trajectory, Turn
from agentkit.testing.strategies import actions, chains, texts, trajectories
from agentkit.tokens import join

Rollout = tuple[str, int]
Appended = tuple[Turn, tuple[ChainDelta, ...]]

TASKS = ["a", "\ud83d", "a\x00"]
REPEATS = st.sampled_from([(ExitReason.CANCELLED,), (), (ExitReason.MODEL_ERROR,), tuple(ExitReason)])
ENDS: "list[dict[str, Any]]" = [  # what makes a difference, drawn often
    {},
    {"exit_reason": ExitReason.CANCELLED},
    {"exit_reason": ExitReason.FINISHED, "grade": Grade(GradeStatus.SKIPPED, blame=Blame.CALLER)},
    {"exit_reason": ExitReason.FINISHED, "grade": Grade(GradeStatus.SKIPPED, blame=Blame.GRADER)},
]
ROLLOUTS = st.tuples(st.sampled_from(TASKS), st.integers(0, 1))


class Oracle:
    """What the journal should do, in the slowest and plainest way."""

    def __init__(self) -> None:
        self.attempts: dict[Rollout, dict[int, list[Appended]]] = {}
        self.sealed: dict[Rollout, Trajectory] = {}
        self.repeat: tuple[ExitReason, ...] = ()

    def done(self, rollout: Rollout) -> bool:
        return rollout in self.sealed and not self.repeated(self.sealed[rollout])

    def repeated(self, trajectory: Trajectory) -> bool:
        grade = trajectory.grade
        left = grade is not None and (grade.status, grade.blame) == (GradeStatus.SKIPPED, Blame.CALLER)
        return trajectory.exit_reason in self.repeat or (left and ExitReason.CANCELLED in self.repeat)

    def closed(self, key: RolloutKey) -> bool:
        rollout = (key.task_id, key.index)
        return self.done(rollout) or (rollout in self.sealed and key.attempt <= self.sealed[rollout].key.attempt)

    def newest(self, rollout: Rollout) -> int:
        return max(self.attempts.get(rollout, {}), default=-1)

    def begin(self, key: RolloutKey) -> bool:
        rollout = (key.task_id, key.index)
        if self.done(rollout) or key.attempt <= self.newest(rollout):
            return False
        self.attempts.setdefault(rollout, {})[key.attempt] = []
        return True

    def append(self, key: RolloutKey, turn: Turn, deltas: tuple[ChainDelta, ...]) -> bool:
        rollout = (key.task_id, key.index)
        if self.closed(key) or self.newest(rollout) != key.attempt:
            return False
        written = self.attempts[rollout][key.attempt]
        for old, pieces in written:
            if old.index == turn.index:
                return (old, pieces) == (turn, deltas)
        if written and written[-1][0].index > turn.index:
            return False
        lengths: dict[int, int] = {}
        for delta in [*(delta for _, pieces in written for delta in pieces), *deltas]:
            if delta.start != lengths.get(delta.chain, 0):
                return False
            lengths[delta.chain] = delta.start + len(delta.piece)
        written.append((turn, deltas))
        return True

    def seal(self, trajectory: Trajectory) -> bool:
        rollout, attempt = (trajectory.task_id, trajectory.key.index), trajectory.key.attempt
        if self.sealed.get(rollout) == trajectory:
            return True
        if self.closed(trajectory.key):
            return False
        if self.newest(rollout) > attempt:
            return False
        self.attempts.setdefault(rollout, {}).setdefault(attempt, [])
        self.sealed.pop(rollout, None)  # what is sealed again comes last
        self.sealed[rollout] = trajectory
        return True

    def unfinished(self) -> dict[RolloutKey, tuple[tuple[Turn, ...], Any]]:
        found = {}
        for (task_id, index), attempts in self.attempts.items():
            attempt, written = max(attempts.items())
            sealed = self.sealed.get((task_id, index))
            if sealed is None or sealed.key.attempt < attempt:
                deltas = [delta for _, pieces in written for delta in pieces]
                found[RolloutKey(task_id, index, attempt)] = (tuple(turn for turn, _ in written), join(deltas))
        return found


class JournalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()  # one loop all along: the end of a loop closes what is open in it
        self.folder = tempfile.TemporaryDirectory()
        self.oracle = Oracle()
        self.last_append: tuple[RolloutKey, Turn, tuple[ChainDelta, ...]] | None = None
        self.last_seal: Trajectory | None = None
        self.open(())

    @initialize(repeat=REPEATS)
    def begin_with(self, repeat: tuple[ExitReason, ...]) -> None:
        self.reopen(repeat)

    def open(self, repeat: Collection[ExitReason]) -> None:
        self.oracle.repeat = tuple(repeat)
        path = Path(self.folder.name) / "journal.sqlite"
        self.context: AbstractAsyncContextManager[Journal] = Journal.open(path, writer="inline", repeat=repeat)
        self.journal: Journal = self.drive(self.context.__aenter__)

    def close(self) -> None:
        self.drive(lambda: self.context.__aexit__(None, None, None))

    def teardown(self) -> None:
        self.close()
        self.runner.close()
        self.folder.cleanup()

    def drive(self, call: Callable[..., Awaitable[Any]]) -> Any:
        async def main() -> Any:
            return await call()

        return self.runner.run(main())

    def agrees(self, allowed: bool, call: Callable[[], Awaitable[None]]) -> None:
        try:
            self.drive(call)
        except InvariantError:
            assert not allowed
        else:
            assert allowed

    @rule(repeat=REPEATS)
    def reopen(self, repeat: tuple[ExitReason, ...]) -> None:
        self.close()
        self.open(repeat)

    @rule(rollout=ROLLOUTS, ahead=st.integers(-1, 2))
    def begin(self, rollout: Rollout, ahead: int) -> None:
        key = RolloutKey(*rollout, max(0, self.oracle.newest(rollout) + ahead))
        self.agrees(self.oracle.begin(key), lambda: self.journal.begin(key))

    @rule(rollout=ROLLOUTS, data=st.data(), older=st.booleans(), skew=st.sampled_from([0, 0, 0, 0, 0, 1]))
    def append(self, rollout: Rollout, data: st.DataObject, older: bool, skew: int) -> None:
        attempts = self.oracle.attempts.get(rollout, {})
        attempt = max(0, self.oracle.newest(rollout) - (older and skew))
        written = attempts.get(attempt, [])
        joined = join([delta for _, pieces in written for delta in pieces])
        index = max(0, (written[-1][0].index if written else -1) + data.draw(st.sampled_from([1, 1, 1, 2, 0, -1])))
        piece = data.draw(chains(turns=[index]))
        number = data.draw(st.integers(0, len(joined)))
        start = (len(joined[number]) if number < len(joined) else 0) + skew
        deltas = (ChainDelta(number, start, piece),) if data.draw(st.booleans()) else ()
        key, turn = RolloutKey(*rollout, attempt), Turn(index, data.draw(actions()))
        self.last_append = (key, turn, deltas)
        self.agrees(self.oracle.append(*self.last_append), lambda: self.journal.append(key, turn, deltas))

    @rule()
    def append_again(self) -> None:
        if self.last_append is not None:
            key, turn, deltas = self.last_append
            self.agrees(self.oracle.append(key, turn, deltas), lambda: self.journal.append(key, turn, deltas))

    @rule(
        rollout=ROLLOUTS,
        back=st.sampled_from([0, 0, 1, -1]),
        trajectory=trajectories(children=0),
        end=st.sampled_from(ENDS),
    )
    def seal(self, rollout: Rollout, back: int, trajectory: Trajectory, end: dict[str, Any]) -> None:
        key = RolloutKey(*rollout, max(0, self.oracle.newest(rollout) - back))
        sealed = self.last_seal = attrs.evolve(trajectory, key=key, **end)
        self.agrees(self.oracle.seal(sealed), lambda: self.journal.seal(sealed))

    @rule(rollout=ROLLOUTS, go_on=st.booleans())
    def is_left_and_resumed(self, rollout: Rollout, go_on: bool) -> None:
        self.reopen((ExitReason.CANCELLED,))
        key = RolloutKey(*rollout, max(0, self.oracle.newest(rollout)))
        cancelled = Trajectory(key, (), (), (), ExitReason.CANCELLED)
        self.agrees(self.oracle.seal(cancelled), lambda: self.journal.seal(cancelled))
        if go_on:
            self.begin(rollout, 1)
        else:  # a turn of the attempt that is sealed already
            last = (key, Turn(99, Action("late")), ())
            self.agrees(self.oracle.append(*last), lambda: self.journal.append(*last))

    @rule(other=st.none() | texts())
    def seal_again(self, other: str | None) -> None:
        if self.last_seal is not None:
            sealed = self.last_seal if other is None else attrs.evolve(self.last_seal, error=other)
            self.agrees(self.oracle.seal(sealed), lambda: self.journal.seal(sealed))

    @invariant()
    def reads_the_same(self) -> None:
        reader, oracle = self.journal.reader, self.oracle
        assert reader.sealed() == set(oracle.sealed)
        assert self.journal.sealed() == {rollout for rollout in oracle.sealed if oracle.done(rollout)}
        assert [each.key for each in reader.summaries()] == [each.key for each in oracle.sealed.values()]
        assert list(reader.trajectories()) == list(oracle.sealed.values())
        assert {each.key: (each.turns, each.chains) for each in reader.unfinished()} == oracle.unfinished()
        for rollout in oracle.attempts:
            assert self.journal.next_attempt(*rollout) == oracle.newest(rollout) + 1
            assert reader.trajectory(*rollout) == oracle.sealed.get(rollout)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=max(8, settings.default.max_examples // 3), stateful_step_count=15, parent=settings.default
)
