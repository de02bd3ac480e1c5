"""The older trainer's manager: verl's own classes, with a worker that answers what a test made."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from agentkit_verl.rows import FIELD, RowInfo
from agentkit_verl.v0 import GroupedAgentLoopManager, RolloutsLost, level_dropped
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopWorker, _InternalAgentLoopOutput
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.metric_utils import compute_timing_metrics

WIDTH = 4


def outputs_of(infos: Sequence[RowInfo | None], scores: Sequence[float]) -> DataProto:
    """As verl's worker makes a batch of what its loops returned; a dropped rollout is one token that counts nowhere."""
    rows = []
    for info, score in zip(infos, scores, strict=True):
        dropped = info is not None and info.outcome == "drop"
        length = 1 if dropped else 3
        response = torch.tensor([[1] * length + [0] * (WIDTH - length)])
        trains = info is None or info.outcome == "train"
        mask = torch.cat([torch.tensor([[0, 1, 1]]), response], dim=1)
        rows.append(
            _InternalAgentLoopOutput(
                prompt_ids=torch.tensor([[0, 5, 5]]),
                response_ids=response * 7,
                input_ids=torch.cat([torch.tensor([[0, 5, 5]]), response * 7], dim=1),
                position_ids=mask.cumsum(1) - 1,
                response_mask=response * int(trains),
                attention_mask=mask,
                response_logprobs=None,
                reward_score=score,
                num_turns=2,
                metrics=AgentLoopMetrics(),
                extra_fields={"reward_extra_info": {}} | ({} if info is None else {FIELD: info.fields()}),
            )
        )
    worker = SimpleNamespace(reward_loop_worker_handles=[])
    return AgentLoopWorker._postprocess(worker, rows)


def prompts_of(groups: Sequence[str], *, validate: bool = False, column: str = "uid") -> DataProto:
    batch = DataProto(
        batch=TensorDict({"dummy": torch.zeros(len(groups), 1)}, batch_size=len(groups)),
        non_tensor_batch={column: np.array(groups, dtype=object)},
        meta_info={"validate": validate, "global_steps": 3},
    )
    return batch


class Worker:
    """A worker's handle that answers with its part of a batch made beforehand."""

    def __init__(self, answer: DataProto) -> None:
        async def remote(_: DataProto) -> DataProto:
            return answer

        self.generate_sequences = SimpleNamespace(remote=remote)


def manager_of(answers: Sequence[DataProto]) -> GroupedAgentLoopManager:
    config: Any = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=None, model=None))
    manager = GroupedAgentLoopManager(config, llm_client=None)
    manager.agent_loop_workers = [Worker(answer) for answer in answers]
    return manager


def info(outcome: str = "train", reason: str = "finished", **more: Any) -> RowInfo:
    return RowInfo(task_id="t", session=0, outcome=outcome, exit_reason=reason, **more)


DROPPED = info("drop", "env_dead", blame="infrastructure")


def scores_of(output: DataProto) -> list[float]:
    return output.batch["rm_scores"].sum(-1).tolist()


@pytest.mark.parametrize("column", ["uid", "index"])
def test_a_dropped_rollout_moves_no_baseline(column: str) -> None:
    infos = [info(), info(), DROPPED, info(), DROPPED, info()]
    # two workers, as verl cuts the batch; a group crosses the cut
    manager = manager_of([outputs_of(infos[:2], [1.0, 0.0]), outputs_of(infos[2:], [0.0, 1.0, 0.0, 1.0])])
    prompts = prompts_of(["a", "a", "a", "b", "b", "b"], column=column)
    output = manager.generate_sequences(prompts)
    assert scores_of(output) == [1.0, 0.0, 0.5, 1.0, 1.0, 1.0]
    # where verl looks for a row's score: its last token
    assert output.batch["rm_scores"][2].tolist() == [0.5, 0.0, 0.0, 0.0]

    index = np.array(["a", "a", "a", "b", "b", "b"], dtype=object)
    with_dropped, _ = compute_grpo_outcome_advantage(
        output.batch["rm_scores"], output.batch["response_mask"], index, norm_adv_by_std_in_grpo=False
    )
    kept = [0, 1, 3, 5]
    without, _ = compute_grpo_outcome_advantage(
        output.batch["rm_scores"][kept], output.batch["response_mask"][kept], index[kept], norm_adv_by_std_in_grpo=False
    )
    assert with_dropped[kept].tolist() == without.tolist()
    assert with_dropped[[2, 4]].abs().sum() == 0


