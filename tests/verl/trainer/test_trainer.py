"""Our trainers beside verl's own, on rows in a real TransferQueue. Only the workers that hold a model are replaced."""

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transfer_queue as tq
import verl
from agentkit_verl.credit.context import BatchRows, current_rows
from agentkit_verl.rows import FIELD, ActionSpan, KindSpan, RowInfo, VersionSpan
from agentkit_verl.trainer import AgentKitColocateAsync, AgentKitSeparateAsync, AgentKitSync
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, agg_loss, register_adv_est
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agentkit.errors import ConfigError

pytestmark = pytest.mark.usefixtures("transfer_queue")
BASICS = [
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=2",
    "actor_rollout_ref.model.path=nowhere",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.use_kl_loss=false",
    "trainer.n_gpus_per_node=1",
]
SEPARATE = [
    "trainer.v1.separate_async.parameter_sync_step=1",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
]


def configuration(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides=[*BASICS, *overrides])


class Actor:
    """A worker group without a model: the trainer's log-probabilities are the rollout's plus 0.25."""

    def __init__(self, ranks: int = 1) -> None:
        self._dispatch_info = {"actor": list(range(ranks))}
        self.updates: list[list[str]] = []

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["prompts", "rollout_log_probs"]
        )
        rows = zip(data["prompts"].unbind(), data["rollout_log_probs"].unbind(), strict=True)
        # as the engine has it: shifted left by one, over prompt and response
        logprobs = [torch.cat([torch.zeros(len(p) - 1), r + 0.25, torch.zeros(1)]) for p, r in rows]
        nested = torch.nested.as_nested_tensor(logprobs, layout=torch.jagged)
        fields = list_of_dict_to_tensordict([{"log_probs": row, "entropy": row * 0} for row in nested.unbind()])
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
        self.updates.append(list(batch.keys))
        return {"metrics": {"mfu": 0.0, "updates": 1.0}}


def trainer_of(config: DictConfig, cls: Any = None, ranks: int = 1) -> Any:
    trainer = (cls or get_trainer_cls(config.trainer.v1.trainer_mode))(config)
    trainer.replay_buffer.poll_interval = 0.01
    trainer.global_steps = 3
    trainer.curr_step_profile = False
    trainer.timing_raw = {}
    trainer.tokenizer = SimpleNamespace(eos_token_id=0, pad_token_id=0)
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    trainer.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: None)
    trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
    trainer.actor_rollout_wg = Actor(ranks)
    return trainer


def row(info: RowInfo | None, *, mask: Sequence[int], score: float, prompt: int = 3) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=list(range(1, prompt + 1)),
        response_ids=[7] * len(mask),
        response_mask=list(mask),
        response_logprobs=[-0.5] * len(mask),
        reward_score=score,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={
            "min_global_steps": 1,
            "max_global_steps": 2,
            "reward_extra_info": {},
            **({} if info is None else {FIELD: info.fields()}),
        },
    )


def info_of(uid: str, session: int, **more: Any) -> RowInfo:
    spans = (ActionSpan(turn=0, start=0, stop=2), ActionSpan(turn=1, start=3, stop=4))
    counts = {"turns": 2, "sampled": 3, "trained": 3}
    return RowInfo(
        **{"task_id": uid, "session": session, "actions": spans, "counts": counts, "grade": "ok"}
        | {"versions": (VersionSpan(0, 2, 1), VersionSpan(3, 4, 2))}
        | more
    )


