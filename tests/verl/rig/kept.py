"""Loaded into verl's processes by `VERL_USE_EXTERNAL_MODULES`: keeps what the trainer computes advantages from.

Each step's rows go to a file in the folder that the environment variable `AGENTKIT_TEST_KEPT` names. The trainer is
verl's own; it is only listened to.
"""

import os
import pickle
from pathlib import Path
from typing import Any

FOLDER = "AGENTKIT_TEST_KEPT"
_FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", "rm_scores", "extra_fields"]


def _listen() -> None:
    import transfer_queue as tq
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    original = PPOTrainer._compute_advantage

    def compute_advantage(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=_FIELDS)
        rows = [
            {"key": key, "padding": bool(tag.get("is_padding", False))}
            | {name: [float(x) for x in data[name][i]] for name in _FIELDS[:-1]}
            | {"extra": data["extra_fields"][i]}
            for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True))
        ]
        Path(os.environ[FOLDER], f"{self.global_steps}.pickle").write_bytes(pickle.dumps(rows))
        return original(self, batch, metrics)

    PPOTrainer._compute_advantage = compute_advantage


def read_kept(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """The rows of each step, padding left out."""
    found = {int(file.stem): pickle.loads(file.read_bytes()) for file in folder.glob("*.pickle")}
    return {step: [row for row in rows if not row["padding"]] for step, rows in sorted(found.items())}


if os.environ.get(FOLDER):
    _listen()
