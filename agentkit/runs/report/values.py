"""What a report says, as values: `summarise` fills them, text, HTML and JSON show them."""

from collections.abc import Mapping

from attrs import field, frozen

from agentkit.runs.report.stats import Estimate, Histogram


@frozen
class Coverage:
    """How much of the run there is. Rollouts are counted once, whatever their attempts.

    `expected` is tasks times group size where `run.json` says so, else what the journal has seen. `replaced` rollouts
    gave their place to another (`outcome: replace`) and enter no rate; `missing` ones were never begun.
    """

    tasks: int
    group_size: int
    expected: int
    sealed: int
    unfinished: int
    missing: int
    replaced: int
    is_known: bool
    """Whether `expected` comes from the run itself."""


@frozen
class PassAtK:
    """pass@k, the mean over the tasks that have at least k rollouts."""

    k: int
    tasks: int
    estimate: Estimate


@frozen
class Ending:
    """The sealed rollouts with one exit reason and blame."""

    exit_reason: str
    blame: str | None
    count: int
    solved: int


@frozen
class Stage:
    """Seconds that the rollouts spent in one stage; `share` is its part of all their time."""

    name: str
    median_s: float
    p90_s: float
    total_s: float
    share: float


@frozen
class Tool:
    """Calls of one tool by what came of them; the rest went well."""

    name: str
    calls: int
    errors: int
    timeouts: int
    skipped: int


@frozen
class Groups:
    """Tasks by what their group has to teach, among those with at least two rollouts that may be trained on.

    A group whose scores are all equal has no advantage to give under GRPO: `same_score`. `solved` and `unsolved` are
    those where that is because all, or none, reach the threshold.
    """

    counted: int
    same_score: int
    solved: int
    unsolved: int


@frozen
class Notable:
    """A rollout worth a look."""

    task_id: str
    index: int
    exit_reason: str
    score: float | None
    seconds: float
    turns: int
    tokens: int


@frozen
class Spread:
    """Median, 90th percentile, sum, and histogram over the sealed rollouts."""

    median: float
    p90: float
    total: float
    histogram: Histogram


@frozen(kw_only=True)
class Report:
    """A run in numbers. All rates are over expected rollouts; whatever did not reach the threshold is not solved."""

    path: str
    name: str | None
    threshold: float
    level: float
    seed: int
    coverage: Coverage
    solved: int
    success: Estimate | None
    graded: int
    graded_success: Estimate | None
    """Among the graded alone: beside the other, never instead of it."""
    score: Estimate | None
    """Mean score of the graded."""
    scores: Histogram | None
    pass_at: tuple[PassAtK, ...]
    endings: tuple[Ending, ...]
    grades: Mapping[str, int]
    outcomes: Mapping[str, int]
    stages: tuple[Stage, ...]
    seconds: Spread | None
    turns: Spread | None
    tokens: Spread | None
    sampled: int
    sampled_per_generation_s: float | None
    """Sampled tokens over the seconds in which their own rollout was generating: the speed of one stream."""
    sampled_per_wall_s: float | None
    wall_s: float | None
    format_error_turns: int
    cut_turns: int
    """Turns that a limit of tokens ended before the policy did."""
    faults: Mapping[str, int]
    tools: tuple[Tool, ...]
    retried: int
    given_up: Mapping[str, int]
    stuck: Mapping[str, int]
    errors: Mapping[str, int]
    """What was raised and ended rollouts or kept them from a score: one line each, and how often."""
    groups: Groups
    slowest: tuple[Notable, ...]
    longest: tuple[Notable, ...]
    notes: tuple[str, ...] = field(default=())