def put_group(sessions: Sequence[Sequence[AgentLoopOutput]], uid: str, status: str = "finished") -> None:
    """As `AgentLoopWorkerTQ` leaves a group: each row under its own key, then the group as ended."""
    keys, fields, tags = [], [], []
    for session, outputs in enumerate(sessions):
        for chain, output in enumerate(outputs):
            field = output.as_dict()
            field["loss_mask"] = field["response_mask"]
            field["input_ids"] = torch.cat([field["prompts"], field["responses"]])
            field["position_ids"] = torch.arange(len(field["input_ids"]))
            field["uid"] = uid
            field["session_id"] = session
            lengths = len(field["prompts"]), len(field["responses"])
            keys.append(f"{uid}_{session}_{chain}")
            fields.append(field)
            tags.append(
                {"status": "success", "prompt_len": lengths[0], "response_len": lengths[1], "seq_len": sum(lengths)}
                | {"global_steps": 3, "min_global_steps": 1, "max_global_steps": 2}
            )
    if keys:
        tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
    tags = [{"is_prompt": True, "status": status, "global_steps": 3}]
    tq.kv_batch_put(keys=[uid], partition_id="train", tags=tags)


def two_groups(first_score: float = 1.0) -> None:
    """Group a: a session of two chains, and one of one; group b: one session, whose sibling left no row."""
    a, b = (uuid.uuid4().hex for _ in "ab")
    kinds = (KindSpan(0, 1, "reasoning"), KindSpan(1, 2, "text"), KindSpan(3, 4, "text"))
    scored = {"score": first_score, "chains": 2, "kinds": kinds}
    put_group(
        [
            [
                row(info_of(a, 0, **scored), mask=[1, 1, 0, 1, 0], score=first_score),
                row(info_of(a, 0, chain=1, **scored), mask=[1, 1, 0, 1], score=first_score),
            ],
            [row(info_of(a, 1, score=0.0), mask=[1, 1, 0, 1, 0, 0], score=0.0, prompt=5)],
        ],
        a,
    )
    put_group([[row(info_of(b, 0, score=1.0), mask=[1, 1, 0, 1], score=1.0)]], b)


def masked_groups() -> None:
    for uid in (uuid.uuid4().hex, uuid.uuid4().hex):
        masked = {"outcome": "mask", "exit_reason": "env_dead", "counts": {"sampled": 3, "trained": 0}}
        put_group([[row(info_of(uid, s, **masked), mask=[0, 0, 0, 0], score=0.0)] for s in range(2)], uid)


def empty() -> None:
    for partition, items in (tq.kv_list() or {}).items():
        if items:
            tq.kv_clear(keys=list(items), partition_id=partition)


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    yield
    empty()


def step(trainer: Any, groups: int = 2) -> tuple[KVBatchMeta, dict[str, Any]]:
    """What `PPOTrainer.fit` does in a step, between rollout and log."""
    metrics: dict[str, Any] = {}
    timing: dict[str, Any] = {}
    batch = trainer._step_once(metrics, timing, groups)
    timing["step"] = 1.0
    trainer._compute_metrics(batch, metrics, timing, global_steps=trainer.global_steps, epoch=0)
    return batch, metrics


