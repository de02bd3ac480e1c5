"""`agentkit export`: what is written, and what is said about it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import numpy as np
import pyarrow.parquet as pq
import pytest

import agentkit as ak
from agentkit.cli import main
from agentkit.journal import Journal
from agentkit.models import ScriptedModel
from agentkit.protocols import RolloutKey

Said = Callable[..., tuple[int, list[str]]]
TOOLS = [{"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}]


@ak.tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run\x1b[2J"
    folder.mkdir()

    def say(prompt: str) -> str:
        if "never" not in prompt and "tool_response" in prompt:
            return "done"
        return '<tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>'

    def score(trajectory: ak.Trajectory, env: object) -> float:
        del env
        return 1.0 if trajectory.task_id == "good" else 0.25

    async def write() -> None:
        agent = ak.Agent(ScriptedModel(say), tools=[echo], reward=score, budget=ak.Budget(max_turns=3))
        async with Journal.open(folder, writer="inline") as journal, ak.Pool(agent, sink=journal) as pool:
            await pool.run([ak.Task("good", "go"), ak.Task("bad", "go"), ak.Task("endless", "never stop")])
            await journal.begin(RolloutKey("late", 0))

    anyio.run(write)
    return folder


@pytest.fixture
def said(run: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*arguments: str) -> tuple[int, list[str]]:
        status = main(["export", str(run), *arguments])
        out = capsys.readouterr()
        return status, (out.out + out.err).splitlines()

    return call


def keys(path: Path) -> list[str]:
    return [json.loads(line)["rollout"] for line in path.read_text().splitlines()]


def test_each_format_lands_in_the_folder_of_the_run(run: Path, said: Said) -> None:
    shown = str(run).replace("\x1b", "\\x1b")
    assert said("--format", "jsonl") == (
        0,
        [
            f"3 trajectories written to {shown}/trajectories.jsonl",
            "1 not there yet: the run has begun and not sealed them",
        ],
    )
    assert said("--format", "npz")[0] == said("--format", "parquet")[0] == said("--format", "sft")[0] == 0
    assert sorted(keys(run / "trajectories.jsonl")) == ["bad#0", "endless#0", "good#0"]
    with np.load(run / "trajectories.npz") as arrays:
        assert sorted(arrays["score"]) == [0.25, 0.25, 1.0]
    assert pq.read_table(run / "trajectories.parquet").num_rows == 3
    (line,) = (run / "sft.jsonl").read_text().splitlines()
    assert [message["role"] for message in json.loads(line)["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_what_is_left_out_is_said(run: Path, said: Said, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, lines = said("--format", "jsonl", "--only", "finished", "--min-score", "0.5", "--out", str(out))
    assert (status, lines[0]) == (0, f"1 trajectory written to {out}")
    assert lines[1] == "2 left out: 1 exit reason turn_limit, 1 score below 0.5"
    assert keys(out) == ["good#0"]
    status, lines = said("--format", "jsonl", "--outcome", "mask,drop", "--out", str(out), "--force")
    assert (status, lines[0], lines[1]) == (0, f"0 trajectories written to {out}", "3 left out: 3 outcome train")


def test_sft_takes_successes_unless_told_otherwise(run: Path, said: Said, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert said("--format", "sft", "--out", out)[1][1] == "2 left out: 2 score below 1"
    assert said("--format", "sft", "--out", out, "--force", "--min-score", "0.2")[1][0].startswith("3 traj")
    assert said("--format", "sft", "--out", out, "--force", "--outcome", "train")[1][0].startswith("3 traj")
    assert said("--format", "sft", "--out", out, "--force", "--only", "turn_limit")[1][0].startswith("0 traj")


def test_options_of_sft(run: Path, said: Said, tmp_path: Path) -> None:
    tools, out = tmp_path / "tools.json", tmp_path / "out"
    tools.write_text(json.dumps(TOOLS))
    assert said("--format", "sft", "--tools", str(tools), "--arguments", "object", "--out", str(out))[0] == 0
    line = json.loads(out.read_text())
    assert line["tools"] == TOOLS
    assert line["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"text": "x"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "jsonl", "--only", "finish"], "--only takes a list of finished, turn_limit"),
        (["--format", "jsonl", "--outcome", "good"], "--outcome takes a list of train, mask, drop"),
        (["--format", "jsonl", "--tools", "x"], "--tools goes with --format sft only, found --format jsonl"),
        (["--format", "npz", "--reasoning", "drop"], "--reasoning goes with --format sft only"),
        (["--format", "sft", "--tools", "/nowhere"], "cannot read --tools '/nowhere'"),
        (["--format", "sft", "--out", "/nowhere/x"], "there is no folder '/nowhere'"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(arguments: Sequence[str], message: str, said: Said) -> None:
    status, (line,) = said(*arguments)
    assert status == 1
    assert message in line


def test_a_second_export_does_not_replace_the_first(run: Path, said: Said) -> None:
    assert said("--format", "jsonl")[0] == 0
    before = (run / "trajectories.jsonl").read_bytes()
    status, (line,) = said("--format", "jsonl", "--only", "turn_limit")
    assert status == 1
    assert "exists: name another file, or replace it with --force" in line
    assert (run / "trajectories.jsonl").read_bytes() == before
    assert said("--format", "jsonl", "--only", "turn_limit", "--force")[0] == 0
    assert keys(run / "trajectories.jsonl") == ["endless#0"]
