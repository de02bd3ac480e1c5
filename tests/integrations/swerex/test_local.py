"""Everything that holds for any back end, over SWE-ReX's own server on this machine."""

import pytest
from agentkit_swerex import SwerexBackend

from agentkit.testing.sandboxes import ConformanceSuite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def backend(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> SwerexBackend:
    monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path_factory.mktemp("state")))
    return SwerexBackend()


class TestConformance(ConformanceSuite):
    loops = ("asyncio",)
    slack_s = 3.0
    concurrency = 3
