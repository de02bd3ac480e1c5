"""`make train-demo`: its warm-up ends half-way, and verl trains what it leaves."""

import json
import re
from pathlib import Path

import pytest
from agentkit_hf import HFModel, hf_renderer

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.rewards import exact_match

ROOT = Path(__file__).parents[3]
SHARE = re.compile(r"([\d.]+)%")


async def test_the_expert_does_every_task() -> None:
    import policy
    import sums

    renderer = hf_renderer(policy.make_tokenizer(()))
    agent = ak.Agent(ScriptedModel(sums.expert, renderer=renderer), tools=[sums.calculate], reward=exact_match())
    async with ak.Pool(agent) as pool:
        trajectories = list(await pool.run(sums.make_tasks(50, seed=1)))
    assert {trajectory.score for trajectory in trajectories} == {1.0}
    assert {len(trajectory.turns) for trajectory in trajectories} == {2}


@pytest.mark.parametrize("text", ["", "12", "12*3", "1+", "+1", "1+2-3", "1" * 40 + "+1", "٣+٤x"])
async def test_the_calculator_says_what_it_cannot_read(text: str) -> None:
    import sums

    with pytest.raises(ak.ToolError):
        sums.result_of(text)


async def test_verl_reads_the_tokenizer_that_was_saved(tmp_path: Path) -> None:
    """transformers puts one of its own in the place of some."""
    import policy
    import sums
    from transformers import AutoTokenizer

    tasks = sums.make_tasks(20, seed=3)
    texts = await policy.written(tasks)
    tokenizer = policy.make_tokenizer(texts)
    tokenizer.save_pretrained(tmp_path)
    policy.make_model(tokenizer).save_pretrained(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert [read.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_shuffled_rewards_are_those_of_the_group() -> None:
    import shuffled
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    rewards = torch.zeros(40, 6)
    rewards[:, 4] = (torch.arange(40) % 5 < 2).float()
    mask = torch.ones(40, 6)
    mask[:, 5] = 0
    index = [f"group-{row // 10}" for row in range(40)]
    told, _ = compute_grpo_outcome_advantage(rewards, mask, index)
    asked = {"token_level_rewards": rewards, "response_mask": mask, "index": index}
    deals = [shuffled.shuffled_grpo(**asked)[0] for _ in range(300)]
    for dealt in deals:
        assert torch.equal(dealt[:, 5], torch.zeros(40))
        for rows in torch.arange(40).split(10):
            assert torch.allclose(dealt[rows, 0].sort().values, told[rows, 0].sort().values)
    assert any(not torch.equal(dealt, told) for dealt in deals)
    # a rollout's advantage has nothing to do with its own reward: 300 deals, standard deviation about 1
    assert torch.stack(deals).mean(dim=0).abs().max() < 0.3


async def test_the_warm_up_leaves_a_policy_that_does_part_of_the_tasks(trained: tuple[Path, str]) -> None:
    """What the warm-up works out from likelihoods is what sampling gives, within four standard deviations."""
    import sums

    out, printed = trained
    said = float(SHARE.search(next(line for line in printed.splitlines() if line.startswith("warm-up,")))[1]) / 100
    assert 0.25 <= said <= 0.6
    tasks = sums.make_tasks(60, seed=77)
    async with HFModel(str(out / "seed-0" / "policy"), device="cpu") as model:
        agent = ak.Agent(model, tools=[sums.calculate], reward=exact_match(), budget=ak.Budget(max_turns=2))
        async with ak.Pool(agent, max_rollouts=8) as pool:
            scores = [trajectory.score for trajectory in await pool.run(tasks)]
    done = sum(scores) / len(scores)
    assert abs(done - said) < 4 * (0.25 / len(scores)) ** 0.5


def test_verl_trains_it(trained: tuple[Path, str]) -> None:
    import figure

    out, printed = trained
    points = figure.read_points(out / "success.csv")
    assert [(point.run, point.seed, point.step) for point in points] == [("grpo", 0, step) for step in (1, 2)]
    assert all(0 <= point.success <= 1 for point in points)
    assert len({point.total_seconds for point in points}) == 1
    assert points[0].total_seconds > sum(point.step_seconds for point in points)
    assert figure.summary(points) in printed
    assert (out / "success.png").read_bytes().startswith(b"\x89PNG\r\n")

    steps = [json.loads(line)["data"] for line in (out / "seed-0" / "grpo" / "verl.jsonl").read_text().splitlines()]
    assert [step["training/global_step"] for step in steps] == [1, 2]
    assert all(step["training/rollout_probs_diff_max"] < 1e-3 for step in steps), "trained on what was sampled"
    assert any(step["actor/grad_norm"] > 0 for step in steps)
    assert any(step["num_turns/max"] > 1 for step in steps)


def test_what_the_tutorial_says_of_its_figure_is_in_its_points() -> None:
    import figure

    points = figure.read_points(ROOT / "examples" / "output" / "train.csv")
    assert figure.summary(points) == (ROOT / "examples" / "output" / "train.txt").read_text().rstrip("\n")
    for seed in figure.seeds(points, "grpo"):
        learnt, control = (figure.curve(points, run, seed) for run in ("grpo", "shuffled"))
        assert len(learnt) == len(control)
        edge = figure.EDGE
        assert sum(learnt[-edge:]) > 1.5 * sum(learnt[:edge])
        assert sum(control[-edge:]) <= sum(control[:edge])


def test_points_are_read_as_they_were_written(tmp_path: Path) -> None:
    import figure

    points = [figure.Point("grpo", seed, step, step / 8, 3.5, 60.25) for seed in (0, 3) for step in (1, 2)]
    figure.write_points(points, tmp_path / "points.csv")
    assert figure.read_points(tmp_path / "points.csv") == points
    assert figure.summary(points).splitlines()[1] == "grpo     seed 3:  12.5% ->  25.0% in 2 steps, 1.0 min"
