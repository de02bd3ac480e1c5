"""The benchmark of the two loops runs: what it prints is taken elsewhere, that both end with one row, it checks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = "--turns 2 --sampled 40 --observed 60 --repeat 1 --sessions 2 --each 3 --memory 3 --held 1"


@pytest.mark.timeout(290)
def test_both_loops_end_with_the_script_and_ours_weighs_less() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/verl_loop.py", *SMALLEST.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    for loop in ("verl", "ours"):
        assert len(re.findall(rf"^  {loop} +[0-9.]+ ms a turn", done.stdout, re.MULTILINE)) == 4, done.stdout
    without, with_logprobs = re.findall(r"^  ours +([0-9,]+) KiB \(", done.stdout, re.MULTILINE)
    assert int(without) < int(with_logprobs)
