"""Why no container starts, with the cure: on what engines really say, and on the engine of this machine."""

import os
from pathlib import Path
from typing import Any

import pytest

from agentkit.sandbox.containers import PodmanBackend, obstacles

pytestmark = pytest.mark.slow

SAID = {
    "cgroups": (
        "Error: OCI runtime error: crun: cgroups in hybrid mode not supported",
        "umount /sys/fs/cgroup/unified",
    ),
    "limits": (
        "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied",
        "default_ulimits",
    ),
    "subuid": ('Error: exec: "newuidmap": executable file not found in $PATH', "usermod --add-subuids"),
    "daemon": ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "systemctl start docker"),
    "unknown": ("Error: something of tomorrow", "run it by hand"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_engines_say_is_told_with_its_cure(name: str, tmp_path: Path) -> None:
    said, cure = SAID[name]
    engine = tmp_path / ("docker" if name in ("daemon", "unknown") else "podman")
    engine.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{said}\nEOF\nexit 126\n")
    engine.chmod(0o755)
    found = {one.name: one for one in obstacles(str(engine))}
    assert cure in found[name].cure
    assert said in found[name].found
    if name != "daemon" and name != "unknown":
        assert cure in (PodmanBackend(command=str(engine)).available() or "")


def test_a_missing_engine_is_one() -> None:
    assert [one.name for one in obstacles("no-such-engine run")] == ["missing"]
    assert "no-such-engine" in (PodmanBackend(command="no-such-engine").available() or "")


def test_where_a_container_starts_nothing_is_in_the_way(rig: Any) -> None:
    assert obstacles(rig.command) == ()
    assert obstacles(rig.command, limits=True) == ()
    assert PodmanBackend(command=rig.command).shortcomings() == ()


def test_the_plain_engine_is_cured_by_what_the_doctor_says(rig: Any) -> None:
    found = obstacles("podman")
    if not found:
        pytest.skip("podman starts containers here as it is")
    assert os.geteuid() == 0
    assert {one.name for one in found} <= {"cgroups", "limits"}, "all of what podman-here.sh cures, and no more"
    assert all("podman-here.sh" in one.cure for one in found)
