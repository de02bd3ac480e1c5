"""A demo program: comma-separated values."""

from agentkit.runs.demo.program import Plant, Program

CSVLITE = Program(
    name="csvlite",
    about="Comma-separated values with quotes: reading, writing and records by header.",
    files={
        "csvlite/__init__.py": '''"""Comma-separated values."""

from csvlite.read import parse, records
from csvlite.write import dump

__all__ = ["dump", "parse", "records"]
''',
        "csvlite/read.py": '''"""Text to rows."""


def split_line(line, separator=","):
    """The fields of one line; inside quotes a doubled quote stands for one."""
    fields = []
    field = ""
    quoted = False
    i = 0
    while i < len(line):
        char = line[i]
        if quoted:
            if char == '"' and line[i + 1 : i + 2] == '"':
                field += char
                i += 1
            elif char == '"':
                quoted = False
            else:
                field += char
        elif char == '"':
            quoted = True
        elif char == separator:
            fields.append(field)
            field = ""
        else:
            field += char
        i += 1
    fields.append(field)
    return fields


def parse(text, separator=","):
    """The rows of text; empty lines are left out."""
    return [split_line(line, separator) for line in text.splitlines() if line.strip()]


def records(text, separator=","):
    """The rows after the first as dicts by header; short rows are filled up with empty strings."""
    rows = parse(text, separator)
    if not rows:
        return []
    header = [name.strip().lower() for name in rows[0]]
    out = []
    for row in rows[1:]:
        missing = len(header) - len(row)
        out.append(dict(zip(header, row + [""] * missing)))
    return out
''',
        "csvlite/write.py": '''"""Rows to text."""


def quote(field, separator=","):
    """The field as it must be written."""
    text = str(field)
    if separator in text or '"' in text:
        return '"' + text.replace('"', '""') + '"'
    return text


def dump(rows, separator=","):
    """One line a row, with a line end after each."""
    return "".join(separator.join(quote(field, separator) for field in row) + "\\n" for row in rows)
''',
    },
    tests='''import unittest

from csvlite import dump, parse, records


class TestCsvlite(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(parse("a,b\\n\\n1,2\\n"), [["a", "b"], ["1", "2"]])

    def test_quotes(self):
        self.assertEqual(parse('"a,b","say ""hi"""'), [["a,b", 'say "hi"']])

    def test_last_empty_field(self):
        self.assertEqual(parse("a,"), [["a", ""]])

    def test_records(self):
        self.assertEqual(records("Name , Age\\nann,3\\nbob"), [{"name": "ann", "age": "3"}, {"name": "bob", "age": ""}])

    def test_no_records(self):
        self.assertEqual(records(""), [])

    def test_dump(self):
        self.assertEqual(dump([["a,b", 1], ['"', "x"]]), '"a,b",1\\n"""",x\\n')

    def test_other_separator(self):
        self.assertEqual(dump([["a;b", "c,d"]], ";"), '"a;b";c,d\\n')
''',
    held_out="""import unittest

from csvlite import dump, parse, records


class TestCsvliteHeldOut(unittest.TestCase):
    def test_round_trip(self):
        rows = [["", "x"], ['a "quoted" word', "comma, here"], ['"', ","], ["plain", "end"]]
        for separator in (",", ";", "|"):
            self.assertEqual(parse(dump(rows, separator), separator), rows)

    def test_empty(self):
        self.assertEqual(parse(""), [])
        self.assertEqual(parse("\\n \\n"), [])
        self.assertEqual(records("\\n"), [])

    def test_records(self):
        self.assertEqual(records(" A |B\\n1|2\\n3", "|"), [{"a": "1", "b": "2"}, {"a": "3", "b": ""}])

    def test_empty_fields(self):
        self.assertEqual(parse(",,"), [["", "", ""]])
""",
    plants=(
        Plant("missing edge case", "csvlite/read.py", "    if not rows:\n        return []\n", ""),
        Plant("forgotten strip", "csvlite/read.py", "[name.strip().lower() for", "[name.lower() for"),
        Plant("wrong operator", "csvlite/write.py", "separator in text or '\"'", "separator in text and '\"'"),
        Plant("dropped last item", "csvlite/read.py", "        i += 1\n    fields.append(field)\n", "        i += 1\n"),
        Plant("off by one", "csvlite/read.py", "line[i + 1 : i + 2]", "line[i + 1 : i + 1]"),
        Plant("inverted condition", "csvlite/read.py", "if line.strip()]", "if not line.strip()]"),
    ),
)
