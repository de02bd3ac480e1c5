"""What an isolated sandbox keeps apart."""

from agentkit.testing.sandboxes.archives import ArchiveTests
from agentkit.testing.sandboxes.exhaustion import ExhaustionTests
from agentkit.testing.sandboxes.intrusion import IntrusionTests


class SecuritySuite(IntrusionTests, ArchiveTests, ExhaustionTests):
    """What programs inside may try, and must not get. Skipped for a back end that does not claim to isolate.

    With `python3` among `may_lack`, what needs it is left out. Limits are tried where the back end claims to keep
    them. Where the isolation is broken, no harm is done to the host: only files that the test made are written to, only
    a process that it started is killed, and bombs are bounded.
    """
