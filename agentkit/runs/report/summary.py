"""From the facts of a run to its report: pure, deterministic for a seed.

What enters the rates: every rollout that the run is to have, once. A rollout is solved if it has a score of at least
the threshold. A failed, ungraded, cancelled, unfinished or missing one is not solved, and stays in the denominator.
Attempts that were retried are beneath their rollout and do not count apart. A rollout that was replaced gave its place
to its replacement, which counts in its stead; one that should have been replaced and was not counts itself.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import define, field

from agentkit.protocols import GradeStatus, Outcome
from agentkit.runs.report.facts import Facts, RolloutFacts, read_facts
from agentkit.runs.report.stats import TaskBootstrap, histogram, pass_at_k, powers_up_to, quantile
from agentkit.runs.report.values import Coverage, Ending, Groups, Notable, PassAtK, Report, Spread, Stage, Tool

_NOTABLE = 5
_FEW_TASKS = 10


@define
class _Task:
    """The rollouts of one task that count; `size` is how many there ought to be."""

    size: int = 0
    solved: int = 0
    graded: int = 0
    score: float = 0.0
    trained: list[float] = field(factory=list)


def report(run: "str | os.PathLike[str]", *, success: float = 1.0, seed: int = 0, level: float = 0.95) -> Report:
    """The report on `run`, a folder or a journal; blocks, memory grows by some hundred bytes a rollout.

    `success` is the score from which a rollout is solved; `seed` is that of the bootstrap, `level` the confidence.

    Raises:
        ConfigError: `run.json` is damaged.
        JournalError: the journal cannot be read.
    """
    return summarise(read_facts(run), success=success, seed=seed, level=level)


def summarise(facts: Facts, *, success: float = 1.0, seed: int = 0, level: float = 0.95) -> Report:
    """The report on what was read of a run."""
    counted, replaced = _counted(facts.rollouts)
    coverage, tasks = _tasks(facts, counted, replaced, success)
    draws = TaskBootstrap(len(tasks), seed=seed, level=level)
    solved, graded = [each.solved for each in tasks], [each.graded for each in tasks]
    scores = [each.score for each in counted if each.score is not None]
    return Report(
        path=str(facts.path),
        name=None if facts.info is None else facts.info.name,
        threshold=success,
        level=level,
        seed=seed,
        coverage=coverage,
        solved=sum(solved),
        success=draws.mean(solved, [each.size for each in tasks], is_rate=True),
        graded=sum(graded),
        graded_success=draws.mean(solved, graded, is_rate=True),
        score=draws.mean([each.score for each in tasks], graded, is_rate=False),
        scores=histogram(scores) if scores else None,
        pass_at=tuple(_pass_at(tasks, draws)),
        endings=_endings(facts.rollouts, success),
        grades=_mix(each.grade or "no reward" for each in facts.rollouts),
        outcomes=_mix(each.outcome.value for each in facts.rollouts),
        stages=_stages(facts.rollouts),
        seconds=_spread([each.total_s for each in facts.rollouts]),
        turns=_spread([each.turns for each in facts.rollouts]),
        tokens=_spread([each.tokens for each in facts.rollouts]),
        sampled=(sampled := sum(each.sampled for each in facts.rollouts)),
        sampled_per_generation_s=_ratio(sampled, math.fsum(each.sampling_s for each in facts.rollouts)),
        sampled_per_wall_s=_ratio(sampled, facts.wall_s or 0.0),
        wall_s=facts.wall_s,
        format_error_turns=sum(each.format_error_turns for each in facts.rollouts),
        cut_turns=sum(each.cut_turns for each in facts.rollouts),
        faults=_sorted(facts.faults),
        tools=tuple(
            Tool(name, use.calls, use.errors, use.timeouts, use.skipped)
            for name, use in sorted(facts.tools.items(), key=lambda item: (-item[1].calls, item[0]))
        ),
        retried=sum(each.retries > 0 for each in facts.rollouts),
        given_up=_sorted(facts.given_up),
        stuck=_sorted(facts.stuck),
        errors=_sorted(facts.errors),
        groups=_groups(tasks, success),
        slowest=_notable(facts.rollouts, lambda each: each.total_s),
        longest=_notable(facts.rollouts, lambda each: each.tokens),
        notes=tuple(_notes(coverage, tasks, facts)),
    )


def is_solved(rollout: RolloutFacts, success: float) -> bool:
    """Whether a rollout has a score of at least `success`."""
    return rollout.score is not None and rollout.score >= success


def _counted(rollouts: Sequence[RolloutFacts]) -> tuple[list[RolloutFacts], int]:
    """The rollouts that count, and how many gave their place to another."""
    gone = {(each.key.task_id, each.replaces) for each in rollouts if each.replaces is not None}
    counted = [each for each in rollouts if (each.key.task_id, each.key.index) not in gone]
    return counted, len(rollouts) - len(counted)


def _tasks(
    facts: Facts, counted: Sequence[RolloutFacts], replaced: int, success: float
) -> tuple[Coverage, list[_Task]]:
    info = facts.info
    tasks: dict[str, _Task] = {}
    for each in counted:
        task = tasks.setdefault(each.key.task_id, _Task())
        task.size += 1
        task.solved += is_solved(each, success)
        if each.grade == GradeStatus.OK and each.score is not None:
            task.graded += 1
            task.score += each.score
            if each.outcome in (Outcome.TRAIN, Outcome.MASK):  # what is dropped is out of the group's baseline
                task.trained.append(each.score)
    sealed = {(each.key.task_id, each.key.index) for each in facts.rollouts}
    unfinished = [key for key in facts.unfinished if (key.task_id, key.index) not in sealed]
    group_size = max((each.size for each in tasks.values()), default=1) if info is None else info.group_size
    for key in unfinished:
        task = tasks.setdefault(key.task_id, _Task())
        if info is None or task.size < group_size:  # a replacement under way stands for a rollout that counts already
            task.size += 1
    begun = sum(each.size for each in tasks.values())
    if info is not None:
        for task in tasks.values():
            task.size = max(task.size, info.group_size)
        absent = 0 if info.tasks is None else max(0, info.tasks - len(tasks))
        everything = [*tasks.values(), *(_Task(info.group_size) for _ in range(absent))]
    else:
        everything = list(tasks.values())
    expected = sum(each.size for each in everything)
    return (
        Coverage(
            tasks=len(everything),
            group_size=max(group_size, max((each.size for each in everything), default=1)),
            expected=expected,
            sealed=len(facts.rollouts),
            unfinished=len(unfinished),
            missing=expected - begun,
            replaced=replaced,
            is_known=info is not None and info.tasks is not None,
        ),
        everything,
    )


def _pass_at(tasks: Sequence[_Task], draws: TaskBootstrap) -> Iterable[PassAtK]:
    for k in powers_up_to(max((each.size for each in tasks), default=0)):
        has = [float(each.size >= k) for each in tasks]
        values = [pass_at_k(each.size, each.solved, k) if each.size >= k else 0.0 for each in tasks]
        estimate = draws.mean(values, has, is_rate=True)
        if estimate is not None:
            yield PassAtK(k, int(sum(has)), estimate)


def _endings(rollouts: Sequence[RolloutFacts], success: float) -> tuple[Ending, ...]:
    counts, solved = Counter[tuple[str, str | None]](), Counter[tuple[str, str | None]]()
    for each in rollouts:
        kind = (each.exit_reason.value, each.blame)
        counts[kind] += 1
        solved[kind] += is_solved(each, success)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0][0], item[0][1] or ""))
    return tuple(Ending(*kind, count, solved[kind]) for kind, count in ordered)


def _stages(rollouts: Sequence[RolloutFacts]) -> tuple[Stage, ...]:
    columns = {
        "queued": [each.queued_s for each in rollouts],
        "setup": [each.setup_s for each in rollouts],
        "generation": [each.generation_s for each in rollouts],
        "tools": [each.tool_s for each in rollouts],
        "reward": [each.reward_s for each in rollouts],
        "other": [max(0.0, each.total_s - _staged(each)) for each in rollouts],
    }
    everything = math.fsum(math.fsum(seconds) for seconds in columns.values())
    return tuple(
        Stage(
            name,
            quantile(ordered, 0.5),
            quantile(ordered, 0.9),
            total := math.fsum(ordered),
            total / everything if everything else 0.0,
        )
        for name, seconds in columns.items()
        if (ordered := sorted(seconds))
    )


def _staged(each: RolloutFacts) -> float:
    return math.fsum((each.queued_s, each.setup_s, each.generation_s, each.tool_s, each.reward_s))


def _groups(tasks: Sequence[_Task], success: float) -> Groups:
    groups = [each.trained for each in tasks if len(each.trained) > 1]
    same = [scores for scores in groups if min(scores) == max(scores)]
    solved = sum(scores[0] >= success for scores in same)
    return Groups(len(groups), len(same), solved, len(same) - solved)


def _notable(rollouts: Sequence[RolloutFacts], size: Callable[[RolloutFacts], float]) -> tuple[Notable, ...]:
    largest = sorted(rollouts, key=lambda each: (-size(each), each.key.task_id, each.key.index))[:_NOTABLE]
    return tuple(
        Notable(
            each.key.task_id, each.key.index, each.exit_reason.value, each.score, each.total_s, each.turns, each.tokens
        )
        for each in largest
        if size(each)
    )


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    return Spread(quantile(ordered, 0.5), quantile(ordered, 0.9), math.fsum(ordered), histogram(ordered))


def _notes(coverage: Coverage, tasks: Sequence[_Task], facts: Facts) -> Iterable[str]:
    if not coverage.is_known:
        yield (
            "how many rollouts the run was to have is not known: those that were never begun are not counted"
            if facts.info is None
            else "the run has not counted its tasks: those that were never begun are not counted"
        )
    if 1 < len(tasks) < _FEW_TASKS:
        yield f"{len(tasks)} tasks are few: intervals are rough, and likely too narrow"


def _mix(names: Iterable[str]) -> Mapping[str, int]:
    return _sorted(Counter(names))


def _sorted(counts: Mapping[str, int]) -> Mapping[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if part and whole else None
