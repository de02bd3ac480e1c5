"""A demo program: calendar arithmetic."""

from agentkit.runs.demo.program import Plant, Program

DAYS = Program(
    name="days",
    about="Calendar arithmetic from first principles: leap years, day numbers, weekdays, adding months.",
    files={
        "days/__init__.py": '''"""Calendar arithmetic."""

from days.calendar import days_in_month, is_leap
from days.shift import add_days, add_months, between, weekday

__all__ = ["add_days", "add_months", "between", "days_in_month", "is_leap", "weekday"]
''',
        "days/calendar.py": '''"""How long months and years are."""

LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    """Whether February has 29 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    """The number of days of a month, 1 to 12."""
    if month == 2 and is_leap(year):
        return 29
    return LENGTHS[month - 1]


def day_of_year(year, month, day):
    """1 for the first of January."""
    return sum(days_in_month(year, m) for m in range(1, month)) + day
''',
        "days/shift.py": '''"""Moving through the calendar; dates are (year, month, day)."""

from days.calendar import day_of_year, days_in_month, is_leap


def number(date):
    """Days since the last day before the year 1."""
    year, month, day = date
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 + day_of_year(year, month, day)


def between(start, stop):
    """How many days from start to stop; negative if stop is earlier."""
    return number(stop) - number(start)


def weekday(date):
    """0 for Monday."""
    return (number(date) - 1) % 7


def add_days(date, count):
    """The date count days later."""
    year, month, day = date
    day += count
    while day > days_in_month(year, month):
        day -= days_in_month(year, month)
        month += 1
        if month > 12:
            year, month = year + 1, 1
    while day < 1:
        month -= 1
        if month < 1:
            year, month = year - 1, 12
        day += days_in_month(year, month)
    return year, month, day


def add_months(date, count):
    """The same day count months later, or the last of that month if it has no such day."""
    year, month, day = date
    months = year * 12 + month - 1 + count
    year, month = months // 12, months % 12 + 1
    return year, month, min(day, days_in_month(year, month))
''',
    },
    tests="""import unittest

from days import add_days, add_months, between, days_in_month, is_leap, weekday


class TestDays(unittest.TestCase):
    def test_leap_years(self):
        self.assertEqual([is_leap(y) for y in (1900, 2000, 2023, 2024)], [False, True, False, True])

    def test_days_in_month(self):
        self.assertEqual([days_in_month(2024, m) for m in (1, 2, 4, 12)], [31, 29, 30, 31])

    def test_between(self):
        self.assertEqual(between((2024, 2, 28), (2024, 3, 1)), 2)
        self.assertEqual(between((2024, 1, 1), (2023, 1, 1)), -365)

    def test_weekday(self):
        self.assertEqual(weekday((2026, 3, 2)), 0)

    def test_add_days(self):
        self.assertEqual(add_days((2023, 12, 31), 1), (2024, 1, 1))
        self.assertEqual(add_days((2024, 3, 1), -1), (2024, 2, 29))
        self.assertEqual(add_days((2024, 4, 29), 1), (2024, 4, 30))

    def test_add_months(self):
        self.assertEqual(add_months((2024, 1, 31), 1), (2024, 2, 29))
        self.assertEqual(add_months((2023, 11, 15), 3), (2024, 2, 15))
""",
    held_out="""import datetime
import unittest

from days import add_days, add_months, between, days_in_month, is_leap, weekday


def parts(date):
    return date.year, date.month, date.day


class TestDaysHeldOut(unittest.TestCase):
    def test_agrees_with_datetime(self):
        first = datetime.date(1896, 2, 25)
        for count in range(0, 60000, 397):
            date = first + datetime.timedelta(count)
            self.assertEqual(between(parts(first), parts(date)), count)
            self.assertEqual(weekday(parts(date)), date.weekday())
            self.assertEqual(add_days(parts(first), count), parts(date))
            self.assertEqual(add_days(parts(date), -count), parts(first))

    def test_months(self):
        self.assertEqual(add_months((2024, 3, 31), -1), (2024, 2, 29))
        self.assertEqual(add_months((2024, 1, 5), -1), (2023, 12, 5))
        self.assertEqual(add_months((2024, 5, 31), 25), (2026, 6, 30))

    def test_leap(self):
        self.assertTrue(is_leap(1600))
        self.assertFalse(is_leap(2100))
        self.assertEqual(sum(days_in_month(2100, m) for m in range(1, 13)), 365)
""",
    plants=(
        Plant("wrong operator", "days/calendar.py", "== 0 and (year", "== 0 or (year"),
        Plant("off by one", "days/calendar.py", "LENGTHS[month - 1]", "LENGTHS[month]"),
        Plant("wrong constant", "days/shift.py", "while day < 1:", "while day < 0:"),
        Plant("swapped operands", "days/shift.py", "number(stop) - number(start)", "number(start) - number(stop)"),
        Plant("wrong constant", "days/calendar.py", "LENGTHS = [31, 28, 31, 30,", "LENGTHS = [31, 28, 31, 31,"),
        Plant("wrong name", "days/shift.py", "min(day, days_in_month", "min(days, days_in_month"),
    ),
)
