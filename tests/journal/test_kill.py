"""kill -9 at random moments: what was acknowledged is there, once, to the token; resuming ends with one seal each.

Some rollouts end as `cancelled`: those are repeated, and have their old trajectory until they have the new one.
"""

import random
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from agentkit.journal import JournalReader
from agentkit.protocols import ExitReason, RolloutKey

CHILD = Path(__file__).with_name("rollouts_child.py")
TASKS = 60
KILLS = 10  # per event loop

pytestmark = pytest.mark.slow


class Acknowledged:
    """What the children said they were told is durable."""

    def __init__(self) -> None:
        self.turns: dict[RolloutKey, int] = {}
        self.sealed: dict[RolloutKey, str] = {}

    def hear(self, lines: str) -> bool:
        done = False
        for line in lines.splitlines(keepends=True):
            match line.split():
                case ["begin", task_id, index, attempt] if line.endswith("\n"):
                    self.turns[RolloutKey(task_id, int(index), int(attempt))] = 0
                case ["append", task_id, index, attempt, number] if line.endswith("\n"):
                    self.turns[RolloutKey(task_id, int(index), int(attempt))] = int(number) + 1
                case ["seal", task_id, index, attempt, reason] if line.endswith("\n"):
                    self.sealed[RolloutKey(task_id, int(index), int(attempt))] = reason
                case ["done"]:
                    done = True
        return done


def run_child(run: Path, backend: str, *, kill_after: float | None, cancelled: float = 0.0) -> str:
    """The child's output; `kill_after` seconds after its first acknowledgement it is killed."""
    command = [sys.executable, str(CHILD), str(run), str(TASKS), backend, str(cancelled)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        timer = threading.Timer(kill_after or 0.0, child.kill)
        if kill_after is not None:
            timer.start()
        rest = child.stdout.read()
        code = child.wait(timeout=60)
        timer.cancel()
    assert code in ((-9, 0) if kill_after is not None else (0,))
    return first + rest


def check(run: Path, told: Acknowledged, child: dict[str, Any]) -> None:
    with JournalReader.open(run) as reader:
        trajectories = list(reader.trajectories())
        sealed = {trajectory.key for trajectory in trajectories}
        kept = {(trajectory.task_id, trajectory.key.index): trajectory for trajectory in trajectories}
        assert len(kept) == len(trajectories), "one seal each"
        for key, reason in told.sealed.items():
            attempt = kept[key.task_id, key.index].key.attempt
            assert attempt == key.attempt or (attempt > key.attempt and reason == "cancelled")
        for trajectory in trajectories:
            ended = (len(trajectory.turns), trajectory.exit_reason)
            assert trajectory == child["trajectory_of"](trajectory.key, *ended)
        unfinished = {each.key: each for each in reader.unfinished()}
        for key, each in unfinished.items():
            assert [turn.index for turn in each.turns] == list(range(len(each.turns)))
            assert each.turns == tuple(child["turn_of"](key, number) for number in range(len(each.turns)))
            assert each.chains == ((child["chain_after"](key, len(each.turns)),) if each.turns else ())
        for key, turns in told.turns.items():
            newest = reader.next_attempt(key.task_id, key.index) - 1
            assert newest >= key.attempt
            if key.attempt == newest and key not in sealed:
                assert len(unfinished[key].turns) >= turns


@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_killed_at_random_moments_nothing_acknowledged_is_lost(tmp_path: Path, backend: str) -> None:
    child = runpy.run_path(str(CHILD))
    told, dice = Acknowledged(), random.Random(backend)
    killed, repeated = 0, False
    for _ in range(KILLS):
        killed += not told.hear(run_child(tmp_path, backend, kill_after=dice.uniform(0.0, 0.12), cancelled=0.5))
        check(tmp_path, told, child)
        repeated |= any(told.sealed.get(attrs.evolve(key, attempt=key.attempt - 1)) for key in told.turns)
    assert killed > KILLS // 2, "most children were killed at work"
    assert repeated, "what was cancelled was taken up again"
    assert told.hear(run_child(tmp_path, backend, kill_after=None))
    check(tmp_path, told, child)
    with JournalReader.open(tmp_path) as reader:
        assert reader.sealed() == {(f"task-{n}", index) for n in range(TASKS) for index in range(child["INDICES"])}
        assert reader.unfinished() == ()
        assert {summary.exit_reason for summary in reader.summaries()} == {ExitReason.FINISHED}
