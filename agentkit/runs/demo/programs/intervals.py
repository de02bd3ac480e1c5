"""A demo program: sets of intervals."""

from agentkit.runs.demo.program import Plant, Program

INTERVALS = Program(
    name="intervals",
    about="Sets of half-open integer intervals: merging, subtracting, covering.",
    files={
        "intervals/__init__.py": '''"""Half-open intervals as (start, stop) pairs."""

from intervals.merge import covered, merge
from intervals.subtract import gaps, subtract

__all__ = ["covered", "gaps", "merge", "subtract"]
''',
        "intervals/merge.py": '''"""Union."""


def merge(intervals):
    """The same set with overlapping and touching intervals joined, in order; empty ones are dropped."""
    out = []
    for start, stop in sorted(intervals):
        if start >= stop:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((start, stop))
    return out


def covered(intervals):
    """How many integers the set holds."""
    return sum(stop - start for start, stop in merge(intervals))
''',
        "intervals/subtract.py": '''"""Difference."""

from intervals.merge import merge


def subtract(left, right):
    """What is in left but not in right."""
    out = []
    holes = merge(right)
    for start, stop in merge(left):
        at = start
        for hole_start, hole_stop in holes:
            if hole_stop <= at or hole_start >= stop:
                continue
            if hole_start > at:
                out.append((at, hole_start))
            at = max(at, hole_stop)
        if at < stop:
            out.append((at, stop))
    return out


def gaps(intervals):
    """What lies between the intervals."""
    merged = merge(intervals)
    if not merged:
        return []
    whole = (merged[0][0], merged[-1][1])
    return subtract([whole], merged)
''',
    },
    tests="""import unittest

from intervals import covered, gaps, merge, subtract


class TestIntervals(unittest.TestCase):
    def test_merge_joins_touching(self):
        self.assertEqual(merge([(5, 7), (0, 3), (3, 5)]), [(0, 7)])

    def test_merge_keeps_the_longer_stop(self):
        self.assertEqual(merge([(0, 9), (1, 2), (11, 12), (4, 4)]), [(0, 9), (11, 12)])

    def test_covered(self):
        self.assertEqual(covered([(0, 3), (2, 5), (7, 8)]), 6)

    def test_subtract(self):
        self.assertEqual(subtract([(0, 10)], [(2, 4), (6, 7)]), [(0, 2), (4, 6), (7, 10)])

    def test_subtract_everything(self):
        self.assertEqual(subtract([(1, 3)], [(0, 5)]), [])

    def test_gaps(self):
        self.assertEqual(gaps([(0, 1), (3, 4), (8, 9)]), [(1, 3), (4, 8)])

    def test_no_gaps_in_nothing(self):
        self.assertEqual(gaps([]), [])
""",
    held_out="""import random
import unittest

from intervals import covered, gaps, merge, subtract


def points(intervals):
    return {n for start, stop in intervals for n in range(start, stop)}


class TestIntervalsHeldOut(unittest.TestCase):
    def test_agrees_with_sets(self):
        dice = random.Random(5)
        for _ in range(300):
            one, two = ([tuple(dice.randrange(20) for _ in "ab") for _ in range(dice.randrange(5))] for _ in "ab")
            self.assertEqual(points(merge(one)), points(one))
            self.assertEqual(points(subtract(one, two)), points(one) - points(two))
            self.assertEqual(covered(one), len(points(one)))
            for a, b in zip(merge(one), merge(one)[1:]):
                self.assertLess(a[1], b[0])

    def test_gaps(self):
        self.assertEqual(gaps([(2, 4)]), [])
        self.assertEqual(gaps([(4, 6), (0, 2)]), [(2, 4)])
        self.assertEqual(gaps([(3, 3)]), [])
""",
    plants=(
        Plant("wrong comparison", "intervals/merge.py", "start <= out[-1][1]", "start < out[-1][1]"),
        Plant("wrong function", "intervals/merge.py", "max(out[-1][1], stop)", "min(out[-1][1], stop)"),
        Plant("swapped operands", "intervals/merge.py", "sum(stop - start for", "sum(start - stop for"),
        Plant("wrong index", "intervals/subtract.py", "merged[-1][1])", "merged[0][1])"),
        Plant("missing edge case", "intervals/subtract.py", "    if not merged:\n        return []\n", ""),
        Plant("wrong name", "intervals/subtract.py", "out.append((at, hole_start))", "out.append((start, hole_start))"),
    ),
)
