"""What verl 0.9.1 makes of our sessions: its own workers, replay buffer and rules, with all but the servers real."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkit_verl import RowInfo, close_workers
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.v1 import agent_loop_tq, replay_buffer

from agentkit import ConfigError
from tests.verl.rig.loops import Loops
from tests.verl.rig.model import cached, make_model

CODE = """
from agentkit import user
from agentkit.protocols import Score


async def score(trajectory, env):
    said = trajectory.prompt[-1].content
    if "ungraded" in said:
        raise RuntimeError("no opinion")
    return Score(0.5, metrics={"acc": 1.0})


async def loop(rollout):
    said = rollout.messages[-1].content
    if f"ungraded {rollout.key.index}" in said or f"alone {rollout.key.index}" in said:
        raise RuntimeError("ended by the test")
    await rollout.sample()
    if "compact" in said:
        rollout.rewrite([user("In short.")])
        await rollout.sample()
"""
AGENT = {"reward": "PARTS:score", "loop": "PARTS:loop", "budget": {"trajectory_s": 60}}
SAID = "It is four.<|im_end|>"


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    before = list(sys.path)
    yield
    await close_workers()
    sys.path[:] = before


def loops(
    folder: Path, *overrides: str, answer: Callable[[str], str | None] = lambda prompt: SAID, **entry: Any
) -> Loops:
    model = f"actor_rollout_ref.model.path={cached('random', make_model)}"
    sections = {"agent": AGENT, **entry}
    return Loops(folder, answer, model, "actor_rollout_ref.rollout.n=3", *overrides, entry=sections, code=CODE)


class Queue:
    """The TransferQueue as far as a worker writes to it: tags of prompts, and the rows of each partition."""

    def __init__(self) -> None:
        self.status: dict[str, str] = {}
        self.rows: dict[str, tuple[str, Any, Mapping[str, Any]]] = {}
        """By key: partition, fields and tag."""

    def init(self) -> None:
        pass

    async def async_kv_put(self, *, key: str, partition_id: str, tag: Mapping[str, Any]) -> None:
        self.status[key] = tag["status"]

    async def async_kv_batch_put(self, *, keys: list[str], fields: Any, tags: list[Any], partition_id: str) -> None:
        assert fields.batch_size == (len(keys),)
        for at, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            self.rows[key] = partition_id, fields[at], tag


def extra_of(fields: Any) -> dict[str, Any]:
    found = fields["extra_fields"]
    return dict(getattr(found, "data", found))


class V1:
    """verl's worker of V1, in this process."""

    def __init__(self, verl: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue = Queue()
        monkeypatch.setattr(agent_loop_tq, "tq", self.queue)
        kind = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
        self.worker = kind(config=verl.config, llm_client=verl.client)

    async def prompt(self, uid: str, content: str = "Go.", *, validate: bool = False, **row: Any) -> list[str]:
        """Runs the sessions of a prompt; the keys of its rows."""
        given = {"raw_prompt": [{"role": "user", "content": content}], "data_source": "toy", "index": np.int64(7)}
        given |= {"agent_name": "toy", "uid": uid, "global_steps": 4, "priority": np.int64(3), **row}
        params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
        await self.worker._run_prompt(
            given, params, {"step": 4, "sample_index": 7, "rollout_n": 0, "validate": validate}
        )
        return sorted(key for key in self.queue.rows if key.startswith(f"{uid}_"))


async def test_v1_has_a_row_a_chain_each_with_all_that_its_trainers_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v1 = V1(loops(tmp_path), monkeypatch)
    keys = await v1.prompt("u", "compact")
    assert keys == [f"u_{session}_{chain}" for session in range(3) for chain in range(2)]
    assert v1.queue.status["u"] == "finished"
    for key in keys:
        partition, fields, tag = v1.queue.rows[key]
        assert partition == "train"
        # np.array([...], dtype=int) over these ends the step where one is None
        for name in ("min_global_steps", "max_global_steps", "global_steps", "prompt_len", "response_len"):
            assert type(tag[name]) is int, name
        assert (tag["min_global_steps"], tag["max_global_steps"]) == (3, 3)
        extra = extra_of(fields)
        assert extra["reward_extra_info"] == {"turns": 2, "finished": 1.0, "acc": 1.0}
        assert RowInfo.of_extra_fields(extra) is not None
        assert len(fields["response_mask"]) == len(fields["rm_scores"]) == len(fields["rollout_log_probs"]) > 0
        assert float(fields["rm_scores"].sum()) == 0.5
        metrics = fields["metrics"]
        assert all(isinstance(value, int | float) for value in dict(getattr(metrics, "data", metrics)).values())
    assert len({tuple(sorted(v1.queue.rows[key][1].keys())) for key in keys}) == 1


@pytest.mark.parametrize(
    ("content", "on_lost_group", "status", "sessions"),
    [
        ("alone 0", "drop", "finished", [1, 2]),  # nothing of one: the group goes on
        ("alone 0 alone 1", "drop", "finished", []),  # a lone survivor, given up
        ("alone 0 alone 1", "fail", "failure", []),  # without any row: then verl takes another prompt
        ("ungraded", "drop", "finished", []),  # faults of the grader: none is a zero
    ],
)
async def test_what_v1_hears_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, on_lost_group: str, status: str, sessions: list[int]
) -> None:
    v1 = V1(loops(tmp_path, verl={"on_lost_group": on_lost_group}), monkeypatch)
    assert await v1.prompt("u", content) == [f"u_{session}_0" for session in sessions]
    assert v1.queue.status["u"] == status


