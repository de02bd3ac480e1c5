"""The numbers in verl's log, against an oracle that counts one rollout after the other."""

import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from agentkit_verl.metrics import COUNTS, PREFIX, SECONDS, LoggedRow, TurnGap, agent_metrics, log_name
from agentkit_verl.rows import RowInfo, VersionSpan
from hypothesis import given
from hypothesis import strategies as st

from agentkit.protocols import Blame, ExitReason, GradeStatus

REASONS = [str(reason) for reason in ExitReason]
seconds = st.dictionaries(
    st.sampled_from([name for name in SECONDS if name != "interaction"]), st.floats(0, 1e6, allow_subnormal=False)
)
counts = st.fixed_dictionaries(
    {}, optional={name: st.integers(0, 50) for name in (*COUNTS, "turns", "sampled", "trained", "cut")}
)
gaps = st.lists(
    st.builds(TurnGap, st.integers(0, 200), st.integers(0, 9), st.floats(0, 9), st.floats(0, 9)), max_size=3
)


@st.composite
def sessions(draw: st.DrawFn) -> list[LoggedRow]:
    """The rows of one rollout, each with what is said of the whole rollout."""
    chains = draw(st.integers(1, 3))
    name = draw(st.uuids()).hex
    whole: dict[str, Any] = {
        "task_id": name,
        "session": draw(st.integers(0, 7)),
        "chains": chains,
        "data_source": draw(st.sampled_from(["maths", "openai/gsm8k", "\x1b[31mred"])),
        "exit_reason": draw(st.sampled_from([*REASONS, "of a later release"])),
        "blame": draw(st.none() | st.sampled_from([str(blame) for blame in Blame])),
        "outcome": draw(st.sampled_from(["train", "mask", "drop"])),
        "score": draw(st.none() | st.floats(-2, 2) | st.just(math.nan)),
        "grade": draw(st.none() | st.sampled_from([str(status) for status in GradeStatus])),
        "seconds": draw(seconds),
        "counts": draw(counts),
    }
    rows = []
    for chain in range(chains):
        versions = draw(st.lists(st.builds(VersionSpan, st.just(0), st.just(1), st.integers(0, 9)), max_size=3))
        rows.append(
            LoggedRow(
                session=name,
                info=RowInfo(chain=chain, versions=tuple(versions), **whole),
                prompt_tokens=draw(st.integers(0, 40)),
                response_tokens=draw(st.integers(0, 40)),
                gaps=tuple(draw(gaps)),
            )
        )
    return rows


padding = st.builds(
    LoggedRow,
    session=st.uuids().map(str),
    info=st.none(),
    prompt_tokens=st.integers(0, 128),
    response_tokens=st.integers(0, 1),
    gaps=st.just((TurnGap(0, 1, 99.0, 99.0),)),
)


@st.composite
def batches(draw: st.DrawFn) -> list[LoggedRow]:
    rows = [row for those in draw(st.lists(sessions(), max_size=5)) for row in those]
    return draw(st.permutations(rows + draw(st.lists(padding, max_size=3))))


