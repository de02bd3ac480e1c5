import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.sandbox.leaks import MARKER, PREFIX, is_dead, owner, reap


def _dead_owner() -> str:
    boot, pid, started = owner().split(".")
    return f"{boot}.{pid}.{int(started) - 1}"  # our pid, but of an earlier process


def test_the_living_and_the_dead() -> None:
    assert not is_dead(owner())
    assert not is_dead(f"{owner()}-7-abc")
    assert is_dead(f"{_dead_owner()}-7-abc")
    assert is_dead(f"000000000000.{owner().split('.', 1)[1]}")  # before the last boot


@given(st.text(alphabet="ab.-0", max_size=20))
def test_names_of_others_are_never_dead(name: str) -> None:
    parts = name.partition("-")[0].split(".")
    ours = len(parts) == 3 and parts[0] != "" and parts[1].isdecimal() and parts[2].isdecimal()
    assert ours or not is_dead(name)


def test_only_directories_of_the_dead_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    base = tmp_path / "base"
    dead = base / f"{PREFIX}{_dead_owner()}-0"
    (dead / "locked").mkdir(parents=True)
    (dead / "locked" / "file").write_text("x")
    (dead / "locked").chmod(0o000)
    (dead / "link").symlink_to(outside)
    kept = [base / f"{PREFIX}{owner()}-0", base / f"{PREFIX}mutants", base / "unrelated"]
    for path in kept:
        path.mkdir()
    (base / f"{PREFIX}{_dead_owner()}-1").symlink_to(outside)
    done = reap(base)
    assert done.directories == (str(dead),)
    assert not dead.exists()
    assert all(path.exists() for path in kept)
    assert (outside / "precious").read_text() == "kept"


@pytest.mark.slow
def test_only_processes_of_the_dead_are_killed(tmp_path: Path) -> None:
    def sleeper(name: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "60"], env=os.environ | {MARKER: name})

    with sleeper(f"{_dead_owner()}-0") as dead, sleeper(f"{owner()}-0") as living:
        try:
            assert dead.pid in reap(tmp_path).pids
            assert dead.wait(5) == -9
            assert living.poll() is None
        finally:
            living.kill()
            dead.kill()
