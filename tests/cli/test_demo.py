"""What the demo says about its folder and about what to type next."""

import argparse
import sys
from pathlib import Path

import pytest

from agentkit.cli import demo, main
from agentkit.cli.program import program


def hint(monkeypatch: pytest.MonkeyPatch, *, path: Path, started: str) -> str:
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(sys, "argv", [started, "demo"])
    return program()


def test_the_hint_can_be_pasted_wherever_the_program_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hint(monkeypatch, path=tmp_path, started=".venv-demo/bin/agentkit") == ".venv-demo/bin/agentkit"
    assert hint(monkeypatch, path=tmp_path, started="/a b/agentkit") == "'/a b/agentkit'"
    assert hint(monkeypatch, path=tmp_path, started="/x/__main__.py") == f"{sys.executable} -m agentkit"
    found = tmp_path / "agentkit"
    found.touch(mode=0o755)
    assert hint(monkeypatch, path=tmp_path, started=".venv-demo/bin/agentkit") == "agentkit"


@pytest.mark.parametrize("name", ["file", "file/below", "full"])
def test_a_folder_that_cannot_be_used_is_one_clear_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "journal").touch()
    out = tmp_path / name
    assert main(["demo", "--sandbox", "host", "--out", str(out)]) == 1
    *_banner, line = capsys.readouterr().err.splitlines()
    assert line.startswith("agentkit: --out must name a new or an empty folder, found ")
    assert str(out) in line


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    assert demo._empty_folder(str(tmp_path / "a" / "b")).is_dir()
    assert demo._empty_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    made = demo._empty_folder(None)
    assert made.name.startswith("agentkit-demo-")
    made.rmdir()


@pytest.mark.parametrize(("cores", "rollouts"), [(1, 4), (2, 8), (4, 16), (64, 16)])
def test_rollouts_do_not_starve_one_another_of_cores(
    cores: int, rollouts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    parser = argparse.ArgumentParser()
    demo.add_parser(parser.add_subparsers())
    assert parser.parse_args(["demo"]).concurrency == rollouts
    assert parser.parse_args(["demo", "--concurrency", "3"]).concurrency == 3
