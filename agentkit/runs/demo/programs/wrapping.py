"""A demo program: filling text."""

from agentkit.runs.demo.program import Plant, Program

WRAPPING = Program(
    name="wrapping",
    about="Fills paragraphs of plain text to a width, with indents and justification.",
    files={
        "wrapping/__init__.py": '''"""Filling text."""

from wrapping.fill import fill, wrap
from wrapping.justify import center, justify

__all__ = ["center", "fill", "justify", "wrap"]
''',
        "wrapping/fill.py": '''"""Breaking paragraphs into lines."""


def split_long(word, width):
    """Pieces of a word, none longer than width."""
    return [word[i : i + width] for i in range(0, len(word), width)]


def wrap(text, width=20):
    """Lines of at most width characters, broken between words where possible."""
    if width < 1:
        raise ValueError("width must be positive")
    lines = []
    line = ""
    for word in text.split():
        for piece in split_long(word, width):
            if line and len(line) + 1 + len(piece) <= width:
                line = line + " " + piece
            else:
                if line:
                    lines.append(line)
                line = piece
    if line:
        lines.append(line)
    return lines


def fill(text, width=20, indent=""):
    """The paragraphs of text, filled, with indent before every line and one empty line between them."""
    room = width - len(indent)
    filled = []
    for paragraph in text.split("\\n\\n"):
        lines = [indent + line for line in wrap(paragraph, room)]
        if lines:
            filled.append("\\n".join(lines))
    return "\\n\\n".join(filled)
''',
        "wrapping/justify.py": '''"""Spreading words over a line."""


def justify(line, width):
    """The line stretched to exactly width: extra spaces go to the gaps on the left first."""
    words = line.split()
    if len(words) < 2:
        return line
    spaces = width - sum(len(word) for word in words)
    gaps = len(words) - 1
    each = spaces // gaps
    extra = spaces % gaps
    out = words[0]
    for number, word in enumerate(words[1:]):
        gap = each + (1 if number < extra else 0)
        out += " " * gap + word
    return out


def center(line, width):
    """The line in the middle; an odd space goes to the right."""
    left = (width - len(line)) // 2
    right = width - len(line) - left
    return " " * left + line + " " * right
''',
    },
    tests="""import unittest

from wrapping import center, fill, justify, wrap


class TestWrapping(unittest.TestCase):
    def test_breaks_between_words(self):
        self.assertEqual(wrap("the quick brown fox", 10), ["the quick", "brown fox"])

    def test_fills_the_line_to_the_last_column(self):
        self.assertEqual(wrap("ab cd", 5), ["ab cd"])

    def test_splits_long_words(self):
        self.assertEqual(wrap("abcdefgh", 3), ["abc", "def", "gh"])

    def test_paragraphs_and_indent(self):
        self.assertEqual(fill("one two\\n\\nthree", 6, "> "), "> one\\n> two\\n\\n> thre\\n> e")

    def test_justify(self):
        self.assertEqual(justify("a b c", 8), "a   b  c")

    def test_center(self):
        self.assertEqual(center("ab", 5), " ab  ")
""",
    held_out="""import unittest

from wrapping import center, fill, justify, wrap

TEXT = "It is a truth universally acknowledged that a single line in want of a width must be broken"


class TestWrappingHeldOut(unittest.TestCase):
    def test_no_line_is_too_long_and_no_word_is_lost(self):
        for width in range(1, 40):
            lines = wrap(TEXT, width)
            self.assertLessEqual(max(map(len, lines)), width)
            self.assertEqual("".join(lines).replace(" ", ""), TEXT.replace(" ", ""))

    def test_lines_are_as_full_as_can_be(self):
        lines = wrap(TEXT, 30)
        for one, two in zip(lines, lines[1:]):
            self.assertGreater(len(one) + 1 + len(two.split()[0]), 30)

    def test_justified_width(self):
        for width in range(12, 40):
            self.assertEqual(len(justify("a bb ccc dd", width)), width)
        self.assertEqual(justify("alone", 9), "alone")

    def test_empty(self):
        self.assertEqual(wrap(""), [])
        self.assertEqual(fill("\\n\\n\\n\\n"), "")
        self.assertRaises(ValueError, wrap, "x", 0)

    def test_center(self):
        self.assertEqual(center("abc", 3), "abc")
        self.assertEqual(center("abc", 6), " abc  ")
""",
    plants=(
        Plant("wrong comparison", "wrapping/fill.py", "len(piece) <= width", "len(piece) < width"),
        Plant(
            "dropped last item",
            "wrapping/fill.py",
            "    if line:\n        lines.append(line)\n    return",
            "    return",
        ),
        Plant("true division", "wrapping/justify.py", "(width - len(line)) // 2", "(width - len(line)) / 2"),
        Plant("off by one", "wrapping/justify.py", "gaps = len(words) - 1", "gaps = len(words)"),
        Plant("wrong name", "wrapping/fill.py", "for line in wrap(paragraph, room)]", "for line in wrap(text, room)]"),
    ),
)
