# pyright: basic, reportMissingImports=false
# torch and verl are not installed where types are checked.
"""verl's older trainer, `trainer.use_v1=false`: how its agent loop manager keeps faults out of training.

There a rollout is one row, always. A dropped one is a single token with mask 0, and a score, since verl takes scores
for a batch only if all of its rows have one. Set

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=agentkit_verl.v0.GroupedAgentLoopManager

and such a row gets the mean score of its siblings, so that the group's baseline is that of the rollouts which did end;
where GRPO divides by the standard deviation, that of a group with such a row is a little smaller. Validation scores are
left as they are. A step of which nothing can be trained ends with one error that says why; and `agent/*` is in the log,
as `timing_s/agent/*`: this trainer takes no other numbers from here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from verl import DataProto
from verl.experimental.agent_loop import AgentLoopManager
from verl.utils.ray_utils import auto_await

from agentkit.errors import AgentkitError
from agentkit_verl.metrics import LoggedRow, agent_metrics
from agentkit_verl.rows import FIELD, RowInfo, infos_of

_DROP: Final = "drop"


class RolloutsLost(AgentkitError):
    """No rollout of a step left a token to train on; the message counts what they ended for."""


class GroupedAgentLoopManager(AgentLoopManager):
    """verl's manager, with dropped rollouts kept out of their groups' baselines.

    Raises:
        RolloutsLost: from `generate_sequences`, outside validation.
    """

    @auto_await  # as verl's own: called with and without await
    async def generate_sequences(self, prompts: DataProto) -> DataProto:
        """The rows of `prompts`, in order.

        Cancellation:
            That of verl's manager, which leaves the rollouts to its workers.
        """
        output = await super().generate_sequences(prompts)
        infos = infos_of([{FIELD: fields} for fields in output.non_tensor_batch.get(FIELD, [None] * len(output))])
        validate = bool(prompts.meta_info.get("validate", False))
        if not validate and any(info is not None for info in infos):
            _check_trained(output, infos)
            if "rm_scores" in output.batch:
                level_dropped(output.batch, groups_of(prompts), infos)
        timing = output.meta_info.setdefault("timing", {})
        step = prompts.meta_info.get("global_steps")
        timing |= agent_metrics(_logged(output, infos), version=None if step is None else int(step) - 1)
        return output


def groups_of(prompts: DataProto) -> list[str]:
    """The group of each row: rows of one prompt have its `uid`, or where verl gives none, the data set's `index`."""
    columns = prompts.non_tensor_batch
    for name in ("uid", "index"):
        if name in columns:
            return [str(value) for value in columns[name]]
    return [str(row) for row in range(len(prompts))]


def level_dropped(tensors: Any, groups: Sequence[str], infos: Sequence[RowInfo | None]) -> None:
    """Sets the score of each dropped row to the mean of its siblings that were not; to 0 where there are none."""
    scores = tensors["rm_scores"].sum(dim=-1)
    dropped = [info is not None and info.outcome == _DROP for info in infos]
    kept: dict[str, list[float]] = {}
    for group, is_dropped, score in zip(groups, dropped, scores.tolist(), strict=True):
        if not is_dropped:
            kept.setdefault(group, []).append(score)
    width = tensors["responses"].shape[-1]
    lasts = tensors["attention_mask"][:, -width:].sum(dim=-1).clamp(min=1) - 1
    for row, (group, is_dropped) in enumerate(zip(groups, dropped, strict=True)):
        if is_dropped:
            siblings = kept.get(group, [0.0])
            tensors["rm_scores"][row] = 0.0
            tensors["rm_scores"][row, lasts[row]] = sum(siblings) / len(siblings)


def _check_trained(output: DataProto, infos: Sequence[RowInfo | None]) -> None:
    if bool(torch.any(output.batch["response_mask"] != 0)):
        return
    ends = Counter(f"{info.exit_reason} ({info.outcome})" if info else "unknown" for info in infos)
    counted = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    raise RolloutsLost(f"none of {len(infos)} rollouts of this step left a token to train on: {counted}")


def _logged(output: DataProto, infos: Sequence[RowInfo | None]) -> list[LoggedRow]:
    width = output.batch["responses"].shape[-1]
    mask = output.batch["attention_mask"]
    lengths: Mapping[str, Any] = {
        "prompt": np.asarray(mask[:, :-width].sum(dim=-1)),
        "response": np.asarray(mask[:, -width:].sum(dim=-1)),
    }
    return [
        LoggedRow(
            session=str(row),
            info=info,
            prompt_tokens=int(lengths["prompt"][row]),
            response_tokens=int(lengths["response"][row]),
        )
        for row, info in enumerate(infos)
        if info is not None
    ]
