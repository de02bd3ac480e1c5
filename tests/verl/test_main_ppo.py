"""verl's own `main_ppo` with our loop in it: tool-using rollouts in sandboxes, and what the batch has of them."""

import math
from pathlib import Path
from typing import Any

import pytest

from agentkit.journal import JournalReader
from agentkit.protocols import Trajectory
from tests.verl.rig import MainRun, run_main, write_tasks
from tests.verl.rig.kept import FOLDER, read_kept
from tests.verl.rig.shell import AGENT, PROMPT_TOKENS, RESPONSE_TOKENS, tasks, taught_model, write_parts
from tests.verl.rig.trainer import write_agents

BATCH, N = 4, 2


def train(folder: Path, *settings: str, steps: int) -> tuple[MainRun, Path]:
    """A run of `main_ppo`, and its journals' folder."""
    write_parts(folder)
    journals, kept = folder / "journals", folder / "kept"
    kept.mkdir()
    entry = {
        "name": "shell",
        "_target_": "agentkit_verl.AgentKitLoop",
        "agent": AGENT,
        "pool": {"max_rollouts": 8},
        "verl": {"journal": str(journals)},
    }
    run = run_main(
        taught_model(),
        write_tasks(folder / "tasks.parquet", tasks("shell", BATCH * (steps + 1))),
        "actor_rollout_ref.actor.optim.lr=1e-4",  # what it was taught is to last for the steps
        *settings,
        agents=write_agents(folder / "agents.yaml", entry),
        steps=steps,
        batch=BATCH,
        n=N,
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=RESPONSE_TOKENS,
        env={"VERL_USE_EXTERNAL_MODULES": "tests.verl.rig.kept", FOLDER: str(kept)},
        timeout=480,
    )
    return run.check(), journals


def journalled(journals: Path) -> dict[tuple[str, int], Trajectory]:
    """Every trajectory that a worker process has kept, by task and index."""
    found: dict[tuple[str, int], Trajectory] = {}
    for file in journals.glob("shell-*[0-9]"):  # beside each there may be its -lock, -wal and -shm
        with JournalReader.open(file) as reader:
            for trajectory in reader.trajectories():
                found[(trajectory.task_id, trajectory.key.index)] = trajectory
    return found


def check_rows(rows: list[dict[str, Any]], trajectories: dict[tuple[str, int], Trajectory]) -> int:
    """That each row of a batch is what was sampled, token for token: how many tokens are trained on."""
    trained = 0
    for row in rows:
        uid, session, chain = row["key"].rsplit("_", 2)
        trajectory = trajectories[(uid, int(session))]
        (found,) = [
            place
            for place in trajectory.chains
            if list(place.ids[: len(row["prompts"]) + len(row["responses"])]) == row["prompts"] + row["responses"]
        ]
        assert int(chain) == 0
        assert len(trajectory.chains) == 1
        start, stop = len(row["prompts"]), len(row["prompts"]) + len(row["responses"])
        mask = list(found.response_mask)
        assert row["response_mask"] == mask[start:stop]
        assert not any(mask[:start])
        # nothing sampled is lost but what the response has no room for
        assert not any(mask[stop:]) or len(found) - start > RESPONSE_TOKENS
        sampled = [i for i, masked in enumerate(row["response_mask"]) if masked]
        assert [row["rollout_log_probs"][i] for i in sampled] == pytest.approx(
            [found.logprobs[start + i] for i in sampled], abs=1e-6
        )
        assert sum(row["rm_scores"]) == pytest.approx(trajectory.score, abs=1e-6)
        assert row["rm_scores"][-1] == sum(row["rm_scores"])
        trained += len(sampled)
    return trained


def gaps(rows: list[dict[str, Any]]) -> list[float]:
    """Between the probabilities of tokens when they were sampled and as the trainer computed them."""
    return [
        abs(math.exp(a) - math.exp(b))
        for row in rows
        for a, b, masked in zip(row["rollout_log_probs"], row["old_log_probs"], row["response_mask"], strict=True)
        if masked
    ]


def rollout_of(row: dict[str, Any]) -> tuple[str, int]:
    """The task and the index that a row's key tells."""
    uid, session, _ = row["key"].rsplit("_", 2)
    return uid, int(session)


@pytest.mark.timeout(540)
def test_two_steps_on_tool_calls_in_sandboxes(tmp_path: Path) -> None:
    run, journals = train(tmp_path, steps=2)
    assert len(run.steps) == 2
    trajectories = journalled(journals)
    kept = read_kept(tmp_path / "kept")
    assert list(kept) == [1, 2]
    assert sum(len(rows) for rows in kept.values()) == len(trajectories) == 2 * BATCH * N
    for number, rows in kept.items():
        step = run.steps[number - 1]
        assert check_rows(rows, trajectories) > 0
        assert max(gaps(rows)) < 1e-3
        assert step["training/rollout_probs_diff_max"] < 1e-3
        assert step["training/rollout_probs_diff_mean"] < 1e-4
        assert step["actor/grad_norm"] > 0
        assert step["critic/score/mean"] == pytest.approx(
            sum(trajectories[rollout_of(row)].score or 0.0 for row in rows) / len(rows), abs=1e-5
        )
    # what it is about: rollouts have had the sandbox read the file, and have gone on after that
    read = [
        trajectory
        for trajectory in trajectories.values()
        if any(seen.status == "ok" for turn in trajectory.turns for seen in turn.observations)
    ]
    assert len(read) >= len(trajectories) // 4
    assert all(len(trajectory.turns) >= 2 for trajectory in read)
    assert {len(turn.observations) for trajectory in read for turn in trajectory.turns} >= {0, 1}


@pytest.mark.timeout(540)
def test_rollouts_that_go_on_while_weights_are_exchanged(tmp_path: Path) -> None:
    """Colocated and asynchronous: what is under way at the end of a step is aborted, and goes on with new weights."""
    run, journals = train(tmp_path, "trainer.v1.trainer_mode=colocate_async", steps=3)
    assert len(run.steps) == 3
    trajectories = journalled(journals)
    kept = read_kept(tmp_path / "kept")
    assert list(kept) == [1, 2, 3]
    for rows in kept.values():
        assert len(rows) == BATCH * N
        assert check_rows(rows, trajectories) > 0
        for row in rows:
            spans = row["extra"]["agentkit"]["versions"]
            versions = [span["version"] for span in spans]
            assert versions == sorted(versions)
            assert (versions[0], versions[-1]) == (row["extra"]["min_global_steps"], row["extra"]["max_global_steps"])
            # every sampled token has the version that sampled it, and no other token has one
            covered = [any(span["start"] <= i < span["stop"] for span in spans) for i in range(len(row["responses"]))]
            assert covered == [bool(masked) for masked in row["response_mask"]]
    assert max(step["training/off_policy/trajectory_staleness/max"] for step in run.steps) >= 1
