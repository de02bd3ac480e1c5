"""What was exported comes back as it was: tokens bit for bit, texts but for lone surrogates."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from agentkit.errors import ConfigError, MissingExtraError
from agentkit.journal import Opaque
from agentkit.journal.codec import Codec
from agentkit.journal.export import export_jsonl, export_npz, export_parquet, parquet_schema
from agentkit.journal.opaque import unpack
from agentkit.protocols import (
    Action,
    Blame,
    Chain,
    ExitReason,
    Grade,
    GradeStatus,
    Message,
    Observation,
    Outcome,
    RolloutKey,
    Score,
    Span,
    SpanKind,
    Task,
    Trajectory,
    Turn,
    user,
)
from agentkit.testing.strategies import trajectories

Written = Callable[[Iterable[Trajectory]], Path]
EXPORTS = {"jsonl": export_jsonl, "npz": export_npz, "parquet": export_parquet}


def seen(text: str) -> str:
    """What is left of a text: the rule that the documentation states, spelt out."""
    return "".join("\ufffd" if 0xD800 <= ord(character) <= 0xDFFF else character for character in text)


def seen_all(tree: Any) -> Any:
    if isinstance(tree, str):
        return seen(tree)
    if isinstance(tree, dict):
        return {seen_all(key): seen_all(item) for key, item in tree.items()}
    return [seen_all(item) for item in tree] if isinstance(tree, list) else tree


def untagged(tree: Any) -> Any:
    """Free-form values as they were, from their JSON."""

    def floats(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"$float"}:
                return float(value["$float"])
            return {key: floats(item) for key, item in value.items()}
        return [floats(item) for item in value] if isinstance(value, list) else value

    return unpack(floats(tree))


def walk_json(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield line
    for child in line["children"]:
        yield from walk_json(child)


def said(trajectory: Trajectory) -> list[tuple[str, str]]:
    """Role and text of every message, by hand."""
    spoken = [(message.role, message.content) for message in trajectory.prompt]
    for turn in trajectory.turns:
        if turn.is_rewrite:
            spoken = []
        spoken += [(message.role, message.content) for message in turn.heard]
        spoken.append(("assistant", turn.action.content))
        spoken += [("user" if o.call_id is None else "tool", o.content) for o in turn.observations]
    return [(role, seen(text)) for role, text in spoken]


@given(trajectories())
def test_every_format_gives_back_what_went_in(written: Written, drawn: Trajectory) -> None:
    run = [drawn, turned(RolloutKey("another", 1000), tokens=4)]
    folder = written(run)
    for name, export in EXPORTS.items():
        done = export(folder, folder / f"out.{name}")
        assert (done.written, dict(done.left_out), done.unfinished) == (len(run), {}, 0)
    check_lines((folder / "out.jsonl").read_bytes().decode("utf-8"), run)
    with np.load(folder / "out.npz", allow_pickle=False) as arrays:
        check_arrays(dict(arrays), run)
    check_rows(pq.read_table(folder / "out.parquet"), run)


def check_lines(text: str, run: list[Trajectory]) -> None:
    lines = text.splitlines()  # splits at every line end that Unicode knows
    assert len(lines) == len(run)
    for line, trajectory in zip(lines, run, strict=True):
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", line), "nothing that drives a terminal"
        for found, each in zip(walk_json(json.loads(line)), trajectory.walk(), strict=True):
            check_json(found, each)


def check_json(found: dict[str, Any], each: Trajectory) -> None:
    assert found["version"] == 1
    assert found["key"] == {"task_id": seen(each.task_id), "index": each.key.index, "attempt": each.key.attempt}
    chains = tuple(
        Chain.of(
            chain["token_ids"],
            chain["response_mask"],
            chain["logprobs"],
            tuple(Span(**{**span, "kind": SpanKind(span["kind"])}) for span in chain["spans"]),
            chain["parent"] and tuple(chain["parent"]),
        )
        for chain in found["chains"]
    )
    assert chains == each.chains
    assert [(message["role"], message["content"]) for message in found["messages"]] == said(each)
    assert found["exit_reason"] == each.exit_reason
    assert found["blame"] == each.blame
    assert found["outcome"] == each.outcome
    assert found["error"] == (None if each.error is None else seen(each.error))
    assert found["timings"]["total_s"] == each.timings.total_s
    assert found["policy_versions"] == (each.policy_versions() and list(each.policy_versions() or ()))
    assert untagged(found["score"]) == each.score
    assert (found["grade"] is None) == (each.grade is None)
    if each.grade is not None and each.grade.score is not None:
        score = each.grade.score
        assert untagged(found["grade"]["turns"]) == (None if score.turns is None else list(score.turns))
        assert {int(c): tuple(untagged(v)) for c, v in found["grade"]["tokens"].items()} == (score.tokens or {})
    assert untagged(found["task"]["data"]) == untagged(seen_all(packed(each.task.data)))
    for turn, was in zip(found["turns"], each.turns, strict=True):
        assert (turn["text"], turn["chain"], turn["start"], turn["stop"]) == (
            seen(was.action.text),
            was.chain,
            was.start,
            was.stop,
        )
        assert [("status" in a, a["id"], a["name"]) for a in turn["attempts"]] == [
            (not hasattr(a, "arguments"), seen(a.id), None if a.name is None else seen(a.name))
            for a in was.action.attempts
        ]
        assert [o["status"] for o in turn["observations"]] == [o.status for o in was.observations]


def packed(data: Any) -> Any:
    """Free-form values as the journal's own JSON has them; escapes would join surrogates that stand side by side."""
    text = Codec().encode_task(Task("t", data=data))
    decoded = text if isinstance(text, str) else text.decode(errors="surrogatepass")
    return json.loads(decoded)["data"]


