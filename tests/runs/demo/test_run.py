"""The demo end to end: policy, pool, sandboxes, hidden tests, journal, command."""

from pathlib import Path

import pytest

from agentkit.cli import demo
from agentkit.cli.demo import summary
from agentkit.errors import ConfigError
from agentkit.journal import JournalReader
from agentkit.protocols import Chain, ExitReason, Grade, GradeStatus, RolloutKey, Score, Trajectory
from agentkit.runs.demo import run_demo
from agentkit.sandbox import BwrapBackend, HostBackend


@pytest.mark.slow
async def test_tasks_are_run_graded_and_kept(tmp_path: Path) -> None:
    bwrap = BwrapBackend()
    seen: list[Trajectory] = []
    backend = bwrap if bwrap.available() is None else HostBackend()
    ended = await run_demo(backend, tmp_path, tasks=5, concurrency=5, on_trajectory=seen.append)
    assert tuple(seen) == ended
    assert len({trajectory.key for trajectory in ended}) == 5
    assert all(trajectory.grade is not None and trajectory.grade.status is GradeStatus.OK for trajectory in ended)
    assert sum(trajectory.score == 1.0 for trajectory in ended) >= 2
    for trajectory in ended:
        assert len(trajectory.turns) >= 3
        assert 0 < sum(trajectory.chains[0].mask_bytes) < len(trajectory.chains[0].mask_bytes)
    with JournalReader.open(tmp_path) as reader:
        assert reader.sealed() == {(trajectory.task_id, 0) for trajectory in ended}
    assert await run_demo(backend, tmp_path, tasks=5, concurrency=5) == ()


def _trajectory(number: int, reason: ExitReason, score: float | None) -> Trajectory:
    grade = Grade(GradeStatus.ERROR) if score is None else Grade(GradeStatus.OK, Score(score))
    chains = (Chain.of([1, 2, 3], [0, 1, 1], [0.0, -1.0, -1.0]),)
    return Trajectory(RolloutKey(f"t{number}", 0), (), chains, (), reason, grade=grade)


def test_the_summary_counts_by_exit_reason() -> None:
    text = summary(
        [
            _trajectory(0, ExitReason.FINISHED, 1.0),
            _trajectory(1, ExitReason.FINISHED, 0.0),
            _trajectory(2, ExitReason.TURN_LIMIT, None),
        ],
        seconds=1.25,
    )
    rows = [line.split() for line in text.split("\n") if line]
    assert rows[1:3] == [["finished", "2", "1", "0.0"], ["turn_limit", "1", "0", "0.0"]]
    assert "solved 1 of 3; 9 tokens, 6 of them sampled; 1.2 s" in text
    assert "without a score: 1" in text


def test_no_bubblewrap_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"apt install bubblewrap.*--sandbox host"):
        demo._backend("bwrap")


def test_the_host_is_used_only_with_a_banner(capsys: pytest.CaptureFixture[str]) -> None:
    demo._backend("host")
    assert "NO ISOLATION" in capsys.readouterr().err
