from pathlib import Path

import pytest

from agentkit.sandbox.cgroups import Hierarchy
from agentkit.sandbox.shortcomings import counts_processes, obstacles, shortcomings

EVERYTHING = (Hierarchy(Path("/sys/fs/cgroup"), 2, frozenset({"cpu", "memory", "pids"})),)


def _version(directory: Path, text: str) -> str:
    program = directory / "bwrap"
    program.write_text(f"#!/bin/sh\necho bubblewrap {text}\n")
    program.chmod(0o755)
    return str(program)


def test_user_namespaces_that_are_switched_off_are_named_with_their_cure(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "user").mkdir()
    (tmp_path / "kernel/unprivileged_userns_clone").write_text("0\n")
    (tmp_path / "user/max_user_namespaces").write_text("96365\n")
    (tmp_path / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    first, second = obstacles(tmp_path)
    assert "(kernel.unprivileged_userns_clone is 0): sysctl -w kernel.unprivileged_userns_clone=1" in first
    assert "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in second
    assert obstacles(tmp_path / "nothing") == ()


@pytest.mark.slow
def test_a_bubblewrap_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.sandbox.shortcomings.obstacles", lambda: ())
    assert shortcomings(_version(tmp_path, "0.8.0"), EVERYTHING) == ()
    assert shortcomings(_version(tmp_path, "0.11.1"), EVERYTHING) == ()
    (old,) = shortcomings(_version(tmp_path, "0.6.2"), EVERYTHING)
    assert old == "bubblewrap 0.6.2 is too old to make sandboxes: install 0.7.0 or newer"
    assert shortcomings("/nonexistent/bwrap", EVERYTHING) == ()


def test_limits_without_control_groups_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.sandbox.shortcomings.obstacles", lambda: ())
    monkeypatch.setattr("agentkit.sandbox.shortcomings.counts_processes", lambda: True)
    said = shortcomings("/nonexistent/bwrap", (Hierarchy(Path("/x"), 1, frozenset({"cpu"})),))
    assert [line.partition(",")[0] for line in said] == ["limits.memory_bytes cannot be kept"]
    monkeypatch.setattr("agentkit.sandbox.shortcomings.counts_processes", lambda: False)
    said = shortcomings("/nonexistent/bwrap", ())
    assert [line.partition(" ")[0] for line in said] == ["limits.memory_bytes", "limits.processes", "limits.cpus"]


def test_a_missing_filter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.sandbox.shortcomings.obstacles", lambda: ())
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    (said,) = shortcomings("/nonexistent/bwrap", EVERYTHING)
    assert "not filtered on s390x" in said


def test_since_when_processes_are_counted_in_each_user_namespace() -> None:
    assert not counts_processes("5.13.19-generic")
    assert counts_processes("5.14.0")
    assert counts_processes("6.1.0-18-amd64")
    assert not counts_processes("strange")
