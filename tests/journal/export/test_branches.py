"""Rollouts that went back: exports hold the conversation as it ended, every turn, and what its tokens count."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from attrs import evolve

from agentkit.errors import ConfigError
from agentkit.journal import Journal
from agentkit.journal.export import Selection, conversation, export_jsonl, export_npz, export_parquet, export_sft
from agentkit.protocols import (
    Action,
    CallFault,
    Chain,
    ExitReason,
    FaultStatus,
    Observation,
    Outcome,
    RolloutKey,
    Trajectory,
    Turn,
    user,
)

TURNS = (
    Turn(0, Action("a", "a"), (Observation("seen"),)),
    Turn(1, Action("b", "b", attempts=(CallFault(FaultStatus.INVALID_JSON, "no"),))),
    Turn(2, Action("c", "c"), (Observation("seen too"),), heard=(user("on"),), follows=0),
    Turn(3, Action("d", "d"), follows=0),
)


def chain(sampled: int) -> Chain:
    return Chain.of(range(sampled + 1), [0] + [1] * sampled, [0.0] + [-1.0] * sampled)


CHILD = Trajectory(RolloutKey("c", 0), (user("help"),), (chain(4),), (), ExitReason.FINISHED)
BRANCHED = Trajectory(
    RolloutKey("t", 0),
    (user("go"),),
    (chain(1), chain(2), chain(0)),
    TURNS,
    ExitReason.FINISHED,
    children=(CHILD, evolve(CHILD, outcome=Outcome.MASK)),
    tip=2,
)


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    async with Journal.open(tmp_path, writer="inline") as journal:
        await journal.begin(BRANCHED.key)
        await journal.seal(BRANCHED)
    return tmp_path


@pytest.mark.parametrize(
    ("tip", "path", "said"),
    [
        (2, [0, 2], ["go", "a", "seen", "on", "c", "seen too"]),
        (None, [0, 3], ["go", "a", "seen", "d"]),
        (1, [0, 1], ["go", "a", "seen", "b"]),
        (-1, [], ["go"]),
    ],
)
def test_the_conversation_is_the_path_to_where_it_ended(tip: int | None, path: list[int], said: list[str]) -> None:
    trajectory = evolve(BRANCHED, tip=tip)
    assert [turn.index for turn in trajectory.path()] == path
    assert [message["content"] for message in conversation(trajectory).messages] == said


def test_a_record_that_runs_in_a_circle_has_a_path_all_the_same() -> None:
    turns = (Turn(0, Action("a"), follows=1), Turn(1, Action("b"), follows=5))
    assert [turn.index for turn in evolve(BRANCHED, turns=turns, tip=None).path()] == [0, 1]


async def test_json_lines_have_the_path_and_every_turn(run: Path) -> None:
    export_jsonl(run, run / "out")
    tree = json.loads((run / "out").read_text())
    assert tree["path"] == [0, 2]
    assert [turn["previous"] for turn in tree["turns"]] == [-1, 0, 0, 0]


async def test_what_was_rolled_back_does_not_keep_a_conversation_from_fine_tuning(run: Path) -> None:
    done = export_sft(run, run / "out", select=Selection())
    assert done.written == 1
    (line,) = (run / "out").read_text().splitlines()
    assert [message["content"] for message in json.loads(line)["messages"]][-2:] == ["c", "seen too"]


EXPECTED: dict[str, list[float]] = {
    "session-balanced": [1 / 3, 1 / 6, 0, 1 / 12, 0],
    "session-per-token": [1 / 7, 1 / 7, 0, 1 / 7, 0],
    "per-chain": [1, 1 / 2, 0, 1 / 4, 0],
    "per-token": [1, 1, 0, 1, 0],
}


@pytest.mark.parametrize("scheme", EXPECTED)
async def test_arrays_and_rows_say_what_each_trained_token_counts(run: Path, scheme: Any) -> None:
    export_npz(run, run / "out.npz", weights=scheme)
    with np.load(run / "out.npz") as arrays:
        assert arrays["chain_weight"].tolist() == pytest.approx(EXPECTED[scheme])
        per_token = np.repeat(arrays["chain_weight"], np.diff(arrays["chain_offsets"])) * arrays["loss_mask"]
    if scheme.startswith("session"):
        assert per_token.sum() == pytest.approx(1)
    export_parquet(run, run / "out.parquet", weights=scheme)
    rows = pq.read_table(run / "out.parquet").to_pylist()
    assert [len(row["chain_weights"]) for row in rows] == [3, 1, 1]
    assert [weight for row in rows for weight in row["chain_weights"]] == pytest.approx(EXPECTED[scheme])


@pytest.mark.parametrize("export", [export_npz, export_parquet])
async def test_a_scheme_that_does_not_exist_writes_nothing(run: Path, export: Any) -> None:
    with pytest.raises(ConfigError, match="scheme must be one of"):
        export(run, run / "out", weights="even")
    assert not (run / "out").exists()
