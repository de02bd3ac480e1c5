"""All that the Protocols promise."""

from agentkit.testing.sandboxes.commands import CommandTests
from agentkit.testing.sandboxes.files import FileTests
from agentkit.testing.sandboxes.specs import SpecTests


class ConformanceSuite(CommandTests, FileTests, SpecTests):
    """What holds for a sandbox of any back end; what a back end does not claim is skipped.

    A test that uses a sandbox `slack_s` slower than an idle machine still passes, so it says nothing on speed.
    """
