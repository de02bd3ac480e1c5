"""Each test of the sandbox suites can fail: back ends with one fault each, and what is said of it."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from agentkit.protocols import ExecResult
from agentkit.sandbox.registry import Registry
from agentkit.testing.sandboxes import Traces
from agentkit.testing.sandboxes.cases import cases, complaints
from agentkit.testing.sandboxes.suite import unique_s
from agentkit.testing.sandboxes.sweep import awaits_of, cancel_at

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).with_name("planted_sandboxes.py")


def _planted() -> dict[str, tuple[str, str]]:
    spec = importlib.util.spec_from_file_location("planted_sandboxes", PLANTED)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PLANTED


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the one test of each class of planted_sandboxes.py said: "" where it passed."""
    folder = tmp_path_factory.mktemp("planted")
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(PLANTED.parent)])
    done = subprocess.run(
        [*command, "-W", "ignore", "--rootdir", str(folder), "-c", os.devnull, str(PLANTED)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        said = [f"{one.get('message')}\n{one.text}" for one in case if one.tag in ("failure", "error", "skipped")]
        name = case.attrib["classname"].rpartition(".")[2]
        found[name] = "\n".join([found.get(name, ""), *said]).strip()
    return found


@pytest.mark.slow
@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", sorted(_planted()))
def test_a_fault_is_seen_and_told(outcomes: dict[str, str], name: str) -> None:
    test, complaint = _planted()[name]
    assert outcomes[name], f"{test} passed"
    assert complaint in outcomes[name]


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_what_has_no_fault_passes(outcomes: dict[str, str]) -> None:
    assert {name for name, said in outcomes.items() if not said} == {"TestRegisters"}


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_example_passes_its_suites(tmp_path: Path) -> None:
    """On asyncio, where conformance and one leak test take some seconds."""
    chosen = "asyncio and (TestConformance or many)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "-k", chosen]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(ROOT / "examples" / "test_own_sandbox.py")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_the_battery_is_whole() -> None:
    battery = cases()
    assert len({case.name for case in battery}) == len(battery) == 52
    assert all(step["run"] is not None for case in battery for step in case.steps)


def test_a_step_says_nothing_that_nobody_checks() -> None:
    sound = ExecResult(0, b"x", 1)
    assert complaints({"run": "x"}, sound, slack_s=0.0) == []
    assert complaints({"run": "x", "exit_cod": 0}, sound, slack_s=0.0) == ["exit_cod is nothing that a step can say"]
    for case in cases():
        for step in case.steps:
            said = complaints(step, ExecResult(0, b"", 0), slack_s=0.0)
            assert not [line for line in said if "nothing that a step can say" in line]


def test_a_step_says_what_its_result_must_be() -> None:
    result = ExecResult(3, b"found", 5, duration_s=2.0)
    for step in (
        {"exit_code": 3},
        {"output": "found", "max_s": 2.0},
        {"contains": "oun", "min_s": 2.0},
        {"starts": "fo"},
    ):
        assert complaints(step, result, slack_s=0.0) == []
    for step in (
        {"exit_code": 0},
        {"output": "foun"},
        {"total_bytes": 4},
        {"truncated": True},
        {"timed_out": True},
        {"died": True},
        {"output_re": "foun"},
        {"contains": "x"},
        {"starts": "ound"},
        {"max_output": 4},
        {"min_s": 2.1},
        {"max_s": 1.9},
    ):
        assert len(complaints(step, result, slack_s=0.0)) == 1, step
    assert len(complaints({"nonzero": True}, ExecResult(0, b""), slack_s=0.0)) == 1
    assert complaints({"max_s": 1.9}, result, slack_s=0.2) == []


@pytest.mark.slow
def test_traces_sees_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path / "state"))
    folder = tmp_path / "folder"
    folder.mkdir()
    mark = unique_s()
    with subprocess.Popen(["sleep", "50"]) as earlier:
        traces = Traces(mark, folder)
        assert traces.left() == []
        with subprocess.Popen(["sleep", "51"]) as below:
            assert traces.left() == [f"process {below.pid} (sleep 51)"]
            below.kill()
        stray = subprocess.run(["sh", "-c", f"setsid sleep {mark} >&- & echo $!"], stdout=subprocess.PIPE, check=True)
        until = time.monotonic() + 30
        while "setsid" in "".join(traces.left()) and time.monotonic() < until:  # not yet what it will become
            time.sleep(0.01)  # processes
        assert traces.left() == [f"process {int(stray.stdout)} (sleep {mark})"]
        os.kill(int(stray.stdout), 9)
        entry = Registry().add("host", "one")
        (folder / "file").touch()
        assert traces.left() == ["entry host one", f"in {folder}: file"]
        Registry().forget(entry)
        (folder / "file").unlink()
        descriptors = [os.dup(2) for _ in range(10)]
        assert "open descriptors" in "".join(traces.left())
        for descriptor in descriptors:
            os.close(descriptor)
        assert traces.left() == []
        earlier.kill()


async def test_awaits_are_counted_and_cancelled_at() -> None:
    import anyio

    seen: list[int] = []

    async def three() -> None:
        for number in range(3):
            await anyio.sleep(1)
            seen.append(number)

    total = await awaits_of(three)
    assert seen == [0, 1, 2]
    ends: list[int] = []
    for at in range(1, total + 1):
        seen.clear()
        went = await cancel_at(three, at)
        assert went.sent
        ends.append(len(seen))
    assert sorted(ends) == ends
    assert {0, 1, 2} <= set(ends), "each of the naps is cancelled at some await"
    seen.clear()
    assert not (await cancel_at(three, total + 1)).sent
    assert seen == [0, 1, 2]
