# pyright: basic, reportMissingImports=false
# torch, verl and TransferQueue are not installed where types are checked.
"""verl's V1 trainers with the rollouts in view: `trainer.v1.trainer_mode=agentkit_sync` and its two siblings.

Each is the trainer of the same name without `agentkit_`, and does a few things more. While advantages are computed the
rows' `RowInfo`s are within the estimators' reach (`agentkit_verl.credit.current_rows`). Advantages are then multiplied
by the weights that `algorithm.agentkit` asks for. Batches and mini-batches in which no token is trained are left out of
the update. And `agent/*` is added to the log (`agentkit_verl.metrics`). The two asynchronous ones announce when
generations are held up for weights (`agentkit_verl.pauses`).

What of verl 0.9.1 this leans on beside the registered names. All but the last two are of
`verl/trainer/ppo/v1/trainer_base.py`, class `PPOTrainer`:

- `_compute_advantage`, `_update_actor`, `_update_critic`, `_compute_metrics`: overridden, each calls verl's own.
- `on_init_end`, `on_sample_end`, `on_step_end`: the hooks that verl documents for its modes.
- `_step_once`: calls them in this order, on keys that all of them leave as they are.
- `trainer_mode`: verl tells sync from async by its value and reads the section `trainer.v1.<mode>`, so that verl's own
  name must be in the configuration before its `__init__` runs; `utils/skip/rollout_skip.py` reads it there later.
- the fields `extra_fields, response_mask, rm_scores, rollout_log_probs, old_log_probs, advantages, returns` and
  `token_level_rewards` of the TransferQueue, the tags `is_padding, prompt_len, response_len`, and keys that read
  `{uid}_{session}_{chain}` (`agent_loop_tq.py`, `padding_utils.py`).
- `actor_rollout_wg._dispatch_info["actor"]` (`single_controller/base/worker_group.py`): the data-parallel rank of each
  worker, which `_balance_batch` has asked for by then.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.v1 import (
    PPOTrainer,
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)
from verl.utils.import_utils import resolve_config_path

from agentkit_verl.credit.context import BatchRows, batch_rows
from agentkit_verl.credit.settings import CreditSettings
from agentkit_verl.credit.weights import token_weights
from agentkit_verl.entry import check_entries
from agentkit_verl.metrics import PREFIX, LoggedRow, TurnGap, agent_metrics
from agentkit_verl.minibatches import rows_to_update
from agentkit_verl.pauses import put_up_board
from agentkit_verl.rows import RowInfo, infos_of

_LOG = logging.getLogger(__name__)
_READ: Final = ["extra_fields", "response_mask", "rm_scores", "rollout_log_probs", "old_log_probs"]


class AgentKitTrainer(PPOTrainer):
    """What the three trainers share, on top of verl's trainer of mode `base_mode`.

    Raises:
        ConfigError: `algorithm.agentkit` says something unknown.
    """

    base_mode: ClassVar[str]

    def __init__(self, config: Any) -> None:
        self._credit = CreditSettings.of(config.algorithm)
        if path := config.actor_rollout_ref.rollout.agent.agent_loop_config_path:
            check_entries(resolve_config_path(path))  # workers would say it once all else is up, each session anew
        self._logged: list[LoggedRow] = []
        self._others: set[str] = set()
        self._left_out = {"updates_skipped": 0, "mini_batches_skipped": 0}
        config.trainer.v1.trainer_mode = self.base_mode
        super().__init__(config)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=_READ)
        infos = row_infos(data["extra_fields"], batch.tags)
        self._logged += _logged_rows(batch, infos, data, with_gaps=not self._trusts_rollout)
        self._others |= {session for session, _ in _of_other_loops(batch, infos)}
        if not any(_tokens_trained(data["response_mask"])):
            return self._no_advantage(batch, data)
        with batch_rows(batch.keys, infos):
            batch = super()._compute_advantage(batch, metrics)
        if self._credit.applies_weights:
            self._weigh(batch, infos)
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        kept = self._rows_to_update(batch)
        if not kept:
            _LOG.warning("step %s: no token of the batch is trained, so the actor is not updated", self.global_steps)
            self._left_out["updates_skipped"] += 1
        elif len(kept) == len(batch):
            return super()._update_actor(batch, metrics)
        else:
            self._left_out["mini_batches_skipped"] += (len(batch) - len(kept)) // self._mini_batch
            super()._update_actor(batch.select_keys([batch.keys[row] for row in kept]), metrics)
        return batch

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return super()._update_critic(batch, metrics) if any(_trained(batch)) else batch

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, Any], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        # the weights a step sets out from were synchronised at the end of the step before, under its number
        expected = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n - len(self._others)
        metrics.update(agent_metrics(self._logged, version=global_steps - 1, expected_sessions=expected))
        metrics.update({PREFIX + name: float(count) for name, count in self._left_out.items()})
        self._logged, self._others = [], set()
        self._left_out = dict.fromkeys(self._left_out, 0)

    @property
    def _trusts_rollout(self) -> bool:
        """Whether the rollout's log-probabilities stand in for the trainer's, which are then never computed."""
        correction = self.config.algorithm.get("rollout_correction", None)
        return bool(correction and correction.get("bypass_mode", False))

    @property
    def _mini_batch(self) -> int:
        """Rows of a mini-batch, over all ranks."""
        wanted = self.config.actor_rollout_ref
        return int(wanted.actor.ppo_mini_batch_size * wanted.rollout.n)

    def _no_advantage(self, batch: Any, data: Any) -> Any:
        """Advantages of zero: from a batch without a trained token verl's rollout correction would raise."""
        zeros = torch.nested.as_nested_tensor(
            [torch.zeros(len(mask), dtype=torch.float32) for mask in data["response_mask"].unbind()],
            layout=torch.jagged,
        )
        fields = {"advantages": zeros, "returns": zeros}
        if self.config.algorithm.use_kl_in_reward:
            fields["token_level_rewards"] = data["rm_scores"]
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
        )

    def _weigh(self, batch: Any, infos: Sequence[RowInfo | None]) -> None:
        """Multiplies the advantages: the loss is homogeneous in them, so that this weighs each token's loss."""
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages", "response_mask"]
        )
        weights = token_weights(
            BatchRows(keys=tuple(batch.keys), infos=tuple(infos)),
            data["response_mask"].to_padded_tensor(0),
            self._credit,
            loss_agg_mode=self.config.actor_rollout_ref.actor.loss_agg_mode,
        )
        weighed = [
            advantages * weights[row, : len(advantages)] for row, advantages in enumerate(data["advantages"].unbind())
        ]
        nested = torch.nested.as_nested_tensor(weighed, layout=torch.jagged)
        tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict({"advantages": nested}, batch_size=len(batch)),
        )

    def _rows_to_update(self, batch: Any) -> list[int]:
        trained = _trained(batch)
        if any(trained) and self.config.actor_rollout_ref.actor.shuffle:
            return list(range(len(batch)))  # each rank draws its own order, which cannot be known here
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        return rows_to_update(trained, ranks=ranks, mini_batch=self._mini_batch)


