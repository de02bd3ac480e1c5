"""The back end of pages/sandbox_own.py passes the suites. Real time: about half a minute."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# --8<-- [start:suites]
from agentkit.protocols import SandboxBackend
from agentkit.testing.sandboxes import ConformanceSuite, LeakSuite, Traces

sys.path.insert(0, str(Path(__file__).parent / "pages"))
from sandbox_own import LabelledBackend  # yours is installed


class Mine:
    @pytest.fixture
    def backend(self, tmp_path: Path) -> SandboxBackend:
        (tmp_path / "teams").mkdir()
        return LabelledBackend(directory=tmp_path / "teams")


class TestConformance(Mine, ConformanceSuite):
    """What the Protocols promise."""


class TestLeaks(Mine, LeakSuite):
    """Cancelled at every await, killed at any moment."""

    many = 20

    @pytest.fixture
    def leftovers(self, backend: SandboxBackend, state: Path, mark: str, tmp_path: Path) -> Callable[[], list[str]]:
        teams = tmp_path / "teams"
        traces = Traces(mark)
        return lambda: traces.left() + [str(path) for path in teams.glob("*/*")]


# --8<-- [end:suites]
