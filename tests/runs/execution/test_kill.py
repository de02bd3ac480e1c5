"""kill -9 and Ctrl-C on a real process with real sandboxes: no task lost, none doubled, no token changed, no leak."""

import random
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from agentkit.journal import JournalReader
from agentkit.protocols import Chain, ExitReason
from agentkit.runs import SittingEnd

KILLS = 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def check(project: Any) -> None:
    """What was acknowledged is there, to the token, and every rollout is sealed at most once."""
    if not project.run.journal_path.exists():
        assert not project.acknowledged()
        return
    with JournalReader.open(project.run.path) as reader:
        trajectories = list(reader.trajectories())
        kept = {(each.key.task_id, each.key.index): each for each in trajectories}
        assert len(kept) == len(trajectories), "one seal each"
        assert set(kept) <= project.expected
        unfinished = {each.key: each for each in reader.unfinished()}
    by_attempt: dict[tuple[str, int, int], tuple[Chain, ...]] = {
        (key.task_id, key.index, key.attempt): each.chains for key, each in unfinished.items()
    }
    by_attempt |= {(*rollout, each.key.attempt): each.chains for rollout, each in kept.items()}
    newest = {}
    for task, index, attempt in by_attempt:
        newest[task, index] = max(attempt, newest.get((task, index), -1))
    for what, task, index, attempt, _turn, pieces in project.acknowledged():
        assert (task, index) in newest, "what was acknowledged is known"
        if what == "seal":
            assert kept[task, index].key.attempt == attempt, "a seal is for good"
        if attempt != newest[task, index]:
            continue  # a later attempt took its place
        chains = by_attempt[task, index, attempt]
        for chain, start, length, digest in pieces:
            stop = start + length
            found = chains[chain].id_bytes[4 * start : 4 * stop] + chains[chain].logprob_bytes[4 * start : 4 * stop]
            assert sha256(found).hexdigest() == digest, f"the tokens of {task}#{index} are those acknowledged"


def finish(child: "subprocess.Popen[str]", *, within_s: float = 120) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=within_s)
    return child.returncode, out, err


def wait_for(condition: Callable[[], object], *, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check_clean(project: Any) -> None:
    wait_for(lambda: not project.processes(), within_s=20)
    assert list(project.scratch.iterdir()) == []


def test_killed_at_random_moments_a_run_loses_and_doubles_nothing(project: Callable[[int], Any]) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    dice, run = random.Random(seed), project(150)
    killed = 0
    for sitting in range(KILLS):
        child = run.start("--backend", dice.choice(["asyncio", "trio"]), "--quiet")
        assert child.stderr is not None
        if dice.random() < 0.15:  # at any moment, while it is starting
            time.sleep(dice.uniform(0, 1.0))
        else:
            while "kept in" not in (line := child.stderr.readline()):
                assert line, f"it began, sitting {sitting}: {child.communicate()}"
            time.sleep(dice.uniform(0, 0.9))
        child.kill()
        child.communicate()
        killed += child.returncode == -signal.SIGKILL
        check(run)
    assert killed > KILLS // 2
    code, out, err = finish(run.start("--quiet"))
    assert code == 0, err
    assert "300 of 300 rollouts done" in out
    check(run)
    with JournalReader.open(run.run.path) as reader:
        assert reader.sealed() == run.expected
        assert reader.unfinished() == ()
        summaries = list(reader.summaries())
    assert {each.exit_reason for each in summaries} == {ExitReason.FINISHED}
    assert {each.turns for each in summaries} == {4}
    info = run.run.info()
    assert info.sittings[-1].why is SittingEnd.FINISHED
    assert {sitting.why for sitting in info.sittings[:-1]} == {None}, "nobody noted an end that it did not see"
    assert any(each.key.attempt for each in summaries), "some rollouts were cut off, and made again"
    check_clean(run)


@pytest.mark.parametrize(
    ("number", "backend"), [(signal.SIGINT, "asyncio"), (signal.SIGINT, "trio"), (signal.SIGTERM, "asyncio")]
)
def test_one_signal_lets_what_has_begun_end(
    project: Callable[[int], Any], backend: str, number: signal.Signals
) -> None:
    run = project(200)
    child = run.start("--backend", backend)
    wait_for(lambda: len(run.acknowledged()) > 20)
    child.send_signal(number)
    code, out, err = finish(child)
    assert code == 130
    assert "rollouts under way go on to the end. Ctrl-C again cancels them." in err
    assert re.fullmatch(rf"The run was stopped\. Go on with it: .*agentkit resume {run.run.path}", out.splitlines()[-1])
    with JournalReader.open(run.run.path) as reader:
        assert reader.unfinished() == ()
        assert {each.exit_reason for each in reader.summaries()} == {ExitReason.FINISHED}
        assert 0 < len(reader.sealed()) < 400
    assert [sitting.why for sitting in run.run.info().sittings] == [SittingEnd.DRAINED]
    check(run)
    check_clean(run)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_two_signals_cancel_and_a_resume_makes_good(project: Callable[..., Any], backend: str) -> None:
    run = project(30, nap_s=0.6)  # no rollout that lives at the first signal is through at the second
    child = run.start("--backend", backend)
    wait_for(lambda: len(run.acknowledged()) > 80)  # of 6 a rollout: the first twelve are through
    child.send_signal(signal.SIGINT)
    time.sleep(0.15)
    child.send_signal(signal.SIGINT)
    code, out, err = finish(child)
    assert code == 130
    assert "Cancelling" in err
    assert "The run was cancelled. Go on with it: " in out
    with JournalReader.open(run.run.path) as reader:
        assert reader.unfinished() == ()
        assert {each.exit_reason for each in reader.summaries()} == {ExitReason.FINISHED, ExitReason.CANCELLED}
    assert [sitting.why for sitting in run.run.info().sittings] == [SittingEnd.CANCELLED]
    check(run)
    check_clean(run)
    code, out, _ = finish(run.start("--backend", backend))
    assert code == 0
    assert "60 of 60 rollouts done" in out
    with JournalReader.open(run.run.path) as reader:
        assert {each.exit_reason for each in reader.summaries()} == {ExitReason.FINISHED}
        assert reader.sealed() == run.expected
    check_clean(run)


def test_two_processes_on_one_run_are_one_clear_error(project: Callable[[int], Any]) -> None:
    run = project(200)
    first = run.start()
    wait_for(lambda: len(run.acknowledged()) > 5)
    code, out, err = finish(run.start())
    assert (code, out) == (1, "")
    assert f"is being written by process {first.pid}" in err
    assert "Traceback" not in err
    first.kill()
    first.communicate()
    check(run)
