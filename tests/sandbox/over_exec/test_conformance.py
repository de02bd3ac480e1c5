"""The batteries of every back end, on one that can do nothing but run a program."""

import pytest

from agentkit.testing.sandboxes import ConformanceSuite

pytestmark = pytest.mark.slow


class TestConformance(ConformanceSuite):
    slack_s = 4.0  # each command is several processes
