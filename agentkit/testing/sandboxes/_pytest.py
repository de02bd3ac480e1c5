"""pytest, or the error that names the extra which brings it."""

from agentkit.extras import require

require("pytest", extra="testing", purpose="agentkit.testing.sandboxes")

import pytest as pytest  # noqa: E402  # after that error
