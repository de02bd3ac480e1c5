"""The runner of planted defects tells one that was seen from one that was not, and from one that proves nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MUTANTS = Path(__file__).parent / "mutants"
SOURCE = "def double(n):\n    return n * 2\n\n\ndef triple(n):\n    return n * 3\n"
TESTS = "from sample import double\n\n\ndef test_double():\n    assert double(2) == 4\n"


def entry(name: str, **fields: object) -> str:
    values = {
        "name": name,
        "file": "sample.py",
        "find": "n * 2",
        "replace": "n * 5",
        "tests": ["test_sample.py"],
        "invariant": "X1",
        **fields,
    }
    return "[[mutant]]\n" + "".join(f"{key} = {value!r}\n" for key, value in values.items())


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    (tmp_path / "sample.py").write_text(SOURCE)
    (tmp_path / "test_sample.py").write_text(TESTS)
    (tmp_path / "tests/mutants").mkdir(parents=True)
    shutil.copy(MUTANTS / "mutant_profile.py", tmp_path / "tests/mutants")
    return tmp_path


def run(sample: Path, toml: str, *arguments: str) -> tuple[int, str]:
    folder = sample / "tests/mutants"
    (folder / "sample.toml").write_text(toml)
    command = [sys.executable, str(MUTANTS / "run.py"), "--root", str(sample), "--folder", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_defect_that_a_test_sees_is_caught(sample: Path):
    code, output = run(sample, entry("seen"))
    assert code == 0, output
    assert "1 caught, 0 survived, 0 invalid" in output
    assert "test_sample.py::test_double" in output
    assert (sample / "sample.py").read_text() == SOURCE


@pytest.mark.slow
def test_what_is_not_seen_or_proves_nothing_fails(sample: Path):
    toml = "\n".join(
        [
            entry("unseen", find="n * 3", replace="n * 4"),
            entry("ambiguous", find="return n", replace="return 1 + n"),
            entry("absent", find="n * 7"),
            entry("no-python", replace="n *"),
            entry("breaks-collection", find="def double(n)", replace="def twice(n)"),
            entry("seen"),
        ]
    )
    code, output = run(sample, toml)
    assert code == 1, output
    assert "1 caught, 1 survived, 4 invalid" in output
    for name, status in [("unseen", "survived"), ("ambiguous", "invalid"), ("breaks-collection", "invalid")]:
        assert [line for line in output.splitlines() if name in line.split() and status in line.split()], output


@pytest.mark.slow
def test_a_part_may_name_its_interpreter(sample: Path):
    (sample / "env").symlink_to(sys.prefix)
    within = Path(sys.executable).relative_to(sys.prefix)
    code, output = run(sample, f'python = "env/{within}"\n{entry("seen")}')
    assert code == 0, output
    assert "1 caught, 0 survived, 0 invalid" in output
    code, output = run(sample, f'python = "no-env/bin/python"\n{entry("seen")}')
    assert code == 1, output
    assert "1 mutants left out, there is no no-env/bin/python: sample" in output


@pytest.mark.slow
def test_tests_that_fail_anyway_prove_nothing(sample: Path):
    (sample / "test_sample.py").write_text(TESTS.replace("== 4", "== 5"))
    code, output = run(sample, entry("seen"))
    assert code == 1
    assert "0 caught, 0 survived, 1 invalid" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (entry("a") + entry("a"), "is taken"),
        (entry("a", tests=[]), "list of tests"),
        (entry("a", colour="red"), "check colour"),
    ],
)
def test_a_wrong_file_is_refused(sample: Path, toml: str, says: str):
    code, output = run(sample, toml)
    assert code == 2
    assert says in output


@pytest.mark.slow
def test_only_and_list_choose(sample: Path):
    toml = entry("seen") + entry("other", invariant="X2")
    assert run(sample, toml, "--list", "--only", "X2")[1].split() == ["X2", "sample", "other", "sample.py"]
    assert run(sample, toml, "--only", "no-such")[0] == 2