def check_arrays(a: dict[str, Any], run: list[Trajectory]) -> None:
    rows = [(each, root) for root in run for each in root.walk()]
    assert a["schema_version"] == 1
    assert a["token_ids"].dtype == np.int32
    assert a["response_mask"].dtype == np.uint8
    assert a["loss_mask"].dtype == np.uint8
    assert a["logprobs"].dtype == np.float32
    assert len(a["score"]) == len(rows)
    places = {id(each): row for row, (each, _) in enumerate(rows)}
    parents = {id(child): places[id(each)] for each, _ in rows for child in each.children}
    ids = a["group_ids"].tobytes()
    names = [
        ids[start:stop].decode()
        for start, stop in zip(a["group_id_offsets"][:-1], a["group_id_offsets"][1:], strict=True)
    ]
    chain = 0
    for row, (each, _) in enumerate(rows):
        assert names[a["rollout_group"][row]] == seen(each.task_id)
        assert (a["rollout_index"][row], a["rollout_attempt"][row]) == (each.key.index, each.key.attempt)
        assert a["rollout_parent"][row] == parents.get(id(each), -1)
        expected = float("nan") if each.score is None else each.score
        assert np.array_equal(a["score"][row], expected, equal_nan=True)
        assert a["exit_reason_names"][a["exit_reason"][row]] == each.exit_reason
        assert (a["blame"][row] == -1) == (each.blame is None)
        assert each.blame is None or a["blame_names"][a["blame"][row]] == each.blame
        assert a["outcome_names"][a["outcome"][row]] == each.outcome
        assert (a["policy_version_min"][row], a["policy_version_max"][row]) == (each.policy_versions() or (-1, -1))
        assert a["seconds"][row, 5] == each.timings.total_s
        score = None if each.grade is None else each.grade.score
        parts = a["turn_rewards"][slice(*a["turn_reward_offsets"][row : row + 2])]
        assert tuple(parts) == ((score.turns if score else None) or ())
        for number, was in enumerate(each.chains):
            place = slice(*a["chain_offsets"][chain : chain + 2])
            assert a["token_ids"][place].tobytes() == was.id_bytes
            assert a["response_mask"][place].tobytes() == was.mask_bytes
            assert a["logprobs"][place].tobytes() == was.logprob_bytes
            assert a["loss_mask"][place].tobytes() == each.loss_mask(number)
            assert a["chain_rollout"][chain] == row
            spans = slice(*a["span_offsets"][chain : chain + 2])
            assert tuple(a["span_start"][spans]) == tuple(span.start for span in was.spans)
            assert tuple(a["span_stop"][spans]) == tuple(span.stop for span in was.spans)
            assert [a["span_kind_names"][kind] for kind in a["span_kind"][spans]] == [span.kind for span in was.spans]
            versions = [-1 if span.policy_version is None else span.policy_version for span in was.spans]
            assert a["span_version"][spans].tolist() == versions
            chain += 1
    assert len(a["chain_offsets"]) == chain + 1


def check_rows(table: pa.Table, run: list[Trajectory]) -> None:
    assert table.schema.equals(parquet_schema())
    assert table.schema.metadata[b"agentkit.schema_version"] == b"1"
    flat = [each for root in run for each in root.walk()]
    rows = table.to_pylist()
    assert [row["row"] for row in rows] == list(range(len(flat)))
    assert [row["depth"] for row in rows if row["parent"] is None] == [0] * len(run)
    for row, each in zip(rows, flat, strict=True):
        assert row["parent"] is None or any(each is child for child in flat[row["parent"]].children)
        assert (row["task_id"], row["index"], row["attempt"]) == (seen(each.task_id), each.key.index, each.key.attempt)
        assert (row["exit_reason"], row["outcome"], row["score"]) == (each.exit_reason, each.outcome, each.score)
        assert [(message["role"], message["content"]) for message in row["messages"]] == said(each)
        chains = tuple(
            Chain.of(ids, mask, logprobs, tuple(Span(**{**span, "kind": SpanKind(span["kind"])}) for span in spans))
            for ids, mask, logprobs, spans in zip(
                row["token_ids"], row["response_mask"], row["logprobs"], row["spans"], strict=True
            )
        )
        assert chains == each.chains
        assert row["sampled_tokens"] == sum(sum(chain.mask_bytes) for chain in each.chains)
        assert untagged(json.loads(row["task_data"])) == untagged(seen_all(packed(each.task.data)))


