"""Plants known defects, one at a time, and checks that the tests named for each of them fail.

Reads `tests/mutants/*.toml` (README.md beside this file has the format), works on copies of the tree, prints a table by
invariant, and exits 1 if a defect survives, cannot be planted, or names tests that fail without it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (
    ".", "integrations/hf", "integrations/modal", "integrations/openai", "integrations/remote", "integrations/swerex",
    "integrations/vefaas", "integrations/verl", "integrations/vllm", "tests/mutants",
)  # fmt: skip
LEFT_OUT_ANYWHERE = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
LEFT_OUT_ON_TOP = shutil.ignore_patterns(".git", ".venv*", "dist", "build", "runs")
FIELDS = ("name", "file", "find", "replace", "tests", "invariant")
TEST_TIMEOUT_S = 30  # pytest-timeout fails a test that hangs: an endless loop is a defect seen
RUN_TIMEOUT_S = 300  # past this the run itself hangs, and proves nothing
GREEN, TESTS_FAILED = 0, 1  # pytest's exit codes; 2 to 5 are broken collections, bad arguments and empty selections


@frozen(kw_only=True)
class Mutant:
    """One defect to plant: the only occurrence of `find` in `file` becomes `replace`; `tests` must then fail.

    `python` runs the tests: a path from the root, or empty for the interpreter that this runs on.
    """

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...] = field(converter=tuple)
    invariant: str
    part: str
    python: str = ""

    def planted(self, source: str) -> str:
        """The source with the defect in it.

        Raises:
            ValueError: the defect cannot be planted, and why.
        """
        if (found := source.count(self.find)) != 1:
            raise ValueError(f"`find` occurs {found} times in {self.file}, expected once")
        mutated = source.replace(self.find, self.replace)
        if mutated == source:
            raise ValueError("`find` and `replace` are the same")
        if self.file.endswith(".py"):
            try:
                compile(mutated, self.file, "exec")
            except SyntaxError as error:
                raise ValueError(f"{self.file} is no longer Python: line {error.lineno}: {error.msg}") from error
        return mutated


@frozen
class Verdict:
    """What became of one mutant: `caught`, `survived`, or `invalid` (it proves nothing)."""

    mutant: Mutant
    status: str
    detail: str
    seconds: float


def read_mutants(folder: Path) -> tuple[Mutant, ...]:
    """The mutants of every part, in the order of the files.

    Raises:
        ValueError: an entry lacks a field, has one too many, or repeats a name.
    """
    mutants: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        part = tomllib.loads(path.read_text())
        for number, entry in enumerate(part["mutant"], 1):
            if set(entry) != set(FIELDS):
                wrong = ", ".join(sorted(set(entry) ^ set(FIELDS)))
                raise ValueError(f"{path.name}: mutant {number} must have exactly {', '.join(FIELDS)}; check {wrong}")
            if not isinstance(entry["tests"], list) or not entry["tests"]:
                raise ValueError(f"{path.name}: mutant {number} must name a list of tests, found {entry['tests']!r}")
            mutant = Mutant(**entry, part=path.stem, python=part.get("python", ""))
            if mutant.name in mutants:
                raise ValueError(f"{path.name}: the name {mutant.name!r} is taken in {mutants[mutant.name].part}.toml")
            mutants[mutant.name] = mutant
    return tuple(mutants.values())


def copy_tree(root: Path, tree: Path) -> None:
    """Copies the sources from `root` to `tree`, without environments, caches, outputs and history."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        on_top = LEFT_OUT_ON_TOP(folder, names) if Path(folder) == root else set()
        return LEFT_OUT_ANYWHERE(folder, names) | on_top

    shutil.copytree(root, tree, ignore=left_out, symlinks=True)


def run_tests(python: Path, tree: Path, tests: Iterable[str], *options: str) -> tuple[int | None, str]:
    """pytest's exit code (None: it hung) and output for `tests` in `tree`, importing the packages of that tree."""
    paths = os.pathsep.join(str((tree / root).resolve()) for root in SOURCE_ROOTS)
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",  # a stale .pyc of the same second and size would hide the defect
        "AGENTKIT_HYPOTHESIS": "mutants",
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "mutant_profile", "-p", "no:cacheprovider", "--tb=line"]
    command += [f"--timeout={TEST_TIMEOUT_S}", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, errors="replace", timeout=RUN_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as hung:
        return None, str(hung.stdout or "")
    return done.returncode, done.stdout + done.stderr


def interpreter(mutant: Mutant, root: Path) -> Path:
    """What runs the mutant's tests."""
    return root / mutant.python if mutant.python else Path(sys.executable)


def judge(mutant: Mutant, root: Path, tree: Path) -> Verdict:
    """The verdict on one mutant, planted in `tree` and taken out again."""
    started = time.monotonic()

    def verdict(status: str, detail: str) -> Verdict:
        return Verdict(mutant, status, detail, time.monotonic() - started)

    path = tree / mutant.file
    if not path.is_file():
        return verdict("invalid", f"no file {mutant.file}")
    original = path.read_text()
    try:
        path.write_text(mutant.planted(original))
        code, output = run_tests(interpreter(mutant, root), tree, mutant.tests, "-x")
    except ValueError as error:
        return verdict("invalid", str(error))
    finally:
        path.write_text(original)
    if code == TESTS_FAILED and (seen := re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)):
        return verdict("caught", seen[1])
    if code == GREEN:
        return verdict("survived", f"passed: {' '.join(mutant.tests)}")
    if code is None:
        return verdict("invalid", f"the tests ran for more than {RUN_TIMEOUT_S} s")
    return verdict("invalid", f"pytest exited {code}: {last_line(output)}")


