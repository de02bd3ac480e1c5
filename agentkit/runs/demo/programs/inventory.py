"""A demo program: a shop's stock."""

from agentkit.runs.demo.program import Plant, Program

INVENTORY = Program(
    name="inventory",
    about="A shop's stock: orders with discounts, restocking, a report read from settings.",
    files={
        "inventory/__init__.py": '''"""Stock and orders."""

from inventory.orders import price, reserve
from inventory.report import report
from inventory.stock import Stock

__all__ = ["Stock", "price", "report", "reserve"]
''',
        "inventory/settings.py": '''"""What the shop decided."""

SETTINGS = {
    "low_stock": 5,
    "bulk_from": 10,
    "bulk_percent": 20,
    "currency": "EUR",
}
''',
        "inventory/stock.py": '''"""What is on the shelves."""


class Stock:
    def __init__(self, items=None):
        self.items = dict(items or {})

    def add(self, name, count):
        if count < 0:
            raise ValueError("count must not be negative")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        """Take count away; False, and nothing changes, if there are not enough."""
        have = self.items.get(name, 0)
        if count > have:
            return False
        if count == have:
            self.items.pop(name, None)
        else:
            self.items[name] = have - count
        return True
''',
        "inventory/orders.py": '''"""Orders are dicts of name to count."""

from inventory.settings import SETTINGS


def price(order, prices):
    """The price of an order: bulk items are cheaper."""
    total = 0
    for name, count in order.items():
        cost = count * prices[name]
        if count >= SETTINGS["bulk_from"]:
            cost = cost * (100 - SETTINGS["bulk_percent"]) / 100
        total += cost
    return total


def reserve(stock, order):
    """Take the whole order from stock or nothing of it; whether it worked."""
    taken = []
    for name, count in order.items():
        if not stock.remove(name, count):
            for back, number in taken:
                stock.add(back, number)
            return False
        taken.append((name, count))
    return True
''',
        "inventory/report.py": '''"""What must be ordered again."""

from inventory.settings import SETTINGS


def report(stock, prices):
    """Lines 'name count value' for what is low, scarcest first."""
    low = [(count, name) for name, count in stock.items.items() if count < SETTINGS["low_stock"]]
    lines = []
    for count, name in sorted(low):
        value = count * prices.get(name, 0)
        lines.append(f"{name} {count} {value:.2f} {SETTINGS['currency']}")
    return lines
''',
    },
    tests="""import unittest

from inventory import Stock, price, report, reserve


class TestInventory(unittest.TestCase):
    def test_add_and_remove(self):
        stock = Stock({"nut": 3})
        stock.add("nut", 2)
        self.assertTrue(stock.remove("nut", 4))
        self.assertFalse(stock.remove("nut", 4))
        self.assertEqual(stock.items, {"nut": 1})

    def test_empty_shelves_go(self):
        stock = Stock({"nut": 3})
        self.assertTrue(stock.remove("nut", 3))
        self.assertEqual(stock.items, {})

    def test_price(self):
        self.assertEqual(price({"nut": 2, "bolt": 10}, {"nut": 3, "bolt": 5}), 46)

    def test_reserve_is_all_or_nothing(self):
        stock = Stock({"nut": 3, "bolt": 1})
        self.assertFalse(reserve(stock, {"nut": 2, "bolt": 2}))
        self.assertEqual(stock.items, {"nut": 3, "bolt": 1})
        self.assertTrue(reserve(stock, {"nut": 2}))

    def test_report(self):
        stock = Stock({"nut": 4, "bolt": 1, "cog": 5})
        self.assertEqual(report(stock, {"nut": 0.5}), ["bolt 1 0.00 EUR", "nut 4 2.00 EUR"])
""",
    held_out="""import unittest

from inventory import Stock, price, report, reserve


class TestInventoryHeldOut(unittest.TestCase):
    def test_bulk_edge(self):
        self.assertEqual(price({"a": 9}, {"a": 10}), 90)
        self.assertEqual(price({"a": 10}, {"a": 10}), 80)
        self.assertEqual(price({}, {}), 0)
        self.assertEqual(price({"a": 20, "b": 1}, {"a": 1, "b": 2}), 18)

    def test_stock_is_a_copy(self):
        shelf = {"a": 1}
        Stock(shelf).add("a", 5)
        self.assertEqual(shelf, {"a": 1})

    def test_negative(self):
        self.assertRaises(ValueError, Stock().add, "a", -1)

    def test_reserve(self):
        stock = Stock({"a": 2, "b": 2, "c": 1})
        self.assertTrue(reserve(stock, {"a": 2, "b": 1}))
        self.assertEqual(stock.items, {"b": 1, "c": 1})
        self.assertFalse(reserve(stock, {"b": 1, "c": 1, "zzz": 1}))
        self.assertEqual(stock.items, {"b": 1, "c": 1})

    def test_report_order(self):
        stock = Stock({"x": 4, "a": 4, "z": 2, "full": 99})
        self.assertEqual([line.split()[0] for line in report(stock, {})], ["z", "a", "x"])
""",
    plants=(
        Plant("wrong key", "inventory/orders.py", 'SETTINGS["bulk_percent"]', 'SETTINGS["bulk_percents"]'),
        Plant(
            "wrong comparison", "inventory/orders.py", 'count >= SETTINGS["bulk_from"]', 'count > SETTINGS["bulk_from"]'
        ),
        Plant(
            "missing return",
            "inventory/stock.py",
            "            self.items[name] = have - count\n        return True\n",
            "            self.items[name] = have - count\n",
        ),
        Plant("swapped arguments", "inventory/orders.py", "stock.add(back, number)", "stock.add(number, back)"),
        Plant(
            "inverted condition",
            "inventory/orders.py",
            "if not stock.remove(name, count):",
            "if stock.remove(name, count):",
        ),
        Plant("wrong name", "inventory/report.py", "sorted(low)", "sorted(lows)"),
    ),
)
