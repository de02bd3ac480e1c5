"""The benchmarks run: what they print is taken elsewhere, what they check while they run is checked here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        env={"PATH": "/usr/bin:/bin", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_scripts_find_the_tokenize_of_the_standard_library() -> None:
    found = run("-c", "import sys; sys.path.insert(0, 'benchmarks'); import tokenize; print(tokenize.__file__)").strip()
    assert Path(found).parent != ROOT / "benchmarks"
    assert "def generate_tokens(" in Path(found).read_text()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ways_to_append_give_the_same_ids_and_touch_what_is_new() -> None:
    small = ["--turns", "6", "--every", "3", "--repeat", "2", "--sampled", "60", "--observed", "90"]
    shown = run("benchmarks/tokenize.py", *small, "--only", "llama3.1")
    assert re.search(r"the same ids in the end as +full re-render, encoded apart, verl\n", shown), shown
    assert re.search(r"ours / limit \(target: 1\.3\) +[0-9.]+ times", shown), shown
    (encoded,) = re.findall(r"characters encoded, less the new ones +(-?\d+) at most", shown)
    assert int(encoded) <= 64  # the stop is encoded with what follows it
