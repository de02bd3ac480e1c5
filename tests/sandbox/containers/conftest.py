"""podman as this machine can run it, an image made here, and the guest without any engine."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from attrs import frozen

from agentkit.sandbox.containers import PodmanBackend

ROOT = Path(__file__).parents[3]
PODMAN = str(ROOT / "scripts" / "podman-here.sh")


@frozen
class Rig:
    """A podman that starts containers, and what they are made of."""

    command: str
    image: str
    rootfs: str

    def names(self) -> list[str]:
        """The containers of all owners."""
        listed = self.podman("ps", "--all", "--format", "{{.Names}}")
        return [name for name in listed.split() if name.startswith("agentkit-")]

    def podman(self, *arguments: str) -> str:
        done = subprocess.run([self.command, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


@cache
def _rig() -> Rig | str:
    if os.geteuid() != 0:
        return "the image is made by debootstrap, which wants root"
    for program in ("podman", "debootstrap"):
        if shutil.which(program) is None:
            return f"{program} is not installed: scripts/ensure-podman.sh"
    reason = PodmanBackend(command=PODMAN).available()
    if reason is not None:
        return reason
    made = subprocess.run([str(ROOT / "tests/sandbox/rig/image.sh")], capture_output=True, text=True, timeout=900)
    if made.returncode:
        return f"no image could be made: {made.stderr[-500:]}"
    image, rootfs = made.stdout.split()
    return Rig(PODMAN, image, rootfs)


@pytest.fixture(scope="session")
def rig() -> Rig:
    found = _rig()
    if isinstance(found, str):
        # On a developer's machine the rest is still worth running; a build must not pass without the container tests.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no container can be started: {found}")
    return found


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where containers have their FIFOs, so that a test can see what is left there."""
    return tmp_path_factory.mktemp("fifos")


@pytest.fixture(autouse=True)
def registry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of its own, so that what others have made is not looked at."""
    monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path_factory.mktemp("registry")))


@pytest.fixture
def podman(rig: Rig, directory: Path) -> PodmanBackend:
    return PodmanBackend(command=rig.command, image=rig.image, directory=str(directory))