def test_the_only_survivor_of_a_group_learns_nothing() -> None:
    manager = manager_of([outputs_of([info(), DROPPED, info(), info()], [1.0, 0.0, 1.0, 0.0])])
    output = manager.generate_sequences(prompts_of(["a", "a", "b", "b"]))
    advantages, _ = compute_grpo_outcome_advantage(
        output.batch["rm_scores"], output.batch["response_mask"], np.array(["a", "a", "b", "b"], dtype=object)
    )
    assert advantages[0].tolist() == [0.0] * WIDTH
    assert advantages[2].abs().sum() > 0


def test_a_lost_step_says_what_the_rollouts_ended_for() -> None:
    infos = [DROPPED, DROPPED, info("mask", "internal_error"), info("drop", "model_error")]
    manager = manager_of([outputs_of(infos, [0.0] * 4)])
    with pytest.raises(RolloutsLost) as lost:
        manager.generate_sequences(prompts_of(["a", "a", "b", "b"]))
    assert str(lost.value) == (
        "none of 4 rollouts of this step left a token to train on: "
        "2 env_dead (drop), 1 internal_error (mask), 1 model_error (drop)"
    )


def test_validation_is_left_as_it_is() -> None:
    manager = manager_of([outputs_of([info(), DROPPED], [1.0, 0.0])])
    assert scores_of(manager.generate_sequences(prompts_of(["a", "a"], validate=True))) == [1.0, 0.0]
    manager = manager_of([outputs_of([DROPPED, DROPPED], [0.0, 0.0])])
    assert scores_of(manager.generate_sequences(prompts_of(["a", "a"], validate=True))) == [0.0, 0.0]


def test_rows_of_other_loops_are_left_as_they_are() -> None:
    manager = manager_of([outputs_of([None, None], [1.0, 0.25])])
    output = manager.generate_sequences(prompts_of(["a", "a"]))
    assert scores_of(output) == [1.0, 0.25]
    assert output.meta_info["timing"]["agent/sessions/count"] == 0


async def test_it_may_be_awaited_as_well() -> None:
    manager = manager_of([outputs_of([info(), DROPPED], [1.0, 0.0])])
    assert scores_of(await manager.generate_sequences(prompts_of(["a", "a"]))) == [1.0, 1.0]
    assert asyncio.get_running_loop().is_running()


def test_the_numbers_reach_verl_s_log() -> None:
    manager = manager_of([outputs_of([info(score=1.0), DROPPED], [1.0, 0.0])])
    output = manager.generate_sequences(prompts_of(["a", "a"]))
    # as RayPPOTrainer.fit does
    timing = dict(output.meta_info["timing"])
    logged = compute_timing_metrics(batch=output, timing_raw=timing)
    assert logged["timing_s/agent/exit/env_dead"] == 0.5
    assert logged["timing_s/agent/outcome/drop"] == 0.5
    assert logged["timing_s/agent/score/mean"] == 1.0
    assert logged["timing_s/agent/rows/tokens/max"] == 5
    assert logged["timing_s/agent/rows/count"] == 2


@given(st.data())
def test_levelling_equals_the_mean_of_the_others(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    groups = data.draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n))
    drops = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    scores = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=n, max_size=n))
    output = outputs_of([info("drop" if dropped else "train") for dropped in drops], scores)
    level_dropped(output.batch, groups, [info("drop" if dropped else "train") for dropped in drops])
    for row in range(n):
        siblings = [scores[i] for i in range(n) if groups[i] == groups[row] and not drops[i]]
        wanted = scores[row] if not drops[row] else sum(siblings) / len(siblings) if siblings else 0.0
        assert scores_of(output)[row] == pytest.approx(wanted)
