"""`agentkit resume`: the rest of a run, and clear words where it cannot go on."""

import json
import shutil
from pathlib import Path

import pytest

from agentkit.cli import main
from agentkit.journal import Journal, JournalReader
from agentkit.protocols import ExitReason
from agentkit.runs import RunFolder, RunInfo
from agentkit.runs.info import now

YAML = """
model: {use: scripted-chat, script: [Hello.]}
agent: {outcomes: {retries: 0}, model_retries: 0}
dataset: {path: tasks.jsonl}
pool: {group_size: 2}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, script="[Hello.]")
    return tmp_path


def write(folder: Path, *, script: str, tasks: int = 4) -> None:
    (folder / "hello.yaml").write_text(YAML.replace("[Hello.]", script))
    rows = [{"id": f"t{n}", "prompt": "Go."} for n in range(tasks)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def reasons(run: str) -> list[ExitReason]:
    with JournalReader.open(run) as reader:
        return [each.exit_reason for each in reader.summaries()]


def test_what_is_no_run_is_one_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(project)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is no run" in line


def test_a_run_made_in_python_says_how_to_go_on(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder.create("runs/x", RunInfo(name="x", created=now()))
    assert main(["resume", "runs/x"]) == 1
    assert "agentkit.runs.resume(config, folder)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_finished_run_says_so_and_stays_as_it_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hello.yaml"]) == 0
    before = Path("runs/hello-1/run.json").read_text()
    capsys.readouterr()
    assert main(["resume", "runs/hello-1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Nothing is left to do.\n8 of 8 rollouts done")
    assert Path("runs/hello-1/run.json").read_text() == before


@pytest.mark.slow
def test_faults_of_the_model_are_made_again_on_request(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, script="[]")  # nothing to say: a fault of the model
    assert main(["run", "hello.yaml"]) == 0
    assert reasons("runs/hello-1") == [ExitReason.MODEL_ERROR] * 8
    change = ["--set", "model.script=[Hello.]"]
    assert main(["resume", "runs/hello-1", *change]) == 0
    assert reasons("runs/hello-1") == [ExitReason.MODEL_ERROR] * 8
    assert main(["resume", "runs/hello-1", "--repeat", "model_error", *change]) == 0
    assert reasons("runs/hello-1") == [ExitReason.FINISHED] * 8
    assert RunFolder("runs/hello-1").info().changes == ("model.script=[Hello.]",), "what it went on with is kept"
    with pytest.raises(SystemExit):
        main(["resume", "runs/hello-1", "--repeat", "bad_luck"])
    assert "model_error" in capsys.readouterr().err


@pytest.mark.slow
def test_a_changed_dataset_or_config_is_named_and_forced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hello.yaml"]) == 0
    write(project, script="[Hello.]", tasks=5)
    capsys.readouterr()
    assert main(["resume", "runs/hello-1"]) == 1
    assert "4 tasks then, 5 now" in capsys.readouterr().err
    with Path("runs/hello-1/config.yaml").open("a") as file:
        file.write("# an edit\n")
    assert main(["resume", "runs/hello-1"]) == 1
    assert "config.yaml was edited" in capsys.readouterr().err
    assert main(["resume", "runs/hello-1", "--force"]) == 0
    assert "10 of 10 rollouts done" in capsys.readouterr().out
    assert main(["resume", "runs/hello-1"]) == 0, "what was forced is the new state of things"


@pytest.mark.slow
def test_a_project_that_has_moved_is_found_and_its_name_stays(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", "hello.yaml"]) == 0
    moved = project / "moved"
    moved.mkdir()
    for name in ("runs", "tasks.jsonl"):
        shutil.move(project / name, moved / name)
    monkeypatch.chdir("/")
    write(moved, script="[Hello.]", tasks=5)
    capsys.readouterr()
    assert main(["resume", str(moved / "runs" / "hello-1"), "--force"]) == 0
    out, err = capsys.readouterr()
    assert "10 of 10 rollouts done" in out
    assert "run hello: 5 tasks × 2 = 10 rollouts" in err
    assert "sitting 2" in err


@pytest.mark.slow
async def test_a_run_that_another_is_writing_is_one_clear_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import anyio

    assert await anyio.to_thread.run_sync(main, ["run", "hello.yaml"]) == 0
    async with Journal.open("runs/hello-1"):
        assert await anyio.to_thread.run_sync(main, ["resume", "runs/hello-1"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert "is being written by process" in line
