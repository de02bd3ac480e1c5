"""verl's `main_ppo` from end to end: what our trainer adds to its log. verl finds it by agentkit's entry point."""

from pathlib import Path

import pytest

from tests.verl.rig import make_model, run_main, write_tasks
from tests.verl.rig.model import cached
from tests.verl.rig.trainer import write_agents

STEPS, BATCH, N = 2, 2, 2
AGENT = {
    "name": "toy",
    "_target_": "agentkit_verl.AgentKitLoop",
    "agent": {
        "reward": "toy_reward_of_metrics:any_number",
        "budget": {"trajectory_s": 120, "max_turns": 2},
    },
    "pool": {"max_rollouts": 8},
}
REWARD = '''
async def any_number(trajectory, env):
    """Differs between rollouts, so that each step has a gradient."""
    return sum(sum(chain.ids) for chain in trajectory.chains) % 997 / 997
'''


@pytest.mark.timeout(400)
def test_the_log_of_a_run_says_what_the_rollouts_did(tmp_path: Path) -> None:
    (tmp_path / "toy_reward_of_metrics.py").write_text(REWARD)
    agents = write_agents(tmp_path / "agents.yaml", AGENT)
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {i} + 2?"}], "agent_name": "toy", "data_source": "a/b"}
        for i in range(STEPS * BATCH)
    ]
    run = run_main(
        cached("random", make_model),
        write_tasks(tmp_path / "tasks.parquet", rows),
        "trainer.v1.trainer_mode=agentkit_sync",
        "algorithm.adv_estimator=agentkit_grpo",
        "+algorithm.agentkit.weights=session-balanced",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        agents=agents,
        steps=STEPS,
        batch=BATCH,
        n=N,
        timeout=360,
    ).check()
    assert len(run.steps) == STEPS
    for number, step in enumerate(run.steps):
        assert step["agent/sessions/count"] == BATCH * N, run.tail()
        assert step["agent/sessions/missing"] == 0
        assert step["agent/source/a_b/sessions"] == BATCH * N
        assert step["agent/score/ungraded"] == 0
        # verl's mean is over rows, ours over rollouts: here each rollout has one row
        assert step["agent/score/mean"] == pytest.approx(step["critic/score/mean"], abs=1e-5)
        assert step["agent/rows/tokens/max"] <= 256 + 64
        assert sum(value for name, value in step.items() if name.startswith("agent/exit/")) == pytest.approx(1)
        assert step["agent/outcome/train"] == 1
        assert step["agent/tokens/sampled/mean"] > 0
        assert 0 < step["agent/seconds/generation/mean"] <= step["agent/seconds/total/max"]
        # sampled by the weights that the step set out from
        assert step["agent/staleness/max"] == 0
        assert step["agent/versions/max"] == 1
        assert 0 <= step["agent/logprob_gap/mean"] <= step["agent/logprob_gap/max"] < 0.1
        assert step["agent/updates_skipped"] == 0
        assert step["actor/grad_norm"] > 0, f"step {number}"


@pytest.mark.timeout(400)
def test_the_older_trainer_logs_it_among_its_timings(tmp_path: Path) -> None:
    (tmp_path / "toy_reward_of_metrics.py").write_text(REWARD)
    agents = write_agents(tmp_path / "agents.yaml", AGENT)
    rows = [{"prompt": [{"role": "user", "content": f"What is {i} + 2?"}], "agent_name": "toy"} for i in range(BATCH)]
    run = run_main(
        cached("random", make_model),
        write_tasks(tmp_path / "tasks.parquet", rows),
        "trainer.use_v1=false",
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=agentkit_verl.v0.GroupedAgentLoopManager",
        agents=agents,
        steps=1,
        batch=BATCH,
        n=N,
        timeout=360,
    ).check()
    (step,) = run.steps
    logged = {name.removeprefix("timing_s/agent/"): value for name, value in step.items() if "/agent/" in name}
    assert logged["sessions/count"] == BATCH * N, run.tail()
    assert logged["outcome/train"] == 1
    assert logged["score/mean"] == pytest.approx(step["critic/score/mean"], abs=1e-5)
    assert logged["turns/max"] >= 1
    assert step["actor/grad_norm"] > 0