def oracle(rows: list[LoggedRow], version: int, expected: int) -> dict[str, float]:
    seen: dict[str, LoggedRow] = {}
    for row in rows:
        if row.info is not None:
            seen.setdefault(row.session, row)
    infos = [row.info for row in seen.values() if row.info is not None]
    found: dict[str, float] = {"sessions/count": len(infos), "sessions/missing": max(0, expected - len(infos))}
    ours = [row for row in rows if row.info is not None]
    lengths = [row.prompt_tokens + row.response_tokens for row in ours]
    found["rows/count"] = len(ours)
    if rows:
        found["rows/synthetic"] = (len(rows) - len(ours)) / len(rows)
    if lengths and max(lengths):
        cells = len(rows) * (max(row.prompt_tokens for row in rows) + max(row.response_tokens for row in rows))
        found["rows/padding"] = (cells - sum(row.prompt_tokens + row.response_tokens for row in rows)) / cells
        found["rows/tokens/mean"] = statistics.fmean(lengths)
        found["rows/tokens/max"] = max(lengths)
        found["rows/tokens/max_over_mean"] = max(lengths) / statistics.fmean(lengths)

    buckets = {0: "turn_0", 1: "turn_1"} | dict.fromkeys(range(64, 201), "turns_64_on")
    for low in (2, 4, 8, 16, 32):
        buckets |= dict.fromkeys(range(low, 2 * low), f"turns_{low}_{2 * low - 1}")
    every = [gap for row in ours for gap in row.gaps if gap.tokens]
    if every:
        found["logprob_gap/mean"] = sum(gap.total for gap in every) / sum(gap.tokens for gap in every)
        found["logprob_gap/max"] = max(gap.highest for gap in every)
    for bucket in {buckets[gap.turn] for gap in every}:
        those = [gap for gap in every if buckets[gap.turn] == bucket]
        found[f"logprob_gap/{bucket}"] = sum(gap.total for gap in those) / sum(gap.tokens for gap in those)
    if not infos:
        return found

    sources = {"maths": "maths", "openai/gsm8k": "openai_gsm8k", "\x1b[31mred": "_31mred"}
    for prefix, members in [
        ("score", infos),
        *((f"source/{name}", [i for i in infos if i.data_source == source]) for source, name in sources.items()),
    ]:
        if not members:
            continue
        good = [i.score for i in members if i.score is not None and i.score == i.score and i.grade in (None, "ok")]
        found[f"{prefix}/ungraded"] = (len(members) - len(good)) / len(members)
        if good:
            found[f"{prefix}/mean"] = sum(good) / len(good)
            found[f"{prefix}/positive"] = sum(1 for score in good if score > 0) / len(good)
        if prefix != "score":
            found[f"{prefix}/sessions"] = len(members)

    n = len(infos)
    for reason in REASONS:
        found[f"exit/{reason}"] = sum(i.exit_reason == reason for i in infos) / n
    if any(i.exit_reason == "of a later release" for i in infos):
        found["exit/of_a_later_release"] = sum(i.exit_reason == "of a later release" for i in infos) / n
    for blame in [*map(str, Blame), None]:
        found[f"blame/{blame or 'none'}"] = sum(i.blame == blame for i in infos) / n
    for outcome in ("train", "mask", "drop"):
        found[f"outcome/{outcome}"] = sum(i.outcome == outcome for i in infos) / n
    for name in SECONDS:
        parts = ("generation", "tool") if name == "interaction" else (name,)
        spent = sorted(sum(i.seconds.get(part, 0.0) for part in parts) for i in infos)
        found[f"seconds/{name}/mean"] = statistics.fmean(spent)
        found[f"seconds/{name}/max"] = spent[-1]
        # the smallest value that at least 95 of 100 are not above
        found[f"seconds/{name}/p95"] = min(x for x in spent if 100 * sum(y <= x for y in spent) >= 95 * n)
    for name in COUNTS:
        found[f"{name}/mean"] = sum(i.counts.get(name, 0) for i in infos) / n
    if calls := sum(i.counts.get("tool_calls", 0) for i in infos):
        found["tool_errors/share"] = sum(i.counts.get("tool_errors", 0) for i in infos) / calls
    found["turns/mean"] = sum(i.counts.get("turns", 0) for i in infos) / n
    found["turns/max"] = max(i.counts.get("turns", 0) for i in infos)
    found["chains/mean"] = sum(i.chains for i in infos) / n
    found["chains/max"] = max(i.chains for i in infos)
    lost = [max(0, i.counts.get("sampled", 0) - i.counts.get("trained", 0)) for i in infos]
    found["tokens/masked/mean"] = sum(lost) / n
    found["tokens/sampled/mean"] = sum(i.counts.get("sampled", 0) for i in infos) / n
    found["tokens/cut/mean"] = sum(i.counts.get("cut", 0) for i in infos) / n
    found["tokens/cut/sessions"] = sum(i.counts.get("cut", 0) > 0 for i in infos) / n
    if sampled := sum(i.counts.get("sampled", 0) for i in infos):
        found["tokens/masked/share"] = sum(lost) / sampled

    spans = []
    for name in seen:
        versions = {s.version for row in ours if row.session == name and row.info for s in row.info.versions}
        if versions:
            spans.append((len(versions), max(versions) - min(versions), version - min(versions)))
    if spans:
        for index, name in enumerate(["versions", "versions/spread", "staleness"]):
            found[f"{name}/mean"] = sum(span[index] for span in spans) / len(spans)
            found[f"{name}/max"] = max(span[index] for span in spans)
    return found


