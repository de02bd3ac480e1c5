"""Whatever a process of verl imports first, the back end for CPUs is registered once."""

import subprocess
import sys

import pytest
from agentkit_verl.cpu import environment


@pytest.mark.parametrize("first", ["verl", "agentkit_verl.cpu.plugin", "agentkit_verl.cpu.weights"])
def test_any_of_its_modules_may_be_what_loads_verl(first: str) -> None:
    asked = (
        "from verl.checkpoint_engine.base import CheckpointEngineRegistry as found; print(found.get('agentkit_cpu'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import {first}; {asked}"],
        env=environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "MailboxEngine" in done.stdout