async def test_an_answer_without_a_token_never_becomes_an_empty_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verl = loops(tmp_path, answer=lambda prompt: "")
    v1 = V1(verl, monkeypatch)
    assert await v1.prompt("u") == []  # one would raise in verl, and fail the group
    assert v1.queue.status["u"] == "finished"
    row = await verl.session(None)
    assert (len(row.response_ids), list(row.response_mask)) == (1, [0])


async def test_a_row_at_fault_fails_its_group_in_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v1 = V1(loops(tmp_path), monkeypatch)
    assert await v1.prompt("u", tools_kwargs={"budget": {"max_turn": 1}}) == []
    assert v1.queue.status["u"] == "failure"


async def test_verl_takes_missing_validation_rollouts_for_wrong_only_where_the_reward_gives_acc() -> None:
    def means(infos: dict[str, list[Any]]) -> dict[str, dict[str, float]]:
        found = process_validation_metrics(["toy"] * 2, ["u"] * 2, infos, expected_acc_counts={("toy", "u"): 4})
        return dict(found["toy"])

    of_reward = means({"reward": [1.0, 1.0], "turns": [2, 3]})
    assert of_reward["reward"]["mean@2"] == 1.0
    of_acc = means({"reward": [1.0, 1.0], "acc": [1.0, 1.0]})
    assert of_acc["acc"]["mean@4"] == 0.5
    assert of_acc["acc_success_only"]["mean@2"] == 1.0


# the older trainer


def batch_of(contents: list[str], *, validate: bool = False, **columns: Any) -> Any:
    from verl import DataProto

    def held(values: list[Any]) -> Any:
        made = np.empty(len(values), dtype=object)
        made[:] = values
        return made

    rows = {
        "raw_prompt": held([[{"role": "user", "content": content}] for content in contents]),
        "agent_name": held(["toy"] * len(contents)),
        "data_source": held(["toy"] * len(contents)),
        "index": np.arange(len(contents)),
        "priority": np.arange(len(contents)),
        **{name: held(values) for name, values in columns.items()},
    }
    return DataProto(non_tensor_batch=rows, meta_info={"global_steps": 4, "validate": validate})


def v0_worker(verl: Loops) -> Any:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    return AgentLoopWorker(config=verl.config, llm_client=verl.client, reward_loop_worker_handles=[])


@pytest.mark.parametrize("validate", [False, True])
async def test_v0_has_one_row_a_rollout_and_scores_of_all(tmp_path: Path, validate: bool) -> None:
    worker = v0_worker(loops(tmp_path))
    output = await worker.generate_sequences(batch_of(["Go.", "ungraded", "compact"], validate=validate))
    assert len(output) == 3
    assert output.batch["response_mask"].sum(-1).bool().tolist() == [True, False, True]
    assert output.batch["rm_scores"].sum(-1).tolist() == [0.5, 0.0, 0.5]
    assert torch.isfinite(output.batch["rollout_log_probs"]).all()
    for name in ("min_global_steps", "max_global_steps"):  # the asynchronous trainers subtract these
        assert [type(value) for value in output.non_tensor_batch[name]] == [int] * 3
    assert [info["outcome"] for info in output.non_tensor_batch["agentkit"]] == ["train", "drop", "train"]
    assert output.meta_info["reward_extra_keys"] == ["turns", "finished"]
    assert all(None not in metrics.values() for metrics in output.meta_info["metrics"])