def last_line(output: str) -> str:
    """The last line of pytest's output that says something."""
    return next((line for line in reversed(output.splitlines()) if line.strip()), "no output")


def failing_tests(mutants: Sequence[Mutant], root: Path, tree: Path) -> tuple[str, ...]:
    """The tests named by these mutants that fail with nothing planted; all that are named if pytest could not run."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    code, output = run_tests(interpreter(mutants[0], root), tree, tests)
    print(f"  {mutants[0].part}: {last_line(output)}", flush=True)
    if code == GREEN:
        return ()
    print("\n".join(output.splitlines()[-30:]))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return tuple(failed) if code == TESTS_FAILED and failed else tests


def proves_nothing(mutant: Mutant, failing: Iterable[str]) -> bool:
    """Whether a test that the mutant names fails without it."""
    return any(
        failed == test or failed.startswith((f"{test}::", f"{test}[")) for failed in failing for test in mutant.tests
    )


def judge_all(mutants: Sequence[Mutant], root: Path, trees: Sequence[Path]) -> list[Verdict]:
    """A verdict for every mutant, as many at a time as there are trees."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(mutant: Mutant) -> Verdict:
        tree = free.get()
        try:
            return judge(mutant, root, tree)
        finally:
            free.put(tree)

    verdicts = []
    with ThreadPoolExecutor(len(trees)) as threads:
        for verdict in threads.map(one, mutants):
            print(f"  {verdict.status:<9}{verdict.seconds:6.1f} s  {verdict.mutant.name}", flush=True)
            verdicts.append(verdict)
    return verdicts


def columns(rows: Iterable[tuple[str, ...]]) -> str:
    """The rows as lines of text whose fields stand below one another."""
    ordered = list(rows)
    widths = [max(map(len, column)) for column in zip(*ordered, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in ordered)


def table(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as lines of text, sorted by invariant."""
    ordered = sorted(verdicts, key=lambda verdict: (verdict.mutant.invariant, verdict.mutant.part, verdict.mutant.name))
    return columns((one.mutant.invariant, one.mutant.name, one.status, one.detail) for one in ordered)


def chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> tuple[Mutant, ...]:
    """The mutants with these names, or of these parts or invariants; all of them if there are no names.

    Raises:
        ValueError: a name fits nothing.
    """
    for name in names:
        if not any(name in (one.name, one.part, one.invariant) for one in mutants):
            raise ValueError(f"no mutant, part or invariant is called {name!r}; --list shows them")
    return tuple(one for one in mutants if not names or {one.name, one.part, one.invariant} & set(names))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 if every chosen mutant was caught, 1 if not, 2 if the files or arguments are wrong."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a mutant, part or invariant")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time (default: 2)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        mutants = chosen(read_mutants(options.folder), options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print(columns((one.invariant, one.part, one.name, one.file) for one in mutants))
        return 0

    root = options.root.resolve()
    for python in sorted({one.python for one in mutants if not interpreter(one, root).exists()}):
        left_out = [one for one in mutants if one.python == python]
        print(f"{len(left_out)} mutants left out, there is no {python}: {', '.join({one.part for one in left_out})}")
        mutants = tuple(one for one in mutants if one.python != python)

    with tempfile.TemporaryDirectory(prefix="agentkit-mutants-") as folder:
        trees = [Path(folder) / f"tree{number}" for number in range(max(1, options.jobs))]
        for tree in trees:
            copy_tree(options.root, tree)
        print(f"with nothing planted ({len(mutants)} mutants):", flush=True)
        parts = dict.fromkeys(mutant.part for mutant in mutants)
        failing = {part: failing_tests([one for one in mutants if one.part == part], root, trees[0]) for part in parts}
        idle = {one for one in mutants if proves_nothing(one, failing[one.part])}
        print("planted:", flush=True)
        verdicts = judge_all([one for one in mutants if one not in idle], root, trees)

    verdicts += [
        Verdict(one, "invalid", "a test it names fails with nothing planted", 0.0) for one in mutants if one in idle
    ]
    print(f"\n{table(verdicts)}\n")
    counts = {status: sum(one.status == status for one in verdicts) for status in ("caught", "survived", "invalid")}
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0 if verdicts and counts["caught"] == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
