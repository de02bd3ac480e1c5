"""A project in a folder of its own, run by the real command, whose journal tells what it was told is durable."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentkit.runs import RunFolder
from agentkit.sandbox import BwrapBackend

_AGENT = '''
"""Counts in a shell, four turns a rollout; what the journal acknowledged is appended to acknowledged.jsonl."""

import json
import os
import re
from hashlib import sha256

from agentkit.journal import Journal
from agentkit.models import ScriptedModel

_FILE = os.open("acknowledged.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _acknowledge(what, key, turn=None, deltas=()):
    pieces = [
        (delta.chain, delta.start, len(delta.piece), digest(delta.piece.id_bytes, delta.piece.logprob_bytes))
        for delta in deltas
    ]
    line = json.dumps([what, key.task_id, key.index, key.attempt, turn, pieces]) + "\\n"
    os.write(_FILE, line.encode())


def digest(ids, logprobs):
    return sha256(ids + logprobs).hexdigest()


append, seal = Journal.append, Journal.seal


async def acknowledged_append(self, key, turn, deltas, /):
    await append(self, key, turn, deltas)
    _acknowledge("append", key, turn.index, deltas)


async def acknowledged_seal(self, trajectory, /):
    await seal(self, trajectory)
    _acknowledge("cancel" if trajectory.exit_reason == "cancelled" else "seal", trajectory.key)


Journal.append, Journal.seal = acknowledged_append, acknowledged_seal


def policy():
    return ScriptedModel(_say, token_s=0.0005)


def _say(prompt):
    task = re.search(r"count (\\w+)", prompt)[1]
    done = len(re.findall(r"number \\d+", prompt)) // 2  # as called, and as printed
    if done == 3:
        return "done with " + task
    command = f"sleep 0.03; echo number {done}"
    return '<tool_call>\\n{"name": "execute_bash", "arguments": {"command": "%s"}}\\n</tool_call>' % command
'''

_RUN = """
name: kill
model: agent:policy
agent:
  env: {use: sandbox, backend: {use: SANDBOX}}
  tools: [bash]
  budget: {trajectory_s: 120, grace_s: 5}
  outcomes: {retries: 0}
dataset: {path: tasks.jsonl}
pool: {max_rollouts: 12, max_starts: 6, group_size: 2}
"""


class Project:
    """A run of `tasks` tasks in a folder, each of three commands of `nap_s`, and the processes that worked on it."""

    def __init__(self, folder: Path, tasks: int, nap_s: float = 0.03) -> None:
        self.folder = folder
        self.run = RunFolder(folder / "runs" / "kill")
        self.scratch = folder / "scratch"
        self.pids: list[int] = []
        self.scratch.mkdir(parents=True)
        sandbox = "bwrap" if shutil.which("bwrap") and BwrapBackend().available() is None else "host"
        (folder / "agent.py").write_text(_AGENT.replace("sleep 0.03", f"sleep {nap_s}"))
        (folder / "run.yaml").write_text(_RUN.replace("SANDBOX", sandbox))
        rows = [{"id": f"task-{n}", "prompt": f"count t{n}"} for n in range(tasks)]
        (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.expected = {(f"task-{n}", index) for n in range(tasks) for index in range(2)}

    def start(self, *flags: str) -> "subprocess.Popen[str]":
        """`agentkit run`, or `resume` once there is something to resume; returns when it is about to begin."""
        words = ["resume", str(self.run.path)] if self.run.exists else ["run", "run.yaml", "--out", str(self.run.path)]
        child = subprocess.Popen(
            [sys.executable, "-m", "agentkit", *words, *flags],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.scratch), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids.append(child.pid)
        return child

    def acknowledged(self) -> list[Sequence]:
        """What the journal said is durable, in order: (what, task, index, attempt, turn, pieces)."""
        file = self.folder / "acknowledged.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def processes(self) -> list[int]:
        """Processes of sandboxes that the children left."""
        owners = [f".{pid}.".encode() for pid in self.pids]
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    environment = Path(f"/proc/{entry}/environ").read_bytes()
                except OSError:
                    continue
                for pair in environment.split(b"\0"):
                    if pair.startswith(b"AGENTKIT_SANDBOX=") and any(owner in pair for owner in owners):
                        found.append(int(entry))
        return found


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Project]:
    """Makes the project, with so many tasks and other settings."""
    return lambda tasks, **settings: Project(tmp_path / "project", tasks, **settings)
