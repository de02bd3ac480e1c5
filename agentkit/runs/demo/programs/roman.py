"""A demo program: roman numerals."""

from agentkit.runs.demo.program import Plant, Program

ROMAN = Program(
    name="roman",
    about="Roman numerals: writing, reading and checking them.",
    files={
        "roman/__init__.py": '''"""Roman numerals."""

from roman.reading import from_roman
from roman.writing import to_roman

__all__ = ["from_roman", "to_roman"]
''',
        "roman/symbols.py": '''"""The symbols and what they are worth, largest first."""

PAIRS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]

WORTH = {text: value for value, text in PAIRS if len(text) == 1}
''',
        "roman/writing.py": '''"""Numbers to numerals."""

from roman.symbols import PAIRS


def to_roman(number):
    """The numeral of a number from 1 to 3999."""
    if not 1 <= number <= 3999:
        raise ValueError(f"out of range: {number}")
    out = []
    for value, text in PAIRS:
        while number >= value:
            out.append(text)
            number -= value
    return "".join(out)
''',
        "roman/reading.py": '''"""Numerals to numbers."""

from roman.symbols import WORTH
from roman.writing import to_roman


def from_roman(text):
    """The number a numeral stands for; only the canonical spelling is taken."""
    text = text.strip().upper()
    total = 0
    largest = 0
    for char in reversed(text):
        if char not in WORTH:
            raise ValueError(f"not a numeral: {text!r}")
        worth = WORTH[char]
        if worth < largest:
            total -= worth
        else:
            total += worth
            largest = worth
    if total == 0 or to_roman(total) != text:
        raise ValueError(f"not canonical: {text!r}")
    return total
''',
    },
    tests="""import unittest

from roman import from_roman, to_roman


class TestRoman(unittest.TestCase):
    def test_writes_small_numbers(self):
        self.assertEqual([to_roman(n) for n in (1, 2, 4, 9)], ["I", "II", "IV", "IX"])

    def test_writes_the_largest(self):
        self.assertEqual(to_roman(3999), "MMMCMXCIX")

    def test_writes_forty_four(self):
        self.assertEqual(to_roman(44), "XLIV")

    def test_refuses_zero(self):
        self.assertRaises(ValueError, to_roman, 0)

    def test_reads_what_it_writes(self):
        for n in (1, 3, 40, 44, 444, 1987, 2026):
            self.assertEqual(from_roman(to_roman(n)), n)

    def test_reads_sloppy_typing(self):
        self.assertEqual(from_roman("  xiv\\n"), 14)

    def test_refuses_odd_spelling(self):
        self.assertRaises(ValueError, from_roman, "IIII")
""",
    held_out="""import unittest

from roman import from_roman, to_roman


class TestRomanHeldOut(unittest.TestCase):
    def test_round_trip_of_all(self):
        for n in range(1, 4000):
            self.assertEqual(from_roman(to_roman(n)), n)

    def test_range(self):
        for n in (-1, 0, 4000):
            self.assertRaises(ValueError, to_roman, n)

    def test_refusals(self):
        for text in ("", "ABC", "IM", "VX", "IIX"):
            self.assertRaises(ValueError, from_roman, text)

    def test_case_and_space(self):
        self.assertEqual(from_roman(" mcm "), 1900)
""",
    plants=(
        Plant("wrong comparison", "roman/writing.py", "while number >= value", "while number > value"),
        Plant("wrong constant", "roman/symbols.py", '(40, "XL")', '(49, "XL")'),
        Plant("off by one", "roman/writing.py", "number <= 3999", "number < 3999"),
        Plant("forgotten strip", "roman/reading.py", "text.strip().upper()", "text.upper()"),
        Plant("wrong operator", "roman/reading.py", "total -= worth", "total += worth"),
        Plant("wrong name", "roman/reading.py", "worth = WORTH[char]", "worth = WORTHS[char]"),
    ),
)
