"""What docs/testing.md tells a user to write works in a project of the user's own, with plain pytest."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()


def indented(first: str) -> str:
    """The block set in by four spaces that begins with `first`."""
    (block,) = re.findall(rf"\n\n((?:    {re.escape(first)}[^\n]*\n)(?:(?:    [^\n]*)?\n)*)", PAGE)
    return textwrap.dedent(block)


@pytest.mark.slow
def test_the_page_works_in_a_project_of_its_own(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    body = textwrap.indent("\n".join(blocks), "    ")
    module = f"import pytest\n\npytestmark = pytest.mark.anyio\n\nasync def test_page():\n{body}"
    plans = indented("from hypothesis import given, settings")
    setup = "import agentkit as ak\nfrom agentkit.models import ScriptedModel\n"
    setup += "agent, tasks = ak.Agent(ScriptedModel(['hello'])), [ak.Task('a', 'Hello?')]\n"
    (tmp_path / "conftest.py").write_text(indented("import pytest"))
    (tmp_path / "test_page.py").write_text(module)
    (tmp_path / "test_plans.py").write_text(setup + plans)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout, "the page on both loops, and the plans"
