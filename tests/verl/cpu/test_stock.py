"""All of verl as it is, on CPUs: its agent loop, its trainer, its exchange of weights with the server."""

from pathlib import Path

import pytest

from tests.verl.rig import make_model, run_main, write_tasks
from tests.verl.rig.model import cached

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    return {"score": len(set(solution_str)) % 7 / 6}
"""


@pytest.mark.timeout(540)
def test_a_run_of_verls_own_single_turn_agent(tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {i} + 2?"}], "agent_name": "single_turn_agent"}
        for i in range(8)
    ]
    run = run_main(
        cached("random", make_model),
        write_tasks(tmp_path / "tasks.parquet", rows),
        f"reward.custom_reward_function.path={reward}",
        "reward.custom_reward_function.name=compute_score",
        steps=2,
        response_tokens=32,
        timeout=480,
    ).check()
    assert len(run.steps) == 2
    for step in run.steps:
        assert step["actor/grad_norm"] > 0
        # the second step samples with the weights that the first has made: both sides of the exchange agree
        assert step["training/rollout_probs_diff_max"] < 1e-5
        assert 0 < step["response_length/max"] <= 32
