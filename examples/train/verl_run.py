"""One run of verl in a process of its own: what it is told, and what it says of each step."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from agentkit_verl.cpu import environment, overrides
from attrs import frozen

HERE = Path(__file__).parent
CONTROL = "shuffled"  # the module beside this one
THREADS = os.environ.get("OMP_NUM_THREADS", "2")  # sampling and training take turns, so each has both cores


@frozen
class Step:
    """Of one step: the share of its rollouts that succeeded, on tasks not seen before, and how long it took."""

    number: int
    success: float
    seconds: float


# --8<-- [start:settings]
def settings(policy: Path, tasks: Path, *, steps: int, prompts: int, rollouts: int, estimator: str) -> list[str]:
    """What `verl.trainer.main_ppo` is told: GRPO, the policy, the tasks, and where the agent is described."""
    return [
        *overrides(),  # what a machine without a GPU needs
        f"algorithm.adv_estimator={estimator}",
        f"data.train_files={tasks}",
        f"data.val_files={tasks}",
        f"data.train_batch_size={prompts}",
        "data.max_prompt_length=32",
        "data.max_response_length=56",
        "data.shuffle=false",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={policy}",
        "actor_rollout_ref.actor.optim.lr=3e-4",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=5",  # Adam's first steps are as long as later ones, and blind
        "actor_rollout_ref.actor.use_kl_loss=false",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts // 2}",  # two updates a step
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={prompts * rollouts // 2}",
        f"actor_rollout_ref.rollout.n={rollouts}",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={prompts * rollouts // 2}",
        f"+actor_rollout_ref.rollout.engine_kwargs.agentkit_cpu.threads={THREADS}",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={HERE / 'agent.yaml'}",
        "reward.num_workers=1",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.total_training_steps={steps}",
    ]


# --8<-- [end:settings]


def train(
    policy: Path,
    tasks: Path,
    folder: Path,
    *,
    steps: int,
    prompts: int = 16,
    rollouts: int = 8,
    seed: int = 0,
    control: bool = False,
    told: Callable[[Step], None] = lambda step: None,
) -> list[Step]:
    """Run verl for `steps` steps of `prompts` tasks with `rollouts` each; its log and metrics are kept in `folder`.

    `control` shuffles rewards, by `seed`. `told` is told of each step as it ends.

    Raises:
        RuntimeError: verl failed; the message has the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, metrics = folder / "verl.log", folder / "verl.jsonl"
    metrics.unlink(missing_ok=True)
    estimator = "shuffled_grpo" if control else "grpo"
    asked = settings(policy, tasks, steps=steps, prompts=prompts, rollouts=rollouts, estimator=estimator)
    # Ray keeps sockets in its folder, whose paths may have 107 bytes: not in `folder`
    with tempfile.TemporaryDirectory(prefix="train-demo-", ignore_cleanup_errors=True) as ray:
        asked += [
            f"+ray_kwargs.ray_init._temp_dir={ray}",
            "+ray_kwargs.ray_init.address=local",
            f"hydra.run.dir={folder / 'hydra'}",
        ]
        env = _environment(metrics, seed=seed, control=control)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "verl.trainer.main_ppo", *asked],
                cwd=folder,
                env=env,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                found = []
                for step in _follow(process, metrics):
                    found.append(step)
                    told(step)
            finally:
                _end(process)
    if process.returncode or len(found) < steps:
        end = log.read_text(errors="replace").splitlines()[-30:]
        raise RuntimeError(f"verl ended with {process.returncode} after {len(found)} steps:\n" + "\n".join(end))
    return found


def _environment(metrics: Path, *, seed: int, control: bool) -> dict[str, str]:
    found = environment() | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "OMP_NUM_THREADS": THREADS,
        "OMP_WAIT_POLICY": "passive",  # idle threads leave the cores to verl's other processes
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "SHUFFLE_SEED": str(seed),
    }
    if control:
        found["VERL_USE_EXTERNAL_MODULES"] += f",{CONTROL}"
    return found


def _follow(process: "subprocess.Popen[bytes]", metrics: Path) -> Iterator[Step]:
    """The steps as verl writes them, until its process has ended."""
    read = 0
    while True:
        has_ended = process.poll() is not None
        lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else []  # whole ones
        for line in lines[read:]:
            said: Mapping[str, float] = (entry := json.loads(line))["data"]
            if "critic/score/mean" in said:
                yield Step(entry["step"], said["critic/score/mean"], said["timing_s/step"])
        read = len(lines)
        if has_ended:
            return
        time.sleep(0.2)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The driver takes its Ray with it where it is asked to end; where it does not, what is left of it is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
            return