@register_trainer("agentkit_sync")
class AgentKitSync(AgentKitTrainer, PPOTrainerSync):
    """`agentkit_sync`: verl's `sync`."""

    base_mode = "sync"


@register_trainer("agentkit_colocate_async")
class AgentKitColocateAsync(AgentKitTrainer, PPOTrainerColocateAsync):
    """`agentkit_colocate_async`: verl's `colocate_async`, which says when generations wait for the training step."""

    base_mode = "colocate_async"

    def on_init_end(self) -> None:
        """Puts up the board that the agents' workers read."""
        self._board = put_up_board()
        super().on_init_end()

    def on_sample_end(self) -> None:
        """Servers are interrupted from here on, ..."""
        ray.get(self._board.announce.remote(True))
        super().on_sample_end()

    def on_step_end(self) -> None:
        """... and generate again from here."""
        super().on_step_end()
        ray.get(self._board.announce.remote(False))


@register_trainer("agentkit_separate_async")
class AgentKitSeparateAsync(AgentKitTrainer, PPOTrainerSeparateAsync):
    """`agentkit_separate_async`: verl's `separate_async`, which says when generations wait for the weights."""

    base_mode = "separate_async"

    def on_init_end(self) -> None:
        """Puts up the board that the agents' workers read."""
        self._board = put_up_board()
        super().on_init_end()

    def on_step_end(self) -> None:
        """Servers are interrupted for as long as they are given the weights."""
        ray.get(self._board.announce.remote(True))
        try:
            super().on_step_end()
        finally:
            ray.get(self._board.announce.remote(False))


def row_infos(extra_fields: Iterable[Any], tags: Sequence[Mapping[str, Any]]) -> tuple[RowInfo | None, ...]:
    """What each row of a batch says of itself; None for padding, which verl makes of a copy of the first row."""
    found = infos_of([getattr(fields, "data", fields) for fields in extra_fields])
    return tuple(None if tag.get("is_padding") else info for info, tag in zip(found, tags, strict=True))


def turn_gaps(info: RowInfo, rollout: torch.Tensor, trainer: torch.Tensor) -> tuple[TurnGap, ...]:
    """How far the log-probabilities of a row's tokens, shape (response,) both, are apart, action by action."""
    apart = (rollout - trainer).abs().double().numpy()
    spans = [(span, apart[span.start : span.stop]) for span in info.actions]
    return tuple(TurnGap(span.turn, len(gap), float(gap.sum()), float(gap.max())) for span, gap in spans if len(gap))


def _logged_rows(batch: Any, infos: Sequence[RowInfo | None], data: Any, *, with_gaps: bool) -> list[LoggedRow]:
    gaps: list[tuple[TurnGap, ...]] = [()] * len(infos)
    if with_gaps and "rollout_log_probs" in data and "old_log_probs" in data:
        both = zip(infos, data["rollout_log_probs"].unbind(), data["old_log_probs"].unbind(), strict=True)
        gaps = [() if info is None else turn_gaps(info, *logprobs) for info, *logprobs in both]
    others = {row for _, row in _of_other_loops(batch, infos)}
    return [
        LoggedRow(
            session=_session(key),
            info=info,
            prompt_tokens=tag["prompt_len"],
            response_tokens=tag["response_len"],
            gaps=of_row,
        )
        for row, (key, tag, info, of_row) in enumerate(zip(batch.keys, batch.tags, infos, gaps, strict=True))
        if row not in others
    ]


def _of_other_loops(batch: Any, infos: Sequence[RowInfo | None]) -> list[tuple[str, int]]:
    """Session and place of the rows that neither an agent of ours made, nor verl to pad the batch with."""
    return [
        (_session(key), row)
        for row, (key, tag, info) in enumerate(zip(batch.keys, batch.tags, infos, strict=True))
        if info is None and not tag.get("is_padding")
    ]


def _session(key: str) -> str:
    """The session of a row, by its key `{uid}_{session}_{chain}`."""
    return key.rsplit("_", 1)[0]


def _trained(batch: Any) -> list[int]:
    """How many tokens of each row count in the loss, after whatever rollout correction rejected."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    return _tokens_trained(data["response_mask"])


def _tokens_trained(response_mask: torch.Tensor) -> list[int]:
    return [int(mask.sum()) for mask in response_mask.unbind()]
