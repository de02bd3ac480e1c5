"""The apptainer back end, on what its command line means; apptainer itself cannot be installed here."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import SandboxBackend, SandboxSpec
from agentkit.sandbox.containers import ApptainerBackend
from agentkit.testing.sandboxes import ConformanceSuite, LeakSuite, Traces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
FAKE = Path(__file__).parents[1] / "rig" / "apptainer"


@pytest.fixture
def backend(directory: Path) -> SandboxBackend:
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("bubblewrap is not installed")
    return ApptainerBackend(command=str(FAKE), image="/", directory=str(directory))


class TestConformance(ConformanceSuite):
    slack_s = 3.0
    concurrency = 3


class TestLeaks(LeakSuite):
    slack_s = 3.0
    max_awaits = 8
    many = 8
    kills = 2
    settle_s = 10.0

    @pytest.fixture
    def leftovers(self, backend: SandboxBackend, state: Path, mark: str, directory: Path) -> Callable[[], list[str]]:
        return Traces(mark, directory).left


async def test_what_apptainer_is_called_with(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record"
    monkeypatch.setenv("APPTAINER_RECORD", str(record))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    backend = ApptainerBackend(command=str(FAKE), image="/", arguments=("--nv",), directory=str(directory))
    assert backend.available() is None
    spec = SandboxSpec(env={"A": "hunter3"}, read_only=(("/usr/share", "/given"),), lifetime_s=99.5)
    sandbox = await backend.start(spec)
    try:
        assert (await sandbox.run("echo $A $FROM_THE_IMAGE; ls /given | head -1; pwd")).exit_code == 0
        assert "hunter2" not in (await sandbox.run("env")).text
        shared = next(directory.iterdir()) / "shared"
        assert record.read_text().splitlines() == [
            *("exec", "--containall", "--cleanenv", "--pid", "--no-init", "--writable-tmpfs", "--no-privs"),
            *(("--hostname", "sandbox") if os.geteuid() == 0 else ()),
            *("--net", "--network", "none", "--bind", f"{shared}:/.agentkit:ro", "--bind", "/usr/share:/given:ro"),
            *("--nv", "/", "bash", "--noprofile", "--norc", "-p", "/.agentkit/guest", "/.agentkit", "100", "/work"),
        ]
    finally:
        await sandbox.close()
    assert list(directory.iterdir()) == []


async def test_what_cannot_start_says_why(directory: Path, tmp_path: Path) -> None:
    backend = ApptainerBackend(command=str(FAKE), directory=str(directory))
    with pytest.raises(ConfigError, match="set image"):
        await backend.start(SandboxSpec())
    with pytest.raises(SandboxError, match="could not open image"):
        await backend.start(SandboxSpec(image=str(tmp_path)))
    with pytest.raises(SandboxError, match="colon"):
        await backend.start(SandboxSpec(image="/", read_only=(("/a:rw", "/b"),)))
    with pytest.raises(SandboxError, match="no-such-apptainer' is not installed"):
        await ApptainerBackend(command="no-such-apptainer", image="/").start(SandboxSpec())
    assert "not installed" in (ApptainerBackend(command="no-such-apptainer").available() or "")
    assert list(directory.iterdir()) == []
