"""A demo program: arithmetic in strings."""

from agentkit.runs.demo.program import Plant, Program

CALC = Program(
    name="calc",
    about="A calculator: a tokenizer and a recursive-descent parser for arithmetic with variables.",
    files={
        "calc/__init__.py": '''"""Arithmetic in strings."""

from calc.evaluate import evaluate
from calc.lexer import tokens

__all__ = ["evaluate", "tokens"]
''',
        "calc/lexer.py": '''"""Text to tokens."""

OPERATORS = "+-*/()^"


def tokens(text):
    """A list of (kind, value): number, name or op."""
    out = []
    i = 0
    while i < len(text):
        char = text[i]
        if char.isspace():
            i += 1
        elif char.isdigit():
            start = i
            while i < len(text) and (text[i].isdigit() or text[i] == "."):
                i += 1
            out.append(("number", float(text[start:i])))
        elif char.isalpha():
            start = i
            while i < len(text) and text[i].isalnum():
                i += 1
            out.append(("name", text[start:i]))
        elif char in OPERATORS:
            out.append(("op", char))
            i += 1
        else:
            raise SyntaxError(f"unexpected {char!r} at {i}")
    return out
''',
        "calc/evaluate.py": '''"""Tokens to a number."""

from calc.lexer import tokens


class Reader:
    def __init__(self, text, names):
        self.tokens = tokens(text)
        self.names = names
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self, *ops):
        kind, value = self.peek()
        if kind == "op" and value in ops:
            self.at += 1
            return value
        return None

    def sum(self):
        left = self.product()
        while op := self.take("+", "-"):
            right = self.product()
            left = left + right if op == "+" else left - right
        return left

    def product(self):
        left = self.power()
        while op := self.take("*", "/"):
            right = self.power()
            left = left * right if op == "*" else left / right
        return left

    def power(self):
        left = self.atom()
        if self.take("^"):
            return left ** self.power()
        return left

    def atom(self):
        if self.take("-"):
            return -self.atom()
        if self.take("("):
            inner = self.sum()
            if not self.take(")"):
                raise SyntaxError("missing )")
            return inner
        kind, value = self.peek()
        self.at += 1
        if kind == "number":
            return value
        if kind == "name":
            return self.names[value]
        raise SyntaxError(f"unexpected {value!r}")


def evaluate(text, names=None):
    """The value of an expression; names maps variables to numbers."""
    reader = Reader(text, names or {})
    value = reader.sum()
    if reader.peek()[0] != "end":
        raise SyntaxError(f"left over: {reader.peek()[1]!r}")
    return value
''',
    },
    tests="""import unittest

from calc import evaluate, tokens


class TestCalc(unittest.TestCase):
    def test_tokens(self):
        self.assertEqual(tokens("a1 + 2.5"), [("name", "a1"), ("op", "+"), ("number", 2.5)])

    def test_precedence(self):
        self.assertEqual(evaluate("2 + 3 * 4"), 14)

    def test_subtraction_goes_left(self):
        self.assertEqual(evaluate("10 - 3 - 2"), 5)

    def test_power_goes_right(self):
        self.assertEqual(evaluate("2 ^ 3 ^ 2"), 512)

    def test_division(self):
        self.assertEqual(evaluate("7 / 2"), 3.5)

    def test_parentheses_and_minus(self):
        self.assertEqual(evaluate("-(1 + 2) * 3"), -9)

    def test_names(self):
        self.assertEqual(evaluate("x * x + y", {"x": 3, "y": 1}), 10)

    def test_leftover(self):
        self.assertRaises(SyntaxError, evaluate, "1 2")
""",
    held_out="""import unittest

from calc import evaluate, tokens


class TestCalcHeldOut(unittest.TestCase):
    def test_agrees_with_python(self):
        for text in ("1+2*3-4/8", "(1+2)*(3-4)", "2*-3", "10-2-3+4", "100/5/2", "1.5*4"):
            self.assertAlmostEqual(evaluate(text), eval(text))

    def test_power(self):
        self.assertEqual(evaluate("2^2^3"), 256)
        self.assertEqual(evaluate("2*3^2"), 18)

    def test_errors(self):
        for text in ("", "(1", "1+", "1)", "1 $ 2"):
            self.assertRaises(SyntaxError, evaluate, text)
        self.assertRaises(KeyError, evaluate, "nope")

    def test_spaces(self):
        self.assertEqual(tokens("  7  "), [("number", 7.0)])
        self.assertEqual(evaluate(" ab * 2 ", {"ab": 4}), 8)
""",
    plants=(
        Plant("swapped operands", "calc/evaluate.py", 'op == "+" else left - right', 'op == "+" else right - left'),
        Plant("wrong call", "calc/evaluate.py", "return left ** self.power()", "return left ** self.atom()"),
        Plant("integer division", "calc/evaluate.py", "else left / right", "else left // right"),
        Plant("missing return", "calc/evaluate.py", "return -self.atom()", "-self.atom()"),
        Plant(
            "endless loop",
            "calc/lexer.py",
            "        if char.isspace():\n            i += 1",
            "        if char.isspace():\n            i += 0",
        ),
        Plant("inverted condition", "calc/evaluate.py", 'if not self.take(")")', 'if self.take(")")'),
    ),
)
