"""SWE-ReX's client side runs on asyncio alone; its containers run in podman, made to work where crun refuses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

swerex = pytest.importorskip("swerex", reason="swe-rex is not installed")

ROOT = Path(__file__).parents[3]
_PODMAN = f'#!/bin/sh\nPATH=${{PATH#*:}} exec {ROOT}/scripts/podman-here.sh "$@"\n'
_SERVER = """#!/bin/sh
PYTHONPATH=/opt/rex exec python3 -c 'from swerex.server import main; main()' "$@"
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def registry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of the test's own."""
    path = tmp_path_factory.mktemp("registry")
    monkeypatch.setenv("AGENTKIT_STATE", str(path))
    return path


@pytest.fixture(scope="session")
def rig() -> str:
    """The image of the container tests; podman itself is tried."""
    refuse = pytest.fail if os.environ.get("CI") else pytest.skip
    if shutil.which("podman") is None or os.geteuid() != 0:
        refuse("podman is not installed, or this is not root")
    made = subprocess.run([ROOT / "tests/sandbox/rig/image.sh"], capture_output=True, text=True, timeout=1200)
    image = made.stdout.partition("\n")[0]
    command = [ROOT / "scripts/podman-here.sh", "run", "--rm", "--init", image, "true"]
    if made.returncode == 0:
        made = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if made.returncode:
        refuse(f"podman does not run containers here: {made.stderr.strip()[-300:]}")
    return image


@pytest.fixture
def podman(rig: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A docker deployment for podman; SWE-ReX and what it needs are mounted into the container."""
    place = tmp_path_factory.mktemp("podman")
    for name, text in (("podman", _PODMAN), ("swerex-remote", _SERVER)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    packages = Path(swerex.__file__).parents[1]
    mounts = [f"{packages}:/opt/rex:ro", f"{place}/swerex-remote:/usr/local/bin/swerex-remote:ro"]
    arguments = [word for mount in mounts for word in ("-v", mount)]
    return {"type": "docker", "image": rig, "container_runtime": "podman", "docker_args": arguments}
