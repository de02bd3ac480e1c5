"""The same task file by `agentkit run` and by verl's agent loop: the same trajectories, token by token."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from agentkit_verl import close_workers
from agentkit_verl.parquet import to_verl_rows

from agentkit import Observation, Trajectory
from agentkit.journal import JournalReader
from agentkit.runs import execute, load_config
from tests.verl.rig.loops import Loops
from tests.verl.rig.model import cached, make_model

CODE = """
import json

from agentkit.parsing import HermesParser
from agentkit.protocols import Finish, FinishReason, TokenChunk
from agentkit_hf import hf_renderer


def call(name, **arguments):
    return f'<tool_call>\\n{json.dumps({"name": name, "arguments": arguments})}\\n</tool_call><|im_end|>'


def run(command):
    return call("execute_bash", command=command)


TURNS = {
    "echo": [run("echo hi"), "It said hi.<|im_end|>"],
    "malformed": ['<tool_call>\\n{"name": "exec\\n</tool_call><|im_end|>', run("echo again"), "Done.<|im_end|>"],
    "unknown": [call("fly", to="Rome"), call("execute_bash", comand="ls"), "I cannot fly.<|im_end|>"],
    "fails": [run("echo oops >&2; exit 3"), run("cat nowhere"), call("finish", answer="4")],
    "two": [run("echo one").replace("<|im_end|>", "\\n") + run("echo two"), "Both.<|im_end|>"],
    "endless": [run(f"echo {n}") for n in range(9)],
    "faulty": ['<tool_call>\\n{<|im_end|>'] * 9,
    "long": ["word " * 2000],
}


def answer(prompt):
    turn = prompt.count("<|im_start|>assistant") - 1
    task = prompt.split("Task: ")[-1].split(".")[0]
    return TURNS[task][turn]


class Policy:
    def __init__(self, folder: str):
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.renderer, self.parser = hf_renderer(self.tokenizer), HermesParser()

    async def sample_tokens(self, request, emit, /):
        start = len(request.prompt_ids)
        ids = self.tokenizer.encode(answer(self.tokenizer.decode(request.prompt_ids)), add_special_tokens=False)
        ids, room = ids[: request.max_tokens], request.max_tokens
        emit(TokenChunk(ids, [-(1.0 + (start + at) % 7) for at in range(len(ids))], 3))
        return Finish(FinishReason.LENGTH if len(ids) == room else FinishReason.STOP)


async def score(trajectory, env):
    from agentkit.protocols import Score

    said = trajectory.task.data["answer"]
    return Score(float(len(trajectory.turns)), tuple(0.5 for _ in trajectory.turns), metrics={"long": len(said)})
"""
NAMES = ("echo", "malformed", "unknown", "fails", "two", "endless", "faulty", "long")


def untimed(observation: Observation) -> Observation:
    told = {name: value for name, value in observation.metadata.items() if name != "duration_s"}
    return attrs.evolve(observation, metadata=told)


def plain(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory without its times and names: what must be the same."""
    timed = ("queued_s", "generation_s", "tool_s")
    turns = tuple(
        attrs.evolve(turn, observations=tuple(map(untimed, turn.observations)), **dict.fromkeys(timed, 0.0))
        for turn in trajectory.turns
    )
    said = {field.name: getattr(trajectory, field.name) for field in attrs.fields(Trajectory)}
    task = trajectory.task
    return {
        **{name: value for name, value in said.items() if name not in ("key", "timings", "task")},
        "turns": turns,
        "index": trajectory.key.index,
        "attempt": trajectory.key.attempt,
        "task": (task.messages, task.data, task.budget),
        "metadata": {name: value for name, value in task.metadata.items() if name != "verl"},
    }


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    before = list(sys.path)
    yield
    await close_workers()
    sys.path[:] = before


async def test_trajectories_are_those_of_agentkit_run(tmp_path: Path) -> None:
    tasks = [{"id": f"task-{name}", "prompt": f"Task: {name}.", "data": {"answer": name}} for name in NAMES]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    agent: dict[str, Any] = {
        "env": {"use": "sandbox", "backend": "host"},
        "tools": ["execute_bash", "finish"],
        "reward": "PARTS:score",
        "budget": {"max_turns": 5, "max_tokens": 1536, "trajectory_s": 120},
    }
    verl = Loops(tmp_path, lambda prompt: verl.parts.answer(prompt), entry={"config": "run.yaml"}, code=CODE)
    verl.write({"config": "run.yaml", "verl": {"journal": str(tmp_path / "journal"), "credit": "turn"}})
    run = {
        "name": "toy",
        "model": {"use": "PARTS:Policy", "folder": str(cached("random", make_model))},
        "agent": agent,
        "dataset": "tasks.jsonl",
        "pool": {"max_rollouts": 4, "group_size": 2},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(run).replace("PARTS", verl.module))

    config = load_config(tmp_path / "run.yaml")
    result = await execute(config, tmp_path / "run")
    assert result.stuck == ()
    with JournalReader.open(tmp_path / "run") as reader:
        expected = {(t.task_id, t.key.index): t for t in reader.trajectories()}

    outputs = {}
    for row in to_verl_rows(config.tasks(), agent_name="toy"):
        given = {**row, "raw_prompt": row["prompt"]}
        name = given["raw_prompt"][-1]["content"].removeprefix("Task: ").rstrip(".")
        found = await verl.group(f"uid-{name}", 2, **given)
        outputs |= {(f"task-{name}", number): rows for number, rows in enumerate(found)}
    await close_workers()
    (path,) = (path for path in (tmp_path / "journal").iterdir() if not path.name.endswith("-lock"))
    with JournalReader.open(path) as reader:
        trained = {(t.task_id.replace("uid", "task"), t.key.index): t for t in reader.trajectories()}

    assert sorted(trained) == sorted(expected) == sorted((f"task-{name}", n) for name in NAMES for n in range(2))
    for key, trajectory in expected.items():
        assert plain(trained[key]) == plain(trajectory), key
    reasons = {name: str(expected[f"task-{name}", 0].exit_reason) for name in NAMES}
    assert reasons == {
        **dict.fromkeys(("echo", "malformed", "unknown", "fails", "two"), "finished"),
        "endless": "turn_limit",
        "faulty": "format_errors",
        "long": "token_limit",
    }
    # what verl is handed, which is also what a journal holds
    for key, rows in outputs.items():
        (row,) = rows
        (chain,) = trained[key].chains
        fields = row.as_dict()
        ids = [*fields["prompts"].tolist(), *fields["responses"].tolist()]
        start, stop = len(fields["prompts"]), len(ids)
        assert ids == list(chain.ids[:stop])
        assert stop == trained[key].turns[-1].stop
        assert fields["response_mask"].tolist() == list(chain.response_mask[start:stop])
        assert fields["rollout_log_probs"].tolist() == list(chain.logprobs[start:stop])
        assert fields["rm_scores"].sum() == pytest.approx(trained[key].score)
