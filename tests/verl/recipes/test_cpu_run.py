"""A recipe that really trains, with a tiny model and without a GPU: the script as it is, but for vLLM."""

import subprocess
import sys
import tempfile
from pathlib import Path

import attrs
import pytest
from agentkit_verl.cpu import environment, overrides
from agentkit_verl.parquet import write_parquet
from recipes.gpu_check.figures import steps_of
from recipes.gsm8k.prepare_data import task_of
from recipes.prepare import tasks_of

from tests.verl.rig import make_model
from tests.verl.rig.trainer import MARK, _end

LIMIT_S = 420
SMALL = {"BATCH": "4", "GROUP": "2", "WORKERS": "2", "GPUS": "1", "PROMPT_TOKENS": "1900", "RESPONSE_TOKENS": "64"}


def trained(script: Path, folder: Path, data: Path) -> str:
    """The log of a run of the script, which must end well."""
    with tempfile.TemporaryDirectory(prefix="ak-recipe-", ignore_cleanup_errors=True) as place:
        options = [
            *overrides(),
            "data.dataloader_num_workers=0",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "trainer.total_training_steps=2",
            "trainer.save_freq=-1",
            "trainer.resume_mode=disable",
            f"+ray_kwargs.ray_init._temp_dir={place}/ray",
            "+ray_kwargs.ray_init.address=local",
            f"hydra.run.dir={place}/hydra",
        ]
        given = {"PYTHON": sys.executable, "MODEL": str(make_model(folder / "model")), "DATA": str(data), **SMALL}
        env = environment() | given | {"PYTHONPATH": str(Path(__file__).parents[3]), MARK: place}
        with (folder / "log").open("w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(
                ["bash", str(script), *options], cwd=place, env=env, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(LIMIT_S)
            finally:
                _end(process, place)
    text = (folder / "log").read_text(errors="replace")
    assert process.returncode == 0, "\n".join(text.splitlines()[-60:])
    return text


@pytest.fixture
def data(tmp_path: Path, rows: Path) -> Path:
    tasks = tasks_of(rows / "gsm8k.jsonl", task_of)
    many = [attrs.evolve(task, id=f"{task.id}-{copy}") for copy in range(8) for task in tasks]
    write_parquet(many, tmp_path / "train.parquet", agent_name="agentkit")
    return tmp_path / "train.parquet"


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_recipe_trains(recipes: Path, data: Path, tmp_path: Path):
    steps = steps_of(trained(recipes / "gsm8k" / "run_grpo.sh", tmp_path, data))
    assert len(steps) == 2
    for step in steps:
        assert step["agent/sessions/count"] == 8
        assert step["agent/outcome/train"] == 1.0
        assert step["agent/exit/finished"] + step["agent/exit/token_limit"] == 1.0  # it samples at random
        assert step["agent/score/ungraded"] == 0.0
        assert 0 < step["agent/tokens/sampled/mean"] <= 64
        assert step["training/rollout_probs_diff_max"] < 1e-3
