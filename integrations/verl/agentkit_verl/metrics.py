"""What a batch of rollouts says in verl's log, as one flat mapping of names to numbers under `agent/`.

A rollout may have several rows; everything about rollouts (scores, turns, exit reasons, seconds, counts, versions)
counts it once, everything about rows (lengths, padding) counts rows. Rows that verl pads a batch with are counted as
padding and nowhere else. Names that a step has nothing to say about are absent; shares of a fixed set of values
(exit reasons, blames, outcomes) are always all there, so that a curve does not stop where it should read zero.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from agentkit.protocols import Blame, ExitReason, GradeStatus
from agentkit_verl.rows import RowInfo

PREFIX: Final = "agent/"
SECONDS: Final = ("queued", "setup", "generation", "tool", "interaction", "reward", "total", "synced")
COUNTS: Final = ("tool_calls", "tool_errors", "tool_timeouts", "format_errors", "attempts", "replaced")
OUTCOMES: Final = ("train", "mask", "drop")


@frozen
class TurnGap:
    """How far the log-probabilities of one action's tokens, as sampled, are from those that the trainer computes.

    `total` and `highest` are over the absolute differences of its `tokens`, in nats.
    """

    turn: int
    tokens: int
    total: float
    highest: float


@frozen(kw_only=True)
class LoggedRow:
    """One row as the log sees it. `session` names its rollout; `info` is None for rows that verl pads a batch with."""

    session: str
    info: RowInfo | None
    prompt_tokens: int
    response_tokens: int
    gaps: tuple[TurnGap, ...] = ()


def agent_metrics(
    rows: Sequence[LoggedRow], *, version: int | None = None, expected_sessions: int | None = None
) -> dict[str, float]:
    """The numbers of one training step.

    `version` is that of the weights which the step set out from; without it there is no staleness. Of
    `expected_sessions` rollouts those without any row, the dropped ones, are missing.
    """
    sessions: dict[str, list[RowInfo]] = {}
    for row in rows:
        if row.info is not None:
            sessions.setdefault(row.session, []).append(row.info)
    firsts = [infos[0] for infos in sessions.values()]
    found = {"sessions/count": float(len(firsts)), **_of_rows(rows), **_of_gaps(rows)}
    if expected_sessions is not None:
        found["sessions/missing"] = float(max(0, expected_sessions - len(firsts)))
    if firsts:
        found |= _of_scores(firsts) | _of_ends(firsts) | _of_costs(firsts)
        found |= _of_versions(list(sessions.values()), version)
    return {PREFIX + name: value for name, value in found.items()}


def log_name(text: str) -> str:
    """`text` as a part of a metric's name: what a data set calls itself may hold anything."""
    return re.sub(r"[^\w.@-]+", "_", text, flags=re.ASCII)[:80] or "unknown"


def _of_scores(sessions: Sequence[RowInfo]) -> dict[str, float]:
    by_source: dict[str, list[RowInfo]] = {}
    for info in sessions:
        by_source.setdefault(log_name(info.data_source), []).append(info)
    found = _scores_of(sessions, "score/")
    for source, infos in by_source.items():
        found |= _scores_of(infos, f"source/{source}/")
        found[f"source/{source}/sessions"] = float(len(infos))
    return found


def _scores_of(sessions: Sequence[RowInfo], prefix: str) -> dict[str, float]:
    scores = [score for info in sessions if (score := _score_of(info)) is not None]
    found = {f"{prefix}ungraded": 1 - len(scores) / len(sessions)}
    if scores:
        found[f"{prefix}mean"] = _mean(scores)
        found[f"{prefix}positive"] = _share(scores, lambda score: score > 0)
    return found


def _score_of(info: RowInfo) -> float | None:
    """The score if the reward stands behind it; a grader's failure is not a zero."""
    if info.score is None or not math.isfinite(info.score) or info.grade not in (None, GradeStatus.OK):
        return None
    return info.score


def _of_ends(sessions: Sequence[RowInfo]) -> dict[str, float]:
    def shares(name: str, known: Iterable[str], values: Sequence[str]) -> dict[str, float]:
        names = [log_name(value) for value in values]
        return {f"{name}/{each}": names.count(each) / len(names) for each in dict.fromkeys([*known, *names])}

    return {
        **shares("exit", ExitReason, [info.exit_reason for info in sessions]),
        **shares("blame", [*Blame, "none"], [info.blame or "none" for info in sessions]),
        **shares("outcome", OUTCOMES, [info.outcome for info in sessions]),
    }


