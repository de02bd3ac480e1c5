"""The arithmetic of a report against slow, obvious twins."""

import math
from collections import Counter
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.runs.report import TaskBootstrap, pass_at_k, wilson
from agentkit.runs.report.stats import histogram, powers_up_to, quantile


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_unbiased() -> None:
    p, n, k = 0.3, 5, 3
    mean = sum(
        math.prod(p if each else 1 - p for each in outcome) * pass_at_k(n, sum(outcome), k)
        for outcome in product([False, True], repeat=n)
    )
    assert mean == pytest.approx(1 - (1 - p) ** k)


def test_pass_at_k_of_huge_groups_is_finite() -> None:
    assert pass_at_k(100_000, 1, 1) == pytest.approx(1e-5)
    assert pass_at_k(100_000, 50_000, 1000) == pytest.approx(1.0)


@pytest.mark.parametrize("arguments", [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_pass_at_k_refuses_what_has_no_meaning(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="pass@k needs"):
        pass_at_k(*arguments)


# roots of (p - x/n)^2 = z^2 p (1 - p) / n, found apart from this code by bisection
@pytest.mark.parametrize(("x", "n"), [(0, 10), (1, 10), (5, 10), (10, 10), (81, 263), (15, 148), (1, 1), (0, 1)])
def test_wilson_is_where_the_score_test_turns(x: int, n: int) -> None:
    z = 1.959963984540054

    def excess(p: float) -> float:
        return (p - x / n) ** 2 - z * z * p * (1 - p) / n

    def root(outside: float, inside: float) -> float:
        for _ in range(200):
            middle = (outside + inside) / 2
            outside, inside = (middle, inside) if excess(middle) > 0 else (outside, middle)
        return inside

    low, high = wilson(x, n)
    assert low == pytest.approx(root(0.0, x / n) if x else 0.0, abs=1e-9)
    assert high == pytest.approx(root(1.0, x / n) if x < n else 1.0, abs=1e-9)


def test_wilson_agrees_with_published_values() -> None:
    # Newcombe 1998, Stat. Med. 17, 857-872, table I, method 3
    for (x, n), (low, high) in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(x, n) == pytest.approx((low, high), abs=5e-5)


TASKS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda t: (min(t), max(t))), min_size=1, max_size=8
)


@given(TASKS, st.integers(0, 3))
def test_the_interval_is_that_of_drawing_whole_tasks(tasks: list[tuple[int, int]], seed: int) -> None:
    solved, counts = [c for c, _ in tasks], [n for _, n in tasks]
    found = TaskBootstrap(len(tasks), seed=seed, resamples=50).mean(solved, counts, is_rate=True)
    if not sum(counts):
        assert found is None
        return
    assert found is not None
    assert found.value == pytest.approx(sum(solved) / sum(counts))
    if found.low is not None and found.high is not None:
        assert 0 <= found.low <= found.value + 1e-12
        assert found.value - 1e-12 <= found.high <= 1
    if found.method == "bootstrap over tasks":
        generator, means = Random(seed), []
        for _ in range(50):
            drawn = generator.choices(range(len(tasks)), k=len(tasks))
            if total := sum(counts[task] for task in drawn):
                means.append(sum(solved[task] for task in drawn) / total)
        means.sort()
        assert found.low == pytest.approx(quantile(means, 0.025))
        assert found.high == pytest.approx(quantile(means, 0.975))