def turned(key: RolloutKey, *, tokens: int, **more: Any) -> Trajectory:
    chain = Chain.of(
        range(tokens),
        [0] * 2 + [1] * (tokens - 2),
        [0.0] * 2 + [-0.1] * (tokens - 2),
        (Span(0, 2, SpanKind.PROMPT), Span(2, tokens, SpanKind.SAMPLED, 0, 3)),
    )
    action = Action("\x1b]0;owned\x07<|im_end|>\x00 \ud800 \u2028 done", "\x00<|im_end|>\ud800\u2028")
    turn = Turn(0, action, (Observation("\x1b[2J" + "x" * 100),), 0, 2, tokens)
    return Trajectory(key, (user("do \u202eit"),), (chain,), (turn,), ExitReason.FINISHED, **more)


def test_token_rewards_stand_at_their_tokens(written: Written) -> None:
    score = Score(1.0, tokens={0: (0.0, 0.0, 0.5, 0.25)})
    rewarded = turned(RolloutKey("b", 0), tokens=4, grade=Grade(GradeStatus.OK, score))
    folder = written([turned(RolloutKey("a", 0), tokens=3), rewarded, turned(RolloutKey("c", 0), tokens=5)])
    export_npz(folder, folder / "out.npz")
    with np.load(folder / "out.npz") as arrays:
        assert arrays["token_rewards"].tolist() == [0, 0, 0, 0, 0, 0.5, 0.25, 0, 0, 0, 0, 0]
    folder = written([turned(RolloutKey("a", 0), tokens=3)])
    export_npz(folder, folder / "out.npz")
    with np.load(folder / "out.npz") as arrays:
        assert "token_rewards" not in arrays


def test_what_is_not_to_be_trained_on_has_no_loss(written: Written) -> None:
    folder = written([turned(RolloutKey("a", 0), tokens=4, outcome=Outcome.MASK, blame=Blame.POLICY)])
    export_npz(folder, folder / "out.npz")
    with np.load(folder / "out.npz") as arrays:
        assert arrays["loss_mask"].tolist() == [0, 0, 0, 0]
        assert arrays["response_mask"].tolist() == [0, 0, 1, 1]


def test_hostile_text_opens_in_arrow(written: Written) -> None:
    folder = written([turned(RolloutKey("a\ud800", 0), tokens=3)])
    export_jsonl(folder, folder / "out.jsonl")
    table = pa.json.read_json(folder / "out.jsonl")
    assert table["turns"][0][0]["text"].as_py() == "\x1b]0;owned\x07<|im_end|>\x00 \ufffd \u2028 done"
    assert table["key"][0]["task_id"].as_py() == "a\ufffd"


def test_a_huge_trajectory_and_values_beyond_json(written: Written) -> None:
    data = {"inf": float("inf"), "nan": float("nan"), "big": 10**6000, "raw": b"\xff", 3: "three", "own": object()}
    long = Message("user", "x" * 3_000_000)
    folder = written([turned(RolloutKey("a", 0), tokens=200_000, task=Task("a", (long,), data))])
    for name, export in EXPORTS.items():
        export(folder, folder / f"out.{name}")
    line = json.loads((folder / "out.jsonl").read_text())
    found = untagged(line["task"]["data"])
    assert found["inf"] == float("inf")
    assert found["nan"] != found["nan"]
    assert (found["big"], found["raw"], found[3]) == (10**6000, b"\xff", "three")
    assert isinstance(found["own"], Opaque)
    assert line["task"]["messages"][0]["content"] == long.content
    assert line["chains"][0]["token_ids"] == list(range(200_000))
    (row,) = pq.read_table(folder / "out.parquet").to_pylist()
    assert row["token_ids"] == [list(range(200_000))]


def test_row_groups_are_bounded(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.journal.export.parquet._GROUP_BYTES", 20_000)
    folder = written(turned(RolloutKey(f"t{n}", 0), tokens=800) for n in range(8))
    export_parquet(folder, folder / "out.parquet")
    file = pq.ParquetFile(folder / "out.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [3, 3, 2]


@pytest.mark.parametrize("name", EXPORTS)
def test_nothing_is_overwritten_or_left_half_written(
    name: str, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, out = EXPORTS[name], tmp_path / "out"
    folder = written([turned(RolloutKey("a", 0), tokens=3)])
    out.write_text("precious")
    with pytest.raises(ConfigError, match="exists: name another file, or replace it with --force"):
        export(folder, out)
    assert out.read_text() == "precious"

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patched:
        patched.setattr(Trajectory, "policy_versions", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            export(folder, out, force=True)
    assert out.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing else is left"
    assert export(folder, out, force=True).written == 1
    assert out.read_bytes() != b"precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("export", "module"), [(export_npz, "numpy"), (export_parquet, "pyarrow")])
def test_a_missing_package_is_named_before_anything_is_written(
    export: Any, module: str, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written([])
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"needs '{module}'.*agentkit-rl\[(npz|parquet)\]"):
        export(folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["", "nowhere/out"])
def test_a_place_that_cannot_be_written_is_one_clear_error(out: str, written: Written, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        export_jsonl(written([]), tmp_path / out, force=True)
