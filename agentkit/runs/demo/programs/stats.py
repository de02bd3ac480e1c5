"""A demo program: descriptive statistics."""

from agentkit.runs.demo.program import Plant, Program

STATS = Program(
    name="stats",
    about="Descriptive statistics without dependencies: averages, spread, quantiles, histograms.",
    files={
        "stats/__init__.py": '''"""Descriptive statistics."""

from stats.averages import mean, median, modes
from stats.spread import histogram, quantile, stdev

__all__ = ["histogram", "mean", "median", "modes", "quantile", "stdev"]
''',
        "stats/averages.py": '''"""Where the middle is."""


def mean(values):
    """The arithmetic mean; 0 of nothing."""
    if not values:
        return 0
    return sum(values) / len(values)


def median(values):
    """The middle value, or the mean of the two middle ones."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def modes(values):
    """All values that occur most often, in ascending order."""
    counts = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    most = max(counts.values(), default=0)
    return sorted(value for value, count in counts.items() if count == most)
''',
        "stats/spread.py": '''"""How far values lie apart."""

import math

from stats.averages import mean


def stdev(values):
    """The sample standard deviation (n - 1)."""
    if len(values) < 2:
        raise ValueError("needs two values")
    centre = mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1))


def quantile(values, share):
    """The value below which the share of values lies, by linear interpolation."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    weight = position - low
    return ordered[low] * (1 - weight) + ordered[high] * weight


def histogram(values, width):
    """Counts by the start of the bin of that width."""
    bins = {}
    for value in values:
        start = value // width * width
        bins[start] = bins.get(start, 0) + 1
    return bins
''',
    },
    tests="""import unittest

from stats import histogram, mean, median, modes, quantile, stdev


class TestStats(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 2, 4, 5]), 3)
        self.assertEqual(mean([]), 0)

    def test_median(self):
        self.assertEqual(median([5, 1, 3]), 3)
        self.assertEqual(median([4, 1, 3, 2]), 2.5)

    def test_modes(self):
        self.assertEqual(modes([3, 1, 3, 1, 2]), [1, 3])

    def test_stdev(self):
        self.assertAlmostEqual(stdev([2, 4, 4, 4, 5, 5, 7, 9]), 2.13809, places=4)

    def test_quantile(self):
        self.assertEqual(quantile([10, 20, 30, 40, 50], 0.25), 20)
        self.assertEqual(quantile([1, 2], 0.5), 1.5)

    def test_histogram(self):
        self.assertEqual(histogram([1, 4, 5, 11], 5), {0: 2, 5: 1, 10: 1})
""",
    held_out="""import statistics
import unittest

from stats import histogram, mean, median, modes, quantile, stdev

VALUES = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


class TestStatsHeldOut(unittest.TestCase):
    def test_agrees_with_the_standard_library(self):
        for values in (VALUES, VALUES[:-1], [7, 7], [1, 2, 3]):
            self.assertAlmostEqual(mean(values), statistics.mean(values))
            self.assertAlmostEqual(median(values), statistics.median(values))
            self.assertAlmostEqual(stdev(values), statistics.stdev(values))
            self.assertEqual(modes(values), sorted(statistics.multimode(values)))

    def test_quantile(self):
        self.assertEqual(quantile(VALUES, 0), 1)
        self.assertEqual(quantile(VALUES, 1), 9)
        self.assertEqual(quantile(VALUES, 0.5), 4)

    def test_empty(self):
        self.assertEqual(mean([]), 0)
        self.assertEqual(modes([]), [])
        self.assertRaises(ValueError, stdev, [1])

    def test_histogram(self):
        self.assertEqual(histogram([-1, 0, 9, 10], 10), {-10: 1, 0: 2, 10: 1})
""",
    plants=(
        Plant("missing edge case", "stats/averages.py", "    if not values:\n        return 0\n", ""),
        Plant(
            "off by one",
            "stats/averages.py",
            "ordered[middle - 1] + ordered[middle]",
            "ordered[middle] + ordered[middle]",
        ),
        Plant("wrong function", "stats/averages.py", "most = max(", "most = min("),
        Plant("wrong operator", "stats/spread.py", "(len(values) - 1))", "(len(values) + 1))"),
        Plant(
            "swapped operands",
            "stats/spread.py",
            "ordered[low] * (1 - weight) + ordered[high] * weight",
            "ordered[low] * weight + ordered[high] * (1 - weight)",
        ),
        Plant(
            "missing parentheses",
            "stats/averages.py",
            "(ordered[middle - 1] + ordered[middle]) / 2",
            "ordered[middle - 1] + ordered[middle] / 2",
        ),
    ),
)
