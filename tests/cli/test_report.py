"""`agentkit report`: text that fits and cannot drive the terminal, JSON, and the page."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given

import agentkit as ak
from agentkit.cli import main
from agentkit.cli.report import render_report
from agentkit.cli.terminal import columns, escape
from agentkit.journal import Journal
from agentkit.models import ScriptedModel
from agentkit.protocols import RolloutKey
from agentkit.runs.report import report
from agentkit.runs.report.escaping import visible
from agentkit.testing.strategies import texts

HOSTILE = "\x1b]0;owned\x07\u202e<b>\ud800 'quoted' \n\t\x9b"


@ak.tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    script = ['<tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>', "done"]
    tasks = [ak.Task(HOSTILE, "go"), ak.Task("plain", "go"), ak.Task("漢字" * 40, "go")]

    def score(trajectory: ak.Trajectory, env: object) -> float:
        del env
        return float(trajectory.task_id == "plain" or trajectory.key.index == 0)

    async def write() -> None:
        agent = ak.Agent(ScriptedModel(script), tools=[echo], reward=score)
        async with (
            Journal.open(folder, writer="inline") as journal,
            ak.Pool(agent, group_size=2, sink=journal) as pool,
        ):
            await pool.run(tasks)
            await journal.begin(RolloutKey("late", 0))

    anyio.run(write)
    return folder


def test_what_a_person_reads(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert "rollouts: 6 sealed of 7, 4 tasks, groups of 2, 1 unfinished" in text
    assert re.search(r"of all rollouts +57.1%  4 of 7  +95%: \S+ to \S+  \(bootstrap over tasks\)", text)
    assert re.search(r"of the graded alone +66.7%  4 of 6  ", text)
    assert re.search(r"finished +- +6 +4\n", text)
    assert re.search(r"echo +6 +0 +0 +0\n", text)
    assert "4 tasks are few" in text
    assert "3 with at least two scores to train on; 1 with all scores alike" in text


def test_what_is_shown_can_be_typed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "agentkit inspect" in line]
    assert len(lines) == 10
    for line in lines:
        _program, *argv = shlex.split(line)
        assert main(argv) == 0
        assert "turn 1" in capsys.readouterr().out


@pytest.mark.parametrize("width", [30, 60, 100])
def test_no_line_is_wider_than_the_terminal_or_drives_it(run: Path, width: int) -> None:
    for line in render_report(report(run), width=width).split("\n"):
        assert escape(line) == line
        assert "agentkit inspect" in line or columns(line) <= width
    colored = render_report(report(run), color=True, width=width)
    assert re.sub(r"\x1b\[[0-9]*m", "", colored) == render_report(report(run), width=width)


def test_json_is_for_scripts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run / "journal.sqlite"), "--json", "--success", "0.5", "--seed", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == 1
    assert (found["solved"], found["coverage"]["expected"], found["threshold"], found["seed"]) == (4, 7, 0.5, 4)
    assert [each["k"] for each in found["pass_at"]] == [1, 2]
    assert 0 <= found["success"]["low"] < found["success"]["value"] < found["success"]["high"] <= 1


def test_the_page_is_written_once(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(run), "--html", str(page)]) == 0
    assert f"The page is {page}" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    page.write_text("precious")
    assert main(["report", str(run), "--html", str(page)]) == 1
    assert "exists: name another file, or replace it with --force" in capsys.readouterr().err
    assert page.read_text() == "precious"
    assert main(["report", str(run), "--html", str(page), "--force"]) == 0
    assert page.read_text(encoding="utf-8") != "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def errors(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_is_wrong_is_one_clear_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no journal at" in errors(["report", str(tmp_path)], capsys)
    assert "--success must be a number, found nan" in errors(["report", str(run), "--success", "nan"], capsys)


@given(texts(30))
def test_names_look_the_same_in_the_page_and_on_the_terminal(text: str) -> None:
    assert visible(text) == escape(text)
