"""`agentkit run`: a YAML file in, a run folder out; what is wrong is said before anything is made."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit.cli import main
from agentkit.journal import JournalReader
from agentkit.protocols import ExitReason
from agentkit.runs import RunFolder, SittingEnd

YAML = """
name: hello
model: {use: scripted-chat, script: [Hello.]}
dataset: tasks.jsonl
pool: {max_rollouts: 4, group_size: 2}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(YAML)
    rows = [{"id": f"t{n}", "prompt": "Go."} for n in range(5)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_dry_run_shows_the_run_and_makes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(project.iterdir())
    assert main(["run", "run.yaml", "--dry-run", "--set", "agent.budget.max_turns=7", "--limit", "3"]) == 0
    out = capsys.readouterr().out
    assert "max_turns: 7" in out
    assert "# 3 tasks × 2 = 6 rollouts, 4 at a time; not started" in out
    assert sorted(project.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "agent.budget.max_turn=7"], "max_turns"),
        (["--set", "pool.max_rollouts=0"], "pool.max_rollouts"),
        (["--limit", "0"], "dataset.limit"),
        (["--set", "dataset.path=gone.jsonl"], "gone.jsonl"),
        (["--set", "model.api_key=sk-abcdefghijklmnop123456"], "environment variable"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_is_wrong_is_one_line_and_nothing_is_made(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str, dry: bool
) -> None:
    before = sorted(project.iterdir())
    assert main(["run", "run.yaml", *words, *(["--dry-run"] if dry else [])]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("agentkit: ")
    assert said in err
    assert "sk-abcdef" not in err
    assert sorted(project.iterdir()) == before


def test_a_row_at_fault_is_found_before_the_run_begins(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (project / "tasks.jsonl").open("a") as file:
        file.write('{"id": "t1", "prompt": "twice"}\n')
    for dry in (["--dry-run"], []):
        assert main(["run", "run.yaml", *dry]) == 1
        assert "t1" in capsys.readouterr().err
    assert not (project / "runs").exists()


@pytest.mark.parametrize("words", [[], ["run.yaml", "--backend", "twisted"], ["run.yaml", "--limit", "many"]])
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", *words])
    assert caught.value.code == 2
    capsys.readouterr()


def test_a_file_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", str(tmp_path / "gone.yaml")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "gone.yaml" in line


@pytest.mark.slow
def test_a_run_that_fails_all_over_says_why_without_the_secrets_of_the_run(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADER", "xylophone-banana")
    (project / "broken.py").write_text(
        "import attrs\n@attrs.frozen\nclass Broken:\n    key: str\n    async def __call__(self, trajectory, env):\n"
        "        raise OSError(f'no grader at {self.key}\x1b[2J')\n"
    )
    text = YAML + 'agent: {reward: {use: "broken:Broken", key: "${GRADER}"}}\n'
    (project / "run.yaml").write_text(text)
    assert main(["run", "run.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "10 finished\n  10 × reward: OSError: no grader at [redacted]\\x1b[2J\n" in out
    assert main(["report", "runs/hello-1"]) == 0
    assert "reward: OSError: no grader at [redacted]\\x1b[2J  10\n" in capsys.readouterr().out
    assert "xylophone" not in out + err


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_is_kept_with_its_config_and_its_changes(
    project: Path, capsys: pytest.CaptureFixture[str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "hello-from-the-environment")
    (project / "run.yaml").write_text(YAML.replace("[Hello.]", '["${GREETING}"]'))
    before = signal.getsignal(signal.SIGINT)
    assert main(["run", "run.yaml", "--backend", backend, "--limit", "3", "--log-rollouts"]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    out, err = capsys.readouterr()
    assert out.startswith("6 of 6 rollouts done in ")
    assert ": 6 finished\n" in out
    assert " report runs/hello-1" in out
    assert "run hello: 3 tasks × 2 = 6 rollouts, 4 at a time, kept in runs/hello-1" in err
    folder = RunFolder("runs/hello-1")
    assert folder.config() == (project / "run.yaml").read_text(), "as given: variables are not expanded"
    assert folder.info().changes == ("dataset.limit=3",)
    assert folder.base() == project
    assert (folder.logs_path / "run.log").exists()
    assert len(list((folder.logs_path / "rollouts").iterdir())) == 6
    with JournalReader.open(folder.path) as reader:
        assert {each.exit_reason for each in reader.summaries()} == {ExitReason.FINISHED}
    assert b"hello-from" not in (folder.path / "config.yaml").read_bytes() + (folder.path / "run.json").read_bytes()
    assert main(["run", "run.yaml", "--out", "runs/hello-1"]) == 1
    assert "is a run already: go on with it by `agentkit resume runs/hello-1`" in capsys.readouterr().err
    assert main(["run", "run.yaml", "--quiet"]) == 0
    assert (project / "runs" / "hello-2").is_dir()


@pytest.mark.slow
def test_a_hostile_name_reaches_neither_the_terminal_nor_the_path(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "run.yaml").write_text(YAML.replace("name: hello", 'name: "../..\\e[2J/x"'))
    assert main(["run", "run.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert [each.parent for each in (project / "runs").iterdir()] == [project / "runs"]


@pytest.mark.slow
def test_a_component_of_ones_own_that_fails_to_import_shows_where(project: Path) -> None:
    (project / "mine.py").write_text("import agentkit\nraise RuntimeError('no luck')\n")
    (project / "run.yaml").write_text(YAML + "agent: {loop: 'mine:loop'}\n")
    done = subprocess.run(
        [sys.executable, "-m", "agentkit", "run", "run.yaml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "no luck" in done.stderr
    assert "mine.py" in done.stderr


SLOW_MODEL = """
from agentkit.models import ScriptedModel


class Model(ScriptedModel):
    def __init__(self) -> None:
        super().__init__(["x"])

    async def __aenter__(self):
        import anyio
        print("entering", flush=True)
        await anyio.sleep(100)

    async def __aexit__(self, *_):
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_while_the_model_is_still_starting_leaves_nothing(project: Path, backend: str) -> None:
    (project / "mine.py").write_text(SLOW_MODEL)
    (project / "run.yaml").write_text(YAML.replace("{use: scripted-chat, script: [Hello.]}", "'mine:Model'"))
    words = [sys.executable, "-m", "agentkit", "run", "run.yaml", "--backend", backend]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "entering\n"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, "")
    assert "was stopped before its first rollout: nothing was written" in err
    assert "Traceback" not in err
    assert not (project / "runs").exists()


STUBBORN = """
import time


async def loop(rollout):
    print("looping", flush=True)
    while True:  # holds the event loop, for ever
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_third_ctrl_c_kills_what_no_event_loop_can_end_and_the_run_can_be_resumed(project: Path) -> None:
    (project / "mine.py").write_text(STUBBORN)
    (project / "run.yaml").write_text(YAML + "agent: {loop: 'mine:loop'}\n")
    words = [sys.executable, "-m", "agentkit", "run", "run.yaml"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "looping\n"
        for _ in range(3):
            assert child.poll() is None
            child.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert child.wait(timeout=20) == -signal.SIGINT
    assert RunFolder("runs/hello-1").info().sittings[-1].why is None
    (project / "mine.py").write_text("from agentkit.actors import react as loop\n")
    done = subprocess.run(
        [sys.executable, "-m", "agentkit", "resume", "runs/hello-1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "10 of 10 rollouts done" in done.stdout


@pytest.mark.slow
def test_a_secret_of_the_environment_is_nowhere_in_what_a_run_leaves(project: Path) -> None:
    (project / "mine.py").write_text(
        "import logging\n"
        "from agentkit import ModelError\n"
        "from agentkit.models import ScriptedMessageModel\n\n\n"
        "def make(key: str) -> ScriptedMessageModel:\n"
        "    def say(messages):\n"
        "        logging.getLogger('mine').warning('asking with %s', key)\n"
        "        raise ModelError(f'401: {key} is no key')\n"
        "    return ScriptedMessageModel(say)\n"
    )
    (project / "run.yaml").write_text(
        YAML.replace("{use: scripted-chat, script: [Hello.]}", "{use: 'mine:make', key: '${MY_CREDENTIAL}'}")
        + "agent: {model_retries: 0, outcomes: {retries: 0}}\n"
    )
    secret = "correct-horse-battery"
    done = subprocess.run(
        [sys.executable, "-m", "agentkit", "run", "run.yaml", "--log-rollouts"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "MY_CREDENTIAL": secret},
    )
    assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr
    assert "asking with" in done.stderr
    assert "asking with" in (project / "runs" / "hello-1" / "logs" / "run.log").read_text()
    for file in (project / "runs").rglob("*"):
        assert file.is_dir() or secret.encode() not in file.read_bytes(), file
    with JournalReader.open("runs/hello-1") as reader:
        errors = [str(each.error) for each in reader.trajectories()]
    assert len(errors) == 10
    assert all("is no key" in error and secret not in error for error in errors)


SLOW_DATASET = """
import time
from agentkit.models import ScriptedMessageModel
from agentkit.runs import RunConfig


def survey(self):
    print("looking", flush=True)
    time.sleep(1000)


RunConfig.survey = survey
model = ScriptedMessageModel(["x"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_while_a_dataset_is_looked_through_ends_the_process(project: Path, backend: str) -> None:
    (project / "mine.py").write_text(SLOW_DATASET)
    words = [sys.executable, "-m", "agentkit", "run", "run.yaml", "--backend", backend, "--set", "model=mine:model"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "looking\n"
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=30)
        finally:
            child.kill()
    assert (child.returncode, out) == (130, "")
    assert "was stopped before its first rollout" in err
    assert not (project / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "streams", ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full", "2>&1 | true", "2> >(true)", "| true"]
)
def test_a_run_goes_through_whatever_becomes_of_its_output(project: Path, streams: str) -> None:
    line = f"set -o pipefail; {shlex.quote(sys.executable)} -m agentkit run run.yaml {streams}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert RunFolder("runs/hello-1").info().sittings[-1].why is SittingEnd.FINISHED
    with JournalReader.open("runs/hello-1") as reader:
        assert len(list(reader.summaries())) == 10


def test_stdout_takes_what_its_locale_cannot_show(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["run", "run.yaml", "--dry-run"]) == 0
    assert b"# 5 tasks \\xd7 2 = 10 rollouts" in out.buffer.getvalue()


@pytest.mark.slow
def test_a_run_may_be_kept_where_one_stands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "here").mkdir()
    monkeypatch.chdir(project / "here")
    assert main(["run", "../run.yaml", "--out", "."]) == 0
    assert (project / "here" / "run.json").is_file()
    assert Path.cwd() == project / "here"


@pytest.mark.parametrize(
    "words",
    [["--out", "x" * 300], ["--out", "x\udcff"], ["--set", f"dataset.path={'x' * 300}"], ["--out", "run.yaml/x"]],
)
def test_a_path_that_cannot_be_is_one_line(project: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    before = sorted(project.iterdir())
    assert main(["run", "run.yaml", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("agentkit: ")
    assert sorted(project.iterdir()) == before


@pytest.mark.slow
def test_what_a_variable_holds_is_told_by_its_name(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_URL", "http://10.9.8.7:8000/v1")
    (project / "afar.py").write_text(
        "from agentkit import ModelError\nfrom agentkit.models import ScriptedMessageModel\n\n\n"
        "class Model(ScriptedMessageModel):\n"
        "    def __init__(self, url: str) -> None:\n        super().__init__(['x'])\n        self.url = url\n\n"
        "    async def __aenter__(self):\n        raise ModelError(f'no server at {self.url}/models')\n\n"
        "    async def __aexit__(self, *_):\n        pass\n"
    )
    assert main(["run", "run.yaml", "--set", 'model={use: "afar:Model", url: "${MODEL_URL}"}']) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "agentkit: no server at ${MODEL_URL}/models"


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ModelError", "ValueError"])
@pytest.mark.parametrize("when", ["__aenter__", "__aexit__"])
def test_no_secret_is_shown_where_a_model_fails_to_open_or_close(project: Path, error: str, when: str) -> None:
    (project / "mine.py").write_text(
        "import os\n"
        "from agentkit import ModelError\n"
        "from agentkit.models import ScriptedMessageModel\n\n\n"
        "class Model(ScriptedMessageModel):\n"
        "    def __init__(self):\n"
        "        super().__init__(['x'])\n\n"
        "    async def __aenter__(self):\n"
        "        return self\n\n"
        "    async def __aexit__(self, *_):\n"
        "        pass\n\n\n"
        "async def fail(*_):\n"
        f"    raise {error}('no luck with ' + os.environ['MY_SECRET'])\n\n\n"
        f"Model.{when} = fail\n"
    )
    secret = "correct-horse-battery"
    done = subprocess.run(
        [sys.executable, "-m", "agentkit", "run", "run.yaml", "--set", "model=mine:Model"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "MY_SECRET": secret, "PWD": str(project)},
    )
    assert done.returncode == (1 if when == "__aenter__" else 0)
    assert "no luck with [redacted]" in done.stderr
    assert secret not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if when == "__aexit__":
        assert "10 of 10 rollouts done" in done.stdout
    if error == "ValueError":
        assert f"{project}/mine.py" in done.stderr, "a folder is no secret"


@pytest.mark.slow
def test_a_secret_that_is_written_out_is_told_and_its_copy_is_private(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "mine.py").write_text(
        "from agentkit.models import ScriptedMessageModel\n\n\n"
        "def make(api_key: str) -> ScriptedMessageModel:\n"
        "    return ScriptedMessageModel(['x'])\n"
    )
    text = YAML.replace("{use: scripted-chat, script: [Hello.]}", "{use: 'mine:make', api_key: KEY}")
    (project / "run.yaml").write_text(text.replace("KEY", "correct-horse-battery"))
    assert main(["run", "run.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "runs/hello-1/config.yaml spells out a secret: write ${NAME} instead" in err
    assert "correct-horse" not in out + err
    assert (project / "runs" / "hello-1" / "config.yaml").stat().st_mode & 0o077 == 0
    for harmless in ("EMPTY", "'${KEY:-none}'"):
        (project / "run.yaml").write_text(text.replace("KEY", harmless, 1))
        assert main(["run", "run.yaml"]) == 0
        assert "spells out" not in capsys.readouterr().err


def test_each_problem_of_a_file_has_a_line_of_its_own(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "pool.max_rollouts=many", "--set", "pool.group_size=0.5", "--set", 'logs.level="\\e[2J"']
    assert main(["run", "run.yaml", *words]) == 1
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "agentkit: run.yaml has 3 problems:"
    assert [line.split()[0] for line in others] == ["pool.max_rollouts", "pool.group_size", "logs.level"]
    assert all(line.startswith("  ") and line.isprintable() for line in others)
