"""A run of verl's own `main_ppo` on CPUs, in a process of its own: its metrics and its log."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit_verl.cpu import environment, overrides
from attrs import frozen

ROOT = Path(__file__).parents[3]
MARK = "AGENTKIT_TEST_RUN"


@frozen
class MainRun:
    """How a run went. `steps` has what verl's console logger printed for each step, by name of the metric."""

    returncode: int
    seconds: float
    steps: tuple[Mapping[str, float], ...]
    log: str

    def check(self) -> "MainRun":
        """Itself where it ended well; its last lines as an error where not."""
        if self.returncode != 0:
            raise AssertionError(f"main_ppo ended with {self.returncode} after {self.seconds:.0f} s:\n{self.tail()}")
        return self

    def tail(self, lines: int = 80) -> str:
        """The end of the log."""
        return "\n".join(self.log.splitlines()[-lines:])


def write_tasks(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A dataset for verl. Each row needs a `prompt` (messages); the other columns that verl reads get values here."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    full = [
        {
            "data_source": "toy",
            "ability": "toy",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        | dict(row)
        for index, row in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(full), path)
    return path


def run_main(
    model: Path,
    data: Path,
    *settings: str,
    agents: Path | None = None,
    steps: int = 2,
    batch: int = 4,
    n: int = 2,
    prompt_tokens: int = 256,
    response_tokens: int = 64,
    env: Mapping[str, str] | None = None,
    timeout: float = 240.0,
    module: str = "verl.trainer.main_ppo",
) -> MainRun:
    """Runs `python -m verl.trainer.main_ppo` with GRPO: `steps` steps of `batch` prompts with `n` rollouts each.

    Args:
        model: The model's folder.
        data: A parquet file, see `write_tasks`.
        settings: Hydra overrides; they come last and so hold against those made here.
        agents: YAML for `agent_loop_config_path`.
        steps: Optimiser steps.
        batch: Prompts per step, and per mini-batch.
        n: Rollouts per prompt.
        prompt_tokens: `data.max_prompt_length`.
        response_tokens: `data.max_response_length`.
        env: Further environment variables of the run, with modules for `VERL_USE_EXTERNAL_MODULES` if need be.
        timeout: Seconds after which it is killed with all that it started.
        module: Another entry point with the same settings.
    """
    # Ray puts sockets in it: their paths may have 107 bytes
    with tempfile.TemporaryDirectory(prefix="ak-ppo-", ignore_cleanup_errors=True) as folder:
        command = [
            *(sys.executable, "-m", module),
            *overrides(),
            "algorithm.adv_estimator=grpo",
            "algorithm.use_kl_in_reward=false",
            f"data.train_files={data}",
            f"data.val_files={data}",
            f"data.train_batch_size={batch}",
            f"data.max_prompt_length={prompt_tokens}",
            f"data.max_response_length={response_tokens}",
            "data.dataloader_num_workers=0",
            "data.filter_overlong_prompts=false",
            f"actor_rollout_ref.model.path={model}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={batch}",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={batch}",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.actor.use_kl_loss=false",
            f"actor_rollout_ref.rollout.n={n}",
            f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={batch}",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "reward.num_workers=1",
            "trainer.logger=[console]",
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            "trainer.resume_mode=disable",
            f"trainer.total_training_steps={steps}",
            f"+ray_kwargs.ray_init._temp_dir={folder}/ray",
            "+ray_kwargs.ray_init.address=local",
            f"hydra.run.dir={folder}/hydra",
            *([f"actor_rollout_ref.rollout.agent.agent_loop_config_path={agents}"] if agents else []),
            *settings,
        ]
        began = time.monotonic()
        with Path(folder, "log").open("w+", encoding="utf-8", errors="replace") as log:
            # A session of its own: whatever it starts can be ended with it, and nothing else is.
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment({**os.environ, **(env or {})})
                | {"PYTHONPATH": _path(env), "HYDRA_FULL_ERROR": "1", MARK: folder},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                log.write(f"\nkilled after {timeout} s\n")
            finally:
                _end(process, folder)
            log.seek(0)
            text = log.read()
    return MainRun(process.returncode, time.monotonic() - began, tuple(read_steps(text)), text)


def read_steps(log: str) -> list[dict[str, float]]:
    """The metrics that verl's console logger printed: `step:1 - name:0.5 - ...`, numpy's types around the numbers."""
    found = []
    for line in log.splitlines():
        # Ray puts the name of the process that printed before its lines, in colours
        start = re.search(r"\bstep:\d+ - ", line)
        if start is None:
            continue
        metrics = {}
        for part in line[start.start() :].split(" - "):
            name, _, value = part.rpartition(":")
            number = re.fullmatch(r"(?:np\.\w+\()?([^()]+)\)?", value.strip())
            try:
                metrics[name] = float(number[1]) if number else float(value)
            except ValueError:
                continue
        found.append(metrics)
    return found


def write_agents(path: Path, *entries: Mapping[str, Any]) -> Path:
    """The YAML that names agent loops for `agent_loop_config_path`; JSON is YAML."""
    path.write_text(json.dumps(list(entries), indent=1))
    return path


def _path(env: Mapping[str, str] | None) -> str:
    """The checkout first, so that verl's processes find test support as well."""
    return os.pathsep.join(filter(None, [str(ROOT), (env or {}).get("PYTHONPATH"), os.environ.get("PYTHONPATH")]))


def _end(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """Ends what is left of a run. Ray's processes leave the run's session; all of them have its `mark`."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        if process.poll() is None:
            process.send_signal(number)
        deadline = time.monotonic() + patience
        while (left := _marked(mark)) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    process.wait()


def _marked(mark: str) -> list[int]:
    """Processes that found `mark` in their environment, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