def test_the_same_seed_gives_the_same_interval_and_another_another() -> None:
    generator = Random(0)
    solved = [generator.randrange(9) for _ in range(40)]
    first, again, other = (TaskBootstrap(40, seed=seed).mean(solved, [8] * 40, is_rate=True) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_rollouts_of_one_task_do_not_pass_for_independent() -> None:
    solved = [8] * 10 + [0] * 10  # every task all or nothing: twenty observations, not 160
    found = TaskBootstrap(20).mean(solved, [8] * 20, is_rate=True)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == wilson(10, 20)
    low, high = wilson(80, 160)
    assert found.high - found.low > 2 * (high - low)


def test_one_rollout_a_task_is_a_plain_proportion() -> None:
    found = TaskBootstrap(10).mean([1, 0, 0, 1, 1, 0, 0, 0, 0, 0], [1] * 10, is_rate=True)
    assert found is not None
    assert (found.low, found.high) == wilson(3, 10)
    assert found.method == "Wilson"


@pytest.mark.parametrize("each", [0, 4, 8])
def test_all_tasks_alike_is_no_certainty(each: int) -> None:
    found = TaskBootstrap(5).mean([each] * 5, [8] * 5, is_rate=True)
    assert found is not None
    assert (found.low, found.high) == wilson(each * 5 / 8, 5)


def test_one_task_and_equal_scores_have_the_interval_they_can_have() -> None:
    one = TaskBootstrap(1).mean([3], [8], is_rate=True)
    assert one is not None
    assert (one.low, one.high, one.method) == (*wilson(3, 8), "Wilson, of this one task only")
    score = TaskBootstrap(1).mean([3.5], [8], is_rate=False)
    assert score is not None
    assert (score.value, score.low, score.high) == (3.5 / 8, None, None)
    alike = TaskBootstrap(3).mean([0.3, 0.3, 0.1], [3, 3, 1], is_rate=False)
    assert alike is not None
    assert (alike.low, alike.high, alike.method) == (None, None, "none: all tasks are alike")


def test_the_interval_of_many_tasks_is_that_of_the_bootstrap() -> None:
    generator = Random(3)
    counts = [generator.randint(1, 8) for _ in range(500)]
    solved = [generator.choice([0, count, generator.randint(0, count)]) for count in counts]
    drawn = TaskBootstrap(500, seed=5).mean(solved, counts, is_rate=True)
    normal = TaskBootstrap(501).mean([*solved, 0], [*counts, 0], is_rate=True)
    assert drawn is not None
    assert normal is not None
    assert (drawn.method, normal.method) == ("bootstrap over tasks", "normal, clustered by task")
    assert normal.low == pytest.approx(drawn.low, abs=0.004)
    assert normal.high == pytest.approx(drawn.high, abs=0.004)


@pytest.mark.parametrize("tasks", [30, 501])
def test_intervals_cover_the_truth_as_often_as_they_say(tasks: int) -> None:
    generator, covered, runs = Random(11), 0, 120
    for run in range(runs):
        rates = [generator.choice([0.0, 0.2, 0.9]) for _ in range(tasks)]
        solved = [sum(generator.random() < rate for _ in range(4)) for rate in rates]
        found = TaskBootstrap(tasks, seed=run, resamples=200).mean(solved, [4] * tasks, is_rate=True)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.1 / 3 <= found.high
    assert 0.88 <= covered / runs <= 1.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_lie_between_neighbours(values: list[float], q: float) -> None:
    ordered = sorted(values)
    found = quantile(ordered, q)
    assert ordered[math.floor(q * (len(values) - 1))] <= found <= ordered[math.ceil(q * (len(values) - 1))]
    assert quantile(ordered, 0) == ordered[0]
    assert quantile(ordered, 1) == ordered[-1]


@given(
    st.lists(st.floats(-1e6, 1e6) | st.integers(0, 60).map(float), max_size=60),
    st.integers(1, 25),
)
def test_every_value_is_in_the_bin_that_says_so(values: list[float], bins: int) -> None:
    found = histogram(values, bins=bins)
    assert sum(found.counts) == len(values)
    assert len(found.counts) <= max(bins, 1)
    if not found.edges:
        assert dict(zip(found.values, found.counts, strict=True)) == Counter(values)
        return
    assert list(found.edges) == sorted(found.edges)
    last = len(found.counts) - 1
    for place, count in enumerate(found.counts):
        low, high = found.edges[place], found.edges[place + 1]
        assert count == sum(low <= value < high or (place == last and value == high) for value in values)


def test_whole_numbers_get_bins_of_whole_numbers() -> None:
    found = histogram([float(n) for n in range(1, 17)])
    assert set(found.counts) == {1}
    assert histogram([float(n) for n in range(100)]).counts == (5,) * 20


def test_the_ks_of_a_group() -> None:
    assert [powers_up_to(n) for n in (0, 1, 2, 3, 6, 8)] == [(), (1,), (1, 2), (1, 2, 3), (1, 2, 4, 6), (1, 2, 4, 8)]
