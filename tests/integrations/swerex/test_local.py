"""Everything that holds for any back end, over SWE-ReX's own server on this machine."""

import pytest
from agentkit_swerex import SwerexBackend

from agentkit.testing.sandboxes import BoundsSuite, ConformanceSuite, LeakSuite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def backend() -> SwerexBackend:
    return SwerexBackend()


class TestConformance(ConformanceSuite):
    loops = ("asyncio",)
    concurrency = 6


class TestLeaks(LeakSuite):
    loops = ("asyncio",)
    max_awaits = 5
    kills = 1
    many = 4

    @pytest.fixture
    def recipe(self) -> str:
        return "from agentkit_swerex import SwerexBackend\nbackend = SwerexBackend()\n"


class TestBounds(BoundsSuite):
    loops = ("asyncio",)
    generosity = 20.0