@given(batches(), st.integers(0, 9), st.integers(0, 9))
def test_equals_counting_one_by_one(rows: list[LoggedRow], version: int, expected: int) -> None:
    found = agent_metrics(rows, version=version, expected_sessions=expected)
    wanted = {PREFIX + name: float(value) for name, value in oracle(rows, version, expected).items()}
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    assert all(type(value) is float and math.isfinite(value) for value in found.values())


@given(sessions(), st.integers(1, 4))
def test_more_chains_change_nothing_that_is_said_of_rollouts(rows: list[LoggedRow], more: int) -> None:
    of_rows = ("agent/rows/", "agent/logprob_gap/")
    once = agent_metrics(rows, version=9)
    again = agent_metrics(rows * more, version=9)
    assert {k: v for k, v in once.items() if not k.startswith(of_rows)} == {
        k: v for k, v in again.items() if not k.startswith(of_rows)
    }


def test_nothing_to_say_of_nothing() -> None:
    assert agent_metrics([]) == {"agent/sessions/count": 0.0, "agent/rows/count": 0.0}
    padded = LoggedRow(session="pad", info=None, prompt_tokens=127, response_tokens=1)
    assert agent_metrics([padded], expected_sessions=4) == {
        "agent/sessions/count": 0.0,
        "agent/sessions/missing": 4.0,
        "agent/rows/count": 0.0,
        "agent/rows/synthetic": 1.0,
    }


def test_without_a_version_there_is_no_staleness() -> None:
    info = RowInfo(task_id="t", session=0, versions=(VersionSpan(0, 2, 3), VersionSpan(2, 4, 5)))
    row = LoggedRow(session="s", info=info, prompt_tokens=1, response_tokens=4)
    assert "agent/staleness/max" not in agent_metrics([row])
    assert agent_metrics([row])["agent/versions/spread/max"] == 2
    assert agent_metrics([row], version=6)["agent/staleness/max"] == 3


@given(st.text())
def test_a_name_in_the_log_is_one_plain_word(text: str) -> None:
    name = log_name(text)
    assert 0 < len(name) <= 80
    assert all(c.isascii() and (c.isalnum() or c in "_.@-") for c in name)
    assert log_name(name) == name


@pytest.mark.parametrize("grade", ["error", "timeout", "skipped"])
def test_a_fault_of_the_grader_is_no_score(grade: str) -> None:
    infos = [
        RowInfo(task_id="t", session=0, score=1.0, grade="ok"),
        RowInfo(task_id="t", session=1, score=0.0, grade=grade),
    ]
    rows = [LoggedRow(session=str(i.session), info=i, prompt_tokens=1, response_tokens=1) for i in infos]
    found = agent_metrics(rows)
    assert (found["agent/score/mean"], found["agent/score/ungraded"]) == (1.0, 0.5)


PAGE = Path(__file__).parents[3] / "docs" / "howto" / "verl-metrics.md"
OF_THE_TRAINER = {"agent/updates_skipped", "agent/mini_batches_skipped"}


def test_the_page_lists_each_name_and_no_other() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## All of them")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(agent/[^`]+)`", table, re.MULTILINE)
    assert len(listed) == len(set(listed))
    # the most general last: a name that is listed as it is belongs to that line
    patterns = {
        name: re.compile(re.sub("<.*?>", "[^/]+", re.escape(name)))
        for name in sorted(listed, key=lambda name: "<" in name)
    }
    info = RowInfo(
        task_id="t",
        session=0,
        score=1.0,
        counts={"tool_calls": 1, "sampled": 1},
        versions=(VersionSpan(0, 1, 1),),
    )
    gaps = tuple(TurnGap(turn, 1, 0.1, 0.1) for turn in range(70))
    row = LoggedRow(session="s", info=info, prompt_tokens=1, response_tokens=1, gaps=gaps)
    emitted = set(agent_metrics([row], version=2, expected_sessions=2)) | OF_THE_TRAINER
    found = {name: next((each for each, p in patterns.items() if p.fullmatch(name)), None) for name in emitted}
    assert [name for name, each in found.items() if each is None] == []
    assert set(listed) - set(found.values()) == set()
