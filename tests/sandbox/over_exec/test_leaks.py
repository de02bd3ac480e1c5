"""Cancelled at every await of a sandbox over one call: nothing is left inside, and the session goes on."""

import pytest

from agentkit.testing.sandboxes import LeakSuite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class TestLeaks(LeakSuite):
    loops = ("trio",)
    slack_s = 4.0
    max_awaits = 5
    many = 12