def advantages(batch: KVBatchMeta) -> dict[str, list[float]]:
    """By session and chain, since ids are drawn anew in each test: `{group}_{session}_{chain}`, padding left out."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages"])
    uids = sorted({key.split("_")[0] for key in batch.keys}, key=[k.split("_")[0] for k in batch.keys].count)
    names = {uid: f"g{len([k for k in batch.keys if k.startswith(uid)])}" for uid in uids}
    return {
        names[key.split("_")[0]] + key[key.index("_") :]: values.tolist()
        for key, tag, values in zip(batch.keys, batch.tags, data["advantages"].unbind(), strict=True)
        if not tag.get("is_padding")
    }


def test_without_settings_the_step_is_verl_s_own() -> None:
    two_groups()
    stock = trainer_of(configuration())
    assert type(stock) is PPOTrainerSync
    batch, metrics = step(stock)
    two_groups()
    ours = trainer_of(configuration("trainer.v1.trainer_mode=agentkit_sync"))
    assert type(ours) is AgentKitSync
    our_batch, our_metrics = step(ours)

    assert len(batch) == 4
    assert advantages(our_batch) == advantages(batch)
    assert [len(keys) for keys in ours.actor_rollout_wg.updates] == [4]
    added = {name for name in our_metrics if name not in metrics}
    assert added
    assert all(name.startswith("agent/") for name in added)
    for found in (metrics, our_metrics):
        for name in [name for name in found if name.startswith(("timing_", "agent/"))]:
            del found[name]
    assert our_metrics == pytest.approx(metrics, nan_ok=True)


def test_the_log_counts_sessions_once_and_padding_not_at_all() -> None:
    two_groups()
    trainer = trainer_of(
        configuration("trainer.v1.trainer_mode=agentkit_sync", "actor_rollout_ref.actor.ppo_mini_batch_size=3")
    )
    batch, metrics = step(trainer)
    assert [bool(tag.get("is_padding")) for tag in batch.tags].count(True) == 2
    found = {name.removeprefix("agent/"): value for name, value in metrics.items() if name.startswith("agent/")}
    assert found["sessions/count"] == 3
    assert found["sessions/missing"] == 1
    assert found["rows/count"] == 4
    assert found["rows/synthetic"] == pytest.approx(2 / 6)
    assert found["rows/tokens/max"] == 11
    assert found["score/mean"] == pytest.approx(2 / 3)
    assert found["source/unknown/sessions"] == 3
    assert found["exit/finished"] == 1.0
    assert found["turns/mean"] == 2
    # of step 3, which began with the weights of step 2
    assert (found["versions/mean"], found["versions/spread/max"], found["staleness/max"]) == (2, 1, 1)
    assert found["logprob_gap/mean"] == pytest.approx(0.25)
    assert (found["logprob_gap/turn_0"], found["logprob_gap/turn_1"]) == pytest.approx((0.25, 0.25))
    assert (found["updates_skipped"], found["mini_batches_skipped"]) == (0, 0)
    trainer._compute_metrics(batch, again := {}, {"step": 1.0}, global_steps=4, epoch=0)
    assert again["agent/sessions/count"] == 0, "a step's rows are not logged in the next"


def test_an_estimator_sees_the_rows_in_the_order_of_its_tensors() -> None:
    seen: list[BatchRows | None] = []
    scores: list[list[float]] = []

    @register_adv_est("agentkit_test_rows")
    def estimate(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
        seen.append(current_rows())
        scores.append(token_level_rewards.sum(-1).tolist())
        return response_mask * 1.0, response_mask * 1.0

    try:
        two_groups(first_score=0.5)
        overrides = ["trainer.v1.trainer_mode=agentkit_sync", "algorithm.adv_estimator=agentkit_test_rows"]
        trainer = trainer_of(configuration(*overrides, "actor_rollout_ref.actor.ppo_mini_batch_size=3"))
        batch, _ = step(trainer)
    finally:
        ADV_ESTIMATOR_REGISTRY.pop("agentkit_test_rows")
    assert current_rows() is None
    (rows,) = seen
    assert rows is not None
    assert rows.keys == tuple(batch.keys)
    for info, tag, score in zip(rows.infos, batch.tags, scores[0], strict=True):
        assert (info is None) == bool(tag.get("is_padding"))
        if info is not None:
            assert info.score == score


def test_rows_of_other_loops_are_trained_and_not_logged() -> None:
    other = uuid.uuid4().hex
    put_group([[row(None, mask=[1, 1], score=float(session))] for session in range(2)], other)
    put_group([[row(info_of("ours", 0, score=1.0), mask=[1, 1, 0, 1], score=1.0)]], uuid.uuid4().hex)
    trainer = trainer_of(configuration("trainer.v1.trainer_mode=agentkit_sync"))
    batch, metrics = step(trainer)
    assert [bool(tag.get("is_padding")) for tag in batch.tags].count(True) == 1
    assert {key for key in batch.keys if key.startswith(other)} <= set(trainer.actor_rollout_wg.updates[0])
    assert (metrics["agent/rows/count"], metrics["agent/rows/synthetic"]) == (1, 0.5)
    assert (metrics["agent/sessions/count"], metrics["agent/sessions/missing"]) == (1, 1)


def test_weights_multiply_the_advantages() -> None:
    two_groups()
    plain = advantages(step(trainer_of(configuration()))[0])
    two_groups()
    overrides = [
        "trainer.v1.trainer_mode=agentkit_sync",
        "+algorithm.agentkit.kind_weights={reasoning: 0.5}",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
    ]
    weighed = advantages(step(trainer_of(configuration(*overrides)))[0])
    assert plain.keys() == weighed.keys()
    for key, values in plain.items():
        factors = [0.5] + [1.0] * (len(values) - 1) if key.startswith("g3_0") else [1.0] * len(values)
        assert weighed[key] == pytest.approx([a * f for a, f in zip(values, factors, strict=True)])
    assert any(value for values in plain.values() for value in values)


def test_an_unknown_setting_ends_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="wieghts"):
        trainer_of(configuration("trainer.v1.trainer_mode=agentkit_sync", "+algorithm.agentkit.wieghts=none"))


def test_a_batch_that_trains_nothing_is_stepped_over() -> None:
    masked_groups()
    with pytest.raises(ValueError, match="at least one valid token"):
        step(trainer_of(configuration()))  # what verl does with it

    empty()
    masked_groups()
    trainer = trainer_of(configuration("trainer.v1.trainer_mode=agentkit_sync"))
    batch, metrics = step(trainer)
    assert trainer.actor_rollout_wg.updates == []
    assert metrics["agent/updates_skipped"] == 1
    assert metrics["agent/outcome/mask"] == 1
    assert metrics["agent/exit/env_dead"] == 1
    assert metrics["agent/tokens/masked/share"] == 1
    assert all(value == 0 for values in advantages(batch).values() for value in values)

    two_groups()
    _, metrics = step(trainer)
    assert metrics["agent/updates_skipped"] == 0
    assert len(trainer.actor_rollout_wg.updates) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mini_batch_that_trains_nothing_is_left_out(ranks: int) -> None:
    zeros = torch.zeros(2, 3)
    assert agg_loss(zeros, zeros, "token-mean").isnan()  # what verl would take the mean of

    uids = [uuid.uuid4().hex for _ in "abcd"]
    for index, uid in enumerate(uids):
        mask = [1, 1, 0, 1] if index == 2 else [0, 0, 0, 0]
        put_group([[row(info_of(uid, s, score=float(s)), mask=mask, score=float(s))] for s in range(2)], uid)
    overrides = ["trainer.v1.trainer_mode=agentkit_sync", "actor_rollout_ref.actor.ppo_mini_batch_size=1"]
    trainer = trainer_of(configuration(*overrides), ranks=ranks)
    batch, metrics = step(trainer, groups=4)
    (updated,) = trainer.actor_rollout_wg.updates
    assert len(batch) == 8
    trained = {key for key in batch.keys if key.startswith(uids[2])}
    assert trained <= set(updated)
    assert metrics["agent/mini_batches_skipped"] == (8 - len(updated)) // 2 > 0
    # as the ranks cut it: no mini-batch without a trained row
    part = len(updated) // ranks
    run = 2 // ranks
    for start in range(0, part, run):
        rows = [updated[rank * part + start + i] for rank in range(ranks) for i in range(run)]
        assert trained & set(rows)
    # the rows that are not updated are still of the step: their metrics, and their end in the queue
    assert set(updated) < set(batch.keys)


@pytest.mark.parametrize(
    ("mode", "cls", "buffer"),
    [
        ("sync", AgentKitSync, ReplayBuffer),
        ("colocate_async", AgentKitColocateAsync, ReplayBufferAsync),
        ("separate_async", AgentKitSeparateAsync, ReplayBufferAsync),
    ],
)
def test_each_is_its_base_in_all_that_verl_reads_of_the_mode(mode: str, cls: type, buffer: type) -> None:
    trainer = trainer_of(configuration(f"trainer.v1.trainer_mode=agentkit_{mode}", *SEPARATE))
    assert type(trainer) is cls
    assert issubclass(cls, get_trainer_cls(mode))
    assert trainer.trainer_mode == trainer.config.trainer.v1.trainer_mode == mode
    assert type(trainer.replay_buffer) is buffer
    assert trainer.parameter_sync_step == 1


def test_lost_groups_end_a_sync_run_unless_it_refills_them() -> None:
    refilled: list[int] = []

    def refill(prompts: int) -> int:
        refilled.append(prompts)
        for _ in range(prompts):
            uid = uuid.uuid4().hex
            put_group([[row(info_of(uid, 0), mask=[1, 1, 0, 1], score=1.0)]], uid)
        return prompts

    for _ in range(2):
        put_group([], uuid.uuid4().hex, status="failure")
    with pytest.raises(RuntimeError, match="sync_refill_failed_groups"):
        trainer_of(configuration("trainer.v1.trainer_mode=agentkit_sync")).replay_buffer.sample(3, "train", 2)

    empty()
    for _ in range(2):
        put_group([], uuid.uuid4().hex, status="failure")
    overrides = ["trainer.v1.trainer_mode=agentkit_sync", "trainer.v1.sampler.sync_refill_failed_groups=true"]
    trainer = trainer_of(configuration(*overrides))
    assert trainer.replay_buffer.gen_batch_size == 1
    trainer.replay_buffer.refill_fn = refill
    batch, metrics = trainer.replay_buffer.sample(3, "train", 2)
    assert refilled == [2]
    assert len(batch) == 2
    assert metrics["training/rollout_failure/evicted_samples"] == 2


def hearing(trainer: Any) -> tuple[list[tuple[str, bool]], Any]:
    """What is done, each time with what the workers are told then; and what makes a function that is noted so."""
    import ray

    heard: list[tuple[str, bool]] = []

    def note(name: str) -> Any:
        return lambda *_: heard.append((name, ray.get(trainer._board.changed.remote(-1, 1.0))[1]))

    return heard, note


def test_generations_are_announced_as_held_up_while_the_step_has_the_servers() -> None:
    trainer = trainer_of(configuration("trainer.v1.trainer_mode=agentkit_colocate_async"))
    heard, note = hearing(trainer)
    trainer.checkpoint_manager = SimpleNamespace(
        update_weights=note("update"),
        abort_replicas=note("abort"),
        sleep_replicas=note("sleep"),
        resume_generation_replicas=note("resume"),
    )
    trainer.on_init_end()
    trainer.on_sample_end()
    trainer.on_step_end()
    note("after")()
    assert heard == [
        ("update", False),
        ("abort", True),
        ("sleep", True),
        ("update", True),
        ("resume", True),
        ("after", False),
    ]


def test_generations_are_announced_as_held_up_while_other_servers_get_weights() -> None:
    trainer = trainer_of(configuration("trainer.v1.trainer_mode=agentkit_separate_async", *SEPARATE))
    heard, note = hearing(trainer)
    trainer.prev_step_profile = False
    trainer.checkpoint_manager = SimpleNamespace(update_weights=note("own"))
    trainer.standalone_checkpoint_manager = SimpleNamespace(update_weights=note("update"))
    trainer.on_init_end()
    note("before")()
    trainer.on_step_end()
    note("after")()
    assert heard == [("update", False), ("own", False), ("before", False), ("update", True), ("after", False)]


def test_what_verl_keeps_of_a_row_is_what_the_agent_said() -> None:
    """Through pydantic, TensorDict and the TransferQueue; NumPy's types must not come in on the way."""
    uid = uuid.uuid4().hex
    info = info_of(uid, 0, seconds={"total": 1.5}, blame="environment", weight=0.25)
    put_group([[row(info, mask=[1, 1, 0, 1], score=1.0)]], uid)
    stored = tq.kv_batch_get(keys=[f"{uid}_0_0"], partition_id="train", select_fields=["extra_fields"])
    (fields,) = stored["extra_fields"]
    assert RowInfo.of_extra_fields(getattr(fields, "data", fields)) == info
    assert not isinstance(fields, np.ndarray)
