"""A demo program: a bank ledger."""

from agentkit.runs.demo.program import Plant, Program

LEDGER = Program(
    name="ledger",
    about="A bank ledger in cents: accounts, transfers, interest, statements.",
    files={
        "ledger/__init__.py": '''"""A ledger."""

from ledger.bank import Bank, Refused
from ledger.statement import statement

__all__ = ["Bank", "Refused", "statement"]
''',
        "ledger/money.py": '''"""Amounts are whole cents."""


def parse(text):
    """Cents of an amount such as 12.5, 12.50 or 12."""
    whole, _, part = text.strip().partition(".")
    return int(whole) * 100 + int((part + "00")[:2])


def show(cents):
    """The amount with two decimals."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"
''',
        "ledger/bank.py": '''"""Accounts and what happens to them."""


class Refused(Exception):
    """The bank does not do that."""


class Bank:
    def __init__(self, fee=0):
        self.fee = fee
        self.balances = {}
        self.log = []

    def open(self, name, cents=0):
        if name in self.balances:
            raise Refused(f"{name} is open already")
        self.balances[name] = cents
        self.log.append(("open", name, cents))

    def deposit(self, name, cents):
        if cents <= 0:
            raise Refused("nothing to deposit")
        self.balances[name] += cents
        self.log.append(("deposit", name, cents))

    def withdraw(self, name, cents):
        if cents + self.fee > self.balances[name]:
            raise Refused("not enough")
        self.balances[name] -= cents + self.fee
        self.log.append(("withdraw", name, -cents - self.fee))

    def transfer(self, giver, taker, cents):
        if taker not in self.balances:
            raise Refused(f"no account {taker}")
        self.withdraw(giver, cents)
        self.deposit(taker, cents)

    def add_interest(self, percent):
        """Interest is rounded down to whole cents, and only on what is not owed."""
        for name, balance in self.balances.items():
            if balance > 0:
                self.balances[name] = balance + balance * percent // 100

    def total(self):
        return sum(self.balances.values())
''',
        "ledger/statement.py": '''"""What the customer sees."""

from ledger.money import show


def statement(bank, name):
    """The lines of one account, with the running balance."""
    lines = []
    balance = 0
    for kind, who, cents in bank.log:
        if who == name:
            balance += cents
            lines.append(f"{kind:<10}{show(cents):>10}{show(balance):>10}")
    return lines
''',
    },
    tests="""import unittest

from ledger import Bank, Refused, statement
from ledger.money import parse, show


class TestLedger(unittest.TestCase):
    def setUp(self):
        self.bank = Bank(fee=10)
        self.bank.open("ann", 1000)
        self.bank.open("bob")

    def test_money(self):
        self.assertEqual([parse(t) for t in ("12.5", " 3", "0.07")], [1250, 300, 7])
        self.assertEqual([show(c) for c in (1250, 7, -150)], ["12.50", "0.07", "-1.50"])

    def test_transfer(self):
        self.bank.transfer("ann", "bob", 300)
        self.assertEqual(self.bank.balances, {"ann": 690, "bob": 300})

    def test_can_take_the_last_cent(self):
        self.bank.withdraw("ann", 990)
        self.assertEqual(self.bank.balances["ann"], 0)

    def test_refusals(self):
        self.assertRaises(Refused, self.bank.withdraw, "ann", 995)
        self.assertRaises(Refused, self.bank.deposit, "ann", 0)
        self.assertRaises(Refused, self.bank.open, "ann")
        self.assertRaises(Refused, self.bank.transfer, "ann", "zoe", 1)

    def test_banks_are_apart(self):
        self.assertEqual(Bank().log, [])

    def test_interest(self):
        self.bank.add_interest(3)
        self.assertEqual(self.bank.total(), 1030)

    def test_statement(self):
        self.bank.withdraw("ann", 90)
        self.assertEqual(statement(self.bank, "ann")[-1], "withdraw       -1.00      9.00")
""",
    held_out="""import unittest

from ledger import Bank, Refused, statement
from ledger.money import parse, show


class TestLedgerHeldOut(unittest.TestCase):
    def test_money_round_trip(self):
        for cents in (0, 1, 10, 99, 100, 101, 123456):
            self.assertEqual(parse(show(cents)), cents)
        self.assertEqual(parse("7."), 700)

    def test_a_refused_transfer_changes_nothing(self):
        bank = Bank(fee=5)
        bank.open("a", 100)
        self.assertRaises(Refused, bank.transfer, "a", "b", 50)
        bank.open("b", 1)
        self.assertRaises(Refused, bank.transfer, "a", "b", 96)
        self.assertEqual(bank.balances, {"a": 100, "b": 1})
        bank.transfer("a", "b", 95)
        self.assertEqual(bank.balances, {"a": 0, "b": 96})

    def test_interest_rounds_down(self):
        bank = Bank()
        bank.open("a", 199)
        bank.open("b", -100)
        bank.add_interest(1)
        self.assertEqual(bank.balances, {"a": 200, "b": -100})

    def test_statement_adds_up(self):
        bank = Bank(fee=1)
        bank.open("a", 500)
        bank.open("b", 0)
        bank.transfer("a", "b", 200)
        bank.deposit("a", 7)
        lines = statement(bank, "a")
        self.assertEqual(len(lines), 3)
        self.assertTrue(lines[-1].endswith(show(bank.balances["a"])))

    def test_refuses_negative_deposits(self):
        bank = Bank()
        bank.open("a", 5)
        self.assertRaises(Refused, bank.deposit, "a", -5)
""",
    plants=(
        Plant(
            "wrong comparison",
            "ledger/bank.py",
            "cents + self.fee > self.balances[name]",
            "cents + self.fee >= self.balances[name]",
        ),
        Plant(
            "swapped arguments",
            "ledger/bank.py",
            "self.withdraw(giver, cents)\n        self.deposit(taker, cents)",
            "self.withdraw(taker, cents)\n        self.deposit(giver, cents)",
        ),
        Plant("wrong constant", "ledger/money.py", '(part + "00")[:2]', '(part + "00")[:3]'),
        Plant(
            "mutable default",
            "ledger/bank.py",
            "fee=0):\n        self.fee = fee\n        self.balances = {}\n        self.log = []\n",
            "fee=0, log=[]):\n        self.fee = fee\n        self.balances = {}\n        self.log = log\n",
        ),
        Plant("wrong operator", "ledger/statement.py", "balance += cents", "balance -= cents"),
        Plant("wrong key", "ledger/bank.py", "if name in self.balances:", "if name in self.log:"),
    ),
)
