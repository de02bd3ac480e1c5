"""The batteries of every back end, on one that can do nothing but run a program; on trio, as clouds run on asyncio."""

import pytest

from agentkit.testing.sandboxes import ConformanceSuite, SecuritySuite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class TestConformance(ConformanceSuite):
    loops = ("trio",)
    slack_s = 4.0  # each command is several processes


class TestSecurity(SecuritySuite):
    loops = ("trio",)
    slack_s = 4.0