def _of_costs(sessions: Sequence[RowInfo]) -> dict[str, float]:
    turns = [float(info.counts.get("turns", 0)) for info in sessions]
    found = {"turns/mean": _mean(turns), "turns/max": max(turns)}
    for name in SECONDS:
        spent = sorted(_seconds(info.seconds, name) for info in sessions)
        found[f"seconds/{name}/mean"] = _mean(spent)
        found[f"seconds/{name}/p95"] = spent[math.ceil(0.95 * len(spent)) - 1]
        found[f"seconds/{name}/max"] = spent[-1]
    for name in COUNTS:
        found[f"{name}/mean"] = _mean([info.counts.get(name, 0) for info in sessions])
    calls = sum(info.counts.get("tool_calls", 0) for info in sessions)
    if calls:
        found["tool_errors/share"] = sum(info.counts.get("tool_errors", 0) for info in sessions) / calls
    chains = [float(info.chains) for info in sessions]
    return found | {"chains/mean": _mean(chains), "chains/max": max(chains)} | _of_tokens(sessions)


def _of_tokens(sessions: Sequence[RowInfo]) -> dict[str, float]:
    sampled = [info.counts.get("sampled", 0) for info in sessions]
    masked = [max(0, info.counts.get("sampled", 0) - info.counts.get("trained", 0)) for info in sessions]
    cut = [info.counts.get("cut", 0) for info in sessions]
    found = {
        "tokens/sampled/mean": _mean(sampled),
        "tokens/masked/mean": _mean(masked),
        "tokens/cut/mean": _mean(cut),
        "tokens/cut/sessions": _share(cut, lambda tokens: tokens > 0),
    }
    if total := sum(sampled):
        found["tokens/masked/share"] = sum(masked) / total
    return found


def _seconds(seconds: Mapping[str, float], name: str) -> float:
    if name == "interaction":
        return seconds.get("generation", 0.0) + seconds.get("tool", 0.0)
    return seconds.get(name, 0.0)


def _of_versions(sessions: Sequence[Sequence[RowInfo]], current: int | None) -> dict[str, float]:
    versions = [{span.version for info in infos for span in info.versions} for infos in sessions]
    versions = [found for found in versions if found]
    if not versions:
        return {}
    counts = [float(len(found)) for found in versions]
    spreads = [float(max(found) - min(found)) for found in versions]
    metrics = {
        "versions/mean": _mean(counts),
        "versions/max": max(counts),
        "versions/spread/mean": _mean(spreads),
        "versions/spread/max": max(spreads),
    }
    if current is not None:
        staleness = [float(current - min(found)) for found in versions]
        metrics |= {"staleness/mean": _mean(staleness), "staleness/max": max(staleness)}
    return metrics


def _of_rows(rows: Sequence[LoggedRow]) -> dict[str, float]:
    if not rows:
        return {"rows/count": 0.0}
    ours = [row.prompt_tokens + row.response_tokens for row in rows if row.info is not None]
    found = {"rows/count": float(len(ours)), "rows/synthetic": 1 - len(ours) / len(rows)}
    if ours and (longest := max(ours)):
        # as if prompts were padded to the longest prompt on the left and responses on the right, which is what
        # verl does to the tensors that the trainer computes advantages and metrics with
        width = max(row.prompt_tokens for row in rows) + max(row.response_tokens for row in rows)
        held = sum(row.prompt_tokens + row.response_tokens for row in rows)
        found |= {
            "rows/tokens/mean": _mean(ours),
            "rows/tokens/max": float(longest),
            "rows/tokens/max_over_mean": longest / _mean(ours),
            "rows/padding": 1 - held / (width * len(rows)),
        }
    return found


def _of_gaps(rows: Sequence[LoggedRow]) -> dict[str, float]:
    by_depth: dict[str, list[TurnGap]] = {}
    gaps = [gap for row in rows if row.info is not None for gap in row.gaps if gap.tokens]
    if not gaps:
        return {}
    for gap in gaps:
        by_depth.setdefault(_depth(gap.turn), []).append(gap)
    found = {"logprob_gap/mean": _gap_mean(gaps), "logprob_gap/max": max(gap.highest for gap in gaps)}
    return found | {f"logprob_gap/{depth}": _gap_mean(those) for depth, those in by_depth.items()}


def _depth(turn: int) -> str:
    """The bucket of a turn, each twice as wide as the one before: a gap that grows with depth shows."""
    if turn < 2:
        return f"turn_{turn}"
    low = 1 << (turn.bit_length() - 1)
    return "turns_64_on" if low >= 64 else f"turns_{low}_{2 * low - 1}"


def _gap_mean(gaps: Sequence[TurnGap]) -> float:
    return math.fsum(gap.total for gap in gaps) / sum(gap.tokens for gap in gaps)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _share(values: Sequence[float], holds: Callable[[float], bool]) -> float:
    return sum(map(holds, values)) / len(values)
