"""The batteries of every back end, over Modal's own client."""

from typing import Any

import pytest
from agentkit_modal import ModalBackend

from agentkit.protocols import SandboxSpec
from agentkit.testing.sandboxes import ConformanceSuite
from tests.integrations.modal.fake_modal import FakeModal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class TestConformance(ConformanceSuite):
    loops = ("asyncio",)
    slack_s = 5.0

    def spec(self, **changes: Any) -> SandboxSpec:
        """The fake cloud's own sandboxes must be told where a directory can be made."""
        return SandboxSpec(**({"labels": {"cwd": changes["cwd"]}} if "cwd" in changes else {}), **changes)

    @pytest.fixture
    def backend(self, cloud: FakeModal) -> ModalBackend:
        return ModalBackend(starts_per_s=1000)
