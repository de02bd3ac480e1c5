"""`agentkit init`: what it writes works at once, and nothing is ever overwritten."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit import ConfigError
from agentkit.cli import main
from agentkit.runs import load_config
from agentkit.runs.init import write_project

FILES = ["README.md", "agent.py", "pytest.ini", "run.yaml", "tasks.jsonl", "test_agent.py"]
ROOT = Path(__file__).parents[2]


def python(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )


def test_a_project_is_written_and_says_what_to_type_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a b" / "warehouse"
    assert main(["init", str(folder)]) == 0
    assert sorted(each.name for each in folder.iterdir()) == FILES
    out = capsys.readouterr().out
    assert f"cd '{folder}'" in out
    assert "agentkit run run.yaml" in out
    assert "name: warehouse\n" in (folder / "run.yaml").read_text()
    for file in folder.iterdir():
        assert "__" not in re.sub(r"__(file|init|name)__", "", file.read_text()), "no placeholder is left"


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_overwritten_and_nothing_half_written(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_text("mine")
    assert main(["init", str(tmp_path)]) == 1
    assert f"{file} would be overwritten" in capsys.readouterr().err
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(file, "mine")]


def test_here_is_a_place_too_and_other_files_may_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LICENSE").write_text("mine")
    assert main(["init", "--name", "shop"]) == 0
    assert "cd " not in capsys.readouterr().out
    assert "name: shop\n" in (tmp_path / "run.yaml").read_text()
    assert (tmp_path / "LICENSE").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "a b", "-x", "a/b", "a: b", "\x1b[2J", "x" * 100, "é"])
def test_a_name_that_yaml_or_a_path_would_take_amiss_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        write_project(tmp_path / "new", name=name)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("folder", ["x y", "..z", "é", "a: #b"])
def test_any_folder_gives_a_name_that_will_do(tmp_path: Path, folder: str) -> None:
    write_project(tmp_path / folder)
    (name,) = re.findall("^name: (.*)$", (tmp_path / folder / "run.yaml").read_text(), re.MULTILINE)
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", name)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write a project"):
        write_project(tmp_path / "file" / "below")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_project_passes_its_tests_runs_and_can_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(  # as in a checkout of agentkit, where the first try is likely made
        "[tool.pytest.ini_options]\naddopts = '--strict-config --import-mode=importlib'\nunheard_of = 1\n"
    )
    folder = tmp_path / "shop"
    write_project(folder)
    tested = python(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
    assert "skipped" not in tested.stdout
    readme = (folder / "README.md").read_text()
    commands = re.findall("^    agentkit (.*)$", readme, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["run", "report", "inspect"]
    outputs = []
    for command in commands:
        done = python(folder, "agentkit", *command.split())
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "32 of 32 rollouts done" in outputs[0]
    assert "mean score 0.75 of 32 graded" in outputs[0], "some tasks fail, so that there is something to see"
    assert "bolts: 120" in outputs[2]
    exported = python(folder, "agentkit", "export", "runs/shop-1", "--format", "jsonl", "--out", "out.jsonl")
    assert exported.returncode == 0, exported.stderr
    assert len((folder / "out.jsonl").read_text().splitlines()) == 32


@pytest.mark.slow
def test_a_server_takes_the_place_of_the_script_by_one_line(tmp_path: Path) -> None:
    write_project(tmp_path)
    text = (tmp_path / "run.yaml").read_text()
    (line,) = re.findall("^# (model: .*)$", text, re.MULTILINE)
    (tmp_path / "run.yaml").write_text(re.sub("^model: .*$", line, text, flags=re.MULTILINE))
    done = python(tmp_path, "agentkit", "run", "run.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "8 tasks × 4 = 32 rollouts" in done.stdout
    assert "openai" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_is_written_is_clean_python_and_json(tmp_path: Path) -> None:
    write_project(tmp_path)
    rules = "E,F,W,I,B,UP,ANN,RUF,SIM,PT"
    for words in (
        ["ruff", "check", "--isolated", "--line-length=120", f"--select={rules}", "."],
        ["ruff", "format", "--isolated", "--line-length=120", "--check", "."],
        ["mypy", "--strict", "agent.py", "test_agent.py"],
    ):
        done = python(tmp_path, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    ids = [json.loads(line)["id"] for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", ["123", "1e5", "true", "Null", "a.b-c_1", "2024-01-01"])
def test_whatever_it_is_called_the_run_can_be_read(tmp_path: Path, name: str) -> None:
    write_project(tmp_path / name)
    assert (
        load_config(tmp_path / name / "run.yaml", changes=["model={use: scripted-chat, script: [x]}", "agent={}"]).name
        == name
    )
