"""What pytest learns from agentkit: how many conversations an alignment suite tries, and which.

Loaded in every run of pytest where agentkit is installed, so it does no more than that.
"""

from typing import Any


def pytest_addoption(parser: Any) -> None:
    """Add the options of alignment suites."""
    group = parser.getgroup("agentkit", "agentkit: alignment suites of tokenizers and chat templates")
    group.addoption(
        "--alignment-examples", type=int, metavar="N", help="conversations tried for each property (default: 30)"
    )
    group.addoption("--alignment-seed", type=int, metavar="N", help="which conversations are tried (default: 0)")
