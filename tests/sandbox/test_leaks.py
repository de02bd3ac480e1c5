import contextlib
import os
import subprocess
import time
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


@pytest.mark.slow
def test_what_hid_below_the_dead_goes_along_and_the_livings_stays(tmp_path: Path) -> None:
    hidden, theirs = tmp_path / "hidden", tmp_path / "theirs"
    script = (
        f"env -i setsid sh -c 'echo $$ > {hidden}; sleep 60; :' & "
        f"env {MARKER}={owner()}-7 sh -c 'echo $$ > {theirs}; exec sleep 60' & wait"
    )
    dead = subprocess.Popen(["sh", "-c", script], env=os.environ | {MARKER: f"{_dead_owner()}-0"})
    pids: list[int] = []
    try:
        for file in (hidden, theirs):
            until = time.monotonic() + 20
            while not (file.exists() and file.read_text().endswith("\n")) and time.monotonic() < until:
                time.sleep(0.01)  # processes
            pids.append(int(file.read_text()))
        killed = reap(tmp_path / "empty").pids
        assert {dead.pid, pids[0]} <= set(killed)
        assert pids[1] not in killed
        assert dead.wait(5) == -9
        os.kill(pids[1], 0)
    finally:
        for pid in (dead.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
