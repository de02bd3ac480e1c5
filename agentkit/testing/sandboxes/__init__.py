"""What every sandbox back end must do, as pytest tests: subclass a suite, give it a fixture `backend`.

`ConformanceSuite` is what the Protocols promise, the shell battery included; `SecuritySuite` is for back ends that
isolate; `LeakSuite` cancels and kills at every moment and looks for what is left; `BoundsSuite` watches how late limits
strike and what output costs. Needs the extra `testing`.
"""

from agentkit.testing.sandboxes._pytest import pytest as _pytest

_pytest.register_assert_rewrite(
    *(
        f"{__name__}.{part}"
        for part in ("commands", "files", "specs", "intrusion", "archives", "exhaustion", "leaks", "bounds")
    )
)

from agentkit.testing.sandboxes.suite import SandboxSuite as SandboxSuite  # noqa: E402  # after that
from agentkit.testing.sandboxes.conformance import ConformanceSuite as ConformanceSuite  # noqa: E402
from agentkit.testing.sandboxes.security import SecuritySuite as SecuritySuite  # noqa: E402
from agentkit.testing.sandboxes.leaks import LeakSuite as LeakSuite  # noqa: E402
from agentkit.testing.sandboxes.bounds import BoundsSuite as BoundsSuite  # noqa: E402
from agentkit.testing.sandboxes.traces import Traces as Traces  # noqa: E402