async def test_in_v0_only_what_is_at_fault_itself_fails_the_step(tmp_path: Path) -> None:
    worker = v0_worker(loops(tmp_path))
    bad = batch_of(["Go.", "Go."], tools_kwargs=[{}, {"budget": {"max_turn": 1}}])
    with pytest.raises(ConfigError, match="max_turn"):
        await worker.generate_sequences(bad)


# groups without rows, and the filter of DAPO


def buffer_of(status: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    tags = {"u": {"is_prompt": True, "status": status, "global_steps": 3}}
    monkeypatch.setattr(replay_buffer.tq, "kv_list", lambda: {"train": tags})
    given = {"trainer_mode": "sync", "trainer_config": {}, "max_off_policy_threshold": None}
    given |= {"max_off_policy_strategy": "drop", "sampler_kwargs": {}, "refill_fn": lambda count: count, **more}
    known = inspect.signature(replay_buffer.ReplayBuffer.__init__).parameters
    buffer = replay_buffer.ReplayBuffer(**{name: value for name, value in given.items() if name in known})
    buffer._sync_metadata_from_transfer_queue()
    return buffer


async def test_the_filter_of_dapo_wants_lost_groups_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"filter_groups_metric": "reward", "train_batch_size": 1, "gen_batch_size": 1}
    with pytest.raises(RuntimeError, match="missing DAPO metric"):
        buffer_of("finished", monkeypatch, **options)._terminal_eviction_reasons(3, "train")
    buffer = buffer_of("failure", monkeypatch, **options, sync_refill_failed_groups=True)
    assert buffer._terminal_eviction_reasons(3, "train")[2] == {"u"}


# what another agent loop got wrong


async def test_who_finishes_on_the_last_turn_has_finished_and_no_turn_is_counted_twice(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "finish", "arguments": {"answer": "4"}}\n</tool_call><|im_end|>'
    agent = {"tools": ["finish"], "budget": {"max_turns": 1}, "outcomes": "mask_abnormal", "reward": "PARTS:score"}
    (row,) = await loops(tmp_path, answer=lambda prompt: call, agent=agent).session("u")
    info = RowInfo.of_extra_fields(row.extra_fields)
    assert info is not None
    assert (info.exit_reason, info.outcome, info.counts["turns"]) == ("finished", "train", 1)
    assert sum(row.response_mask) == len(row.response_ids) > 0
    await close_workers()
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
    agent |= {"budget": {"max_turns": 2}}
    (row,) = await loops(tmp_path, answer=lambda prompt: call, agent=agent).session("v")
    info = RowInfo.of_extra_fields(row.extra_fields)
    assert info is not None
    assert (info.exit_reason, info.outcome, info.counts["turns"]) == ("turn_limit", "mask", 2)
    assert row.extra_fields["reward_extra_info"]["turns"] == len(info.actions) == 2


async def test_what_does_not_fit_is_never_sampled(tmp_path: Path) -> None:
    limits = ("actor_rollout_ref.rollout.prompt_length=64", "actor_rollout_ref.rollout.response_length=40")
    verl = loops(tmp_path, *limits, answer=lambda prompt: "word " * 500, agent={"reward": "PARTS:score"})
    (row,) = await verl.session("u")
    ((prompt, said),) = verl.client.sampled
    assert verl.client.params[0]["max_tokens"] == len(said) == 40
    assert (list(row.prompt_ids), list(row.response_ids)) == (prompt, said)
    assert row.extra_fields["agentkit"]["exit_reason"] == "token_limit"


async def test_the_agents_file_is_read_once(tmp_path: Path) -> None:
    verl = loops(tmp_path)
    assert len(await verl.session("u")) == 1
    verl.agents.write_text("]")
    found = await asyncio.gather(*(verl.session("v", number) for number in range(2)))
    assert [len(rows) for rows in found] == [1, 1]


async def test_validation_is_told_apart_by_verls_own_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = "actor_rollout_ref.rollout.val_kwargs.n=3"
    v1 = V1(loops(tmp_path, overrides, verl={"on_lost_group": "fail"}), monkeypatch)
    keys = await v1.prompt("u", "alone 0 alone 1", validate=True)
    assert keys == ["u_2_0"]  # in training it were given up
    assert v1.queue.rows["u_2_0"][0] == "val"
    assert v1.queue.status["u"] == "finished"
