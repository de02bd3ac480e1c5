"""Containers of podman pass the suites that every back end must pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkit.protocols import SandboxBackend
from agentkit.sandbox.containers import PodmanBackend
from agentkit.testing.sandboxes import ConformanceSuite, LeakSuite, SecuritySuite, Traces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def backend(podman: PodmanBackend) -> SandboxBackend:
    return podman


class TestConformance(ConformanceSuite):
    slack_s = 3.0
    concurrency = 3
    may_lack = frozenset({"pgrep"})


class TestSecurity(SecuritySuite):
    slack_s = 3.0


class TestLeaks(LeakSuite):
    slack_s = 3.0
    max_awaits = 6
    many = 8
    kills = 2
    settle_s = 15.0

    @pytest.fixture
    def leftovers(
        self, backend: SandboxBackend, rig: Any, state: Path, mark: str, directory: Path
    ) -> Callable[[], list[str]]:
        before = set(rig.names())  # of other tests, and of whoever else is at work here
        traces = Traces(mark, directory)
        return lambda: [*(name for name in rig.names() if name not in before), *traces.left()]

    @pytest.fixture
    def recipe(self, rig: Any, directory: Path) -> str:
        arguments = f"command={rig.command!r}, image={rig.image!r}, directory={str(directory)!r}"
        return f"from agentkit.sandbox.containers import PodmanBackend\nbackend = PodmanBackend({arguments})"
