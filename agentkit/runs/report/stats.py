"""The arithmetic of a report: rates, intervals, pass@k, quantiles, histograms. Plain functions over plain numbers.

The rollouts of one task resemble one another, so an interval that takes them for independent is too narrow: with eight
rollouts of each of fifty tasks there are fifty observations of what a task is like, not four hundred. What is drawn
again (or summed) here is therefore always the task, with all of its rollouts.
"""

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

from attrs import frozen

from agentkit.errors import ConfigError

_MANY_TASKS = 500


@frozen
class Estimate:
    """A mean with its confidence interval. `low` and `high` are None where there is no saying; `method` says how."""

    value: float
    low: float | None
    high: float | None
    method: str


@frozen
class Histogram:
    """Counts between edges: bin i holds `edges[i] <= x < edges[i + 1]`, the last one its upper edge as well.

    Where `values` is not empty, bin i holds exactly the value `values[i]`, and there are no edges.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that one of `k` rollouts solves the task, estimated without bias from `c` solved of `n`.

    Chen et al. 2021, arXiv 2107.03374, equation 1, as a product, which does not overflow.

    Raises:
        ConfigError: not `0 <= c <= n` and `1 <= k <= n`.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, found n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def wilson(successes: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """The score interval of a binomial proportion (Wilson 1927, J. Am. Stat. Assoc. 22(158), 209-212).

    Raises:
        ConfigError: not `0 <= successes <= n` and `n > 0`.
    """
    if not (0 <= successes <= n and n > 0):
        raise ConfigError(f"a proportion needs 0 <= successes <= n and n > 0, found {successes} of {n}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p, zz = successes / n, z * z / n
    middle = (p + zz / 2) / (1 + zz)
    half = z / (1 + zz) * math.sqrt(p * (1 - p) / n + zz / (4 * n))
    return (0.0 if successes == 0 else max(0.0, middle - half), 1.0 if successes == n else min(1.0, middle + half))


class TaskBootstrap:
    """Draws tasks with replacement, the same draws for every statistic; deterministic for a seed.

    A resample keeps all rollouts of a task that it draws (the cluster bootstrap: Field and Welsh 2007, J. R. Stat. Soc.
    B 69(3), 369-390); intervals are percentiles of the statistic over the resamples. Past 500 tasks the bootstrap tells
    nothing that the normal interval with task-clustered standard errors does not (Miller 2024, arXiv 2411.00640,
    section 2.2, here for a ratio of sums), so that one is given, in time linear in the tasks.
    """

    def __init__(self, tasks: int, *, seed: int = 0, resamples: int = 2000, level: float = 0.95) -> None:
        self.level = level
        self._tasks = tasks
        self._draws: list[list[int]] = []
        if 1 < tasks <= _MANY_TASKS:
            generator, places = random.Random(seed), list(range(tasks))
            self._draws = [generator.choices(places, k=tasks) for _ in range(resamples)]

    def mean(self, sums: Sequence[float], counts: Sequence[float], *, is_rate: bool) -> Estimate | None:
        """The mean over all rollouts, where task i has `counts[i]` of them that add up to `sums[i]`; None of none.

        `is_rate` says that the values lie between 0 and 1, and so does the interval then. A task with no rollouts
        counts for nothing. Where each task is 0 or 1 (it has one rollout, or all of them agree), and where resampling
        cannot tell anything because all tasks are alike, the interval is Wilson's, over tasks.
        """
        if len(sums) != self._tasks or len(counts) != self._tasks:
            raise ConfigError(f"expected sums and counts of {self._tasks} tasks, found {len(sums)} and {len(counts)}")
        total = math.fsum(counts)
        if not total:
            return None
        value = math.fsum(sums) / total
        pairs = [(part, count) for part, count in zip(sums, counts, strict=True) if count]
        if is_rate and all(count == 1 and part in (0, 1) for part, count in pairs):
            return Estimate(value, *wilson(math.fsum(sums), total, level=self.level), "Wilson")
        if len(pairs) == 1:
            return self._of_one_task(value, *pairs[0], is_rate=is_rate)
        if is_rate and all(part in (0, count) and count == pairs[0][1] for part, count in pairs):
            whole = wilson(round(value * len(pairs)), len(pairs), level=self.level)
            return Estimate(value, *whole, "Wilson over tasks, each all or nothing")
        if all(math.isclose(part, value * count) for part, count in pairs):
            if is_rate:
                alike = wilson(value * len(pairs), len(pairs), level=self.level)
                return Estimate(value, *alike, "Wilson over tasks, which are all alike")
            return Estimate(value, None, None, "none: all tasks are alike")
        if self._draws:
            return Estimate(value, *self._percentiles(sums, counts), "bootstrap over tasks")
        return Estimate(value, *self._normal(value, total, pairs, is_rate=is_rate), "normal, clustered by task")

    def _of_one_task(self, value: float, part: float, count: float, *, is_rate: bool) -> Estimate:
        if is_rate and float(part).is_integer() and count > 1:
            return Estimate(value, *wilson(part, count, level=self.level), "Wilson, of this one task only")
        return Estimate(value, None, None, "none: one task")

    def _percentiles(self, sums: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
        part, count = sums.__getitem__, counts.__getitem__
        means = [math.fsum(map(part, draw)) / total for draw in self._draws if (total := math.fsum(map(count, draw)))]
        means.sort()
        return quantile(means, 0.5 - self.level / 2), quantile(means, 0.5 + self.level / 2)

    def _normal(
        self, value: float, total: float, pairs: Sequence[tuple[float, float]], *, is_rate: bool
    ) -> tuple[float, float]:
        spread = math.fsum((part - value * count) ** 2 for part, count in pairs)
        error = math.sqrt(spread * len(pairs) / (len(pairs) - 1)) / total
        half = NormalDist().inv_cdf(0.5 + self.level / 2) * error
        low, high = value - half, value + half
        return (max(0.0, low), min(1.0, high)) if is_rate else (low, high)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The `q`-quantile of `ordered` values, linear between neighbours; nan of none."""
    if not ordered:
        return math.nan
    place = q * (len(ordered) - 1)
    lower = math.floor(place)
    upper = min(lower + 1, len(ordered) - 1)
    if ordered[lower] == ordered[upper]:
        return ordered[lower]
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (place - lower)


def histogram(values: Sequence[float], *, bins: int = 20) -> Histogram:
    """`values` in at most `bins` bins: one for each value where there are few, else of equal width.

    Whole numbers get bins of whole numbers, so that none looks emptier than its neighbours for its width.
    """
    distinct = sorted(set(values))
    if len(distinct) <= min(bins, 12):
        places = {value: place for place, value in enumerate(distinct)}
        counts = [0] * len(distinct)
        for value in values:
            counts[places[value]] += 1
        return Histogram(tuple(counts), values=tuple(distinct))
    low, high = distinct[0], distinct[-1]
    width = (high - low) / bins
    if all(float(value).is_integer() for value in distinct):
        width = math.ceil((high - low + 1) / bins)
        bins = math.ceil((high - low + 1) / width)
        high = low + bins * width
    edges = [*(low + number * width for number in range(bins)), high]
    counts = [0] * bins
    for value in values:
        place = min(int((value - low) / width), bins - 1)
        if value < edges[place]:  # rounding
            place -= 1
        elif value >= edges[place + 1] and place + 1 < bins:
            place += 1
        counts[place] += 1
    return Histogram(tuple(counts), tuple(edges))


def powers_up_to(n: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `n` itself."""
    return tuple(sorted({1 << power for power in range(n.bit_length()) if 1 << power <= n} | {n} - {0}))
