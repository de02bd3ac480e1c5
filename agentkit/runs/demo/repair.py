"""What might mend a bug: small edits of suspicious lines, the likeliest first.

Nothing here knows the demo's programs. An edit's weight is how suspicious its line is plus how common that kind of slip
is; what the error message names (a missing name, attribute or key, a float where an int was wanted) weighs more.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from attrs import frozen

from agentkit.runs.demo.suspicion import ANYWHERE, Function, frames, functions, weigh_lines

_TOKEN = re.compile(
    r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\d+\.\d+|\d+|[A-Za-z_]\w*|\*\*|//|<=|>=|==|!=|:=|[-+*/]=|[-+*/<>=]|\S"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_STRING = re.compile(r"(['\"])(\w+)\1")

_FLIPS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "<": (("<=", 3.0), (">", 2.0)),
    "<=": (("<", 3.0), (">=", 2.0)),
    ">": ((">=", 3.0), ("<", 2.0)),
    ">=": ((">", 3.0), ("<=", 2.0)),
    "==": (("!=", 2.5),),
    "!=": (("==", 2.5),),
    "+": (("-", 2.5),),
    "-": (("+", 2.5),),
    "/": (("//", 2.0),),
    "//": (("/", 2.0),),
    "and": (("or", 2.8),),
    "or": (("and", 2.8),),
    "min": (("max", 2.5),),
    "max": (("min", 2.5),),
    "True": (("False", 1.5),),
    "False": (("True", 1.5),),
    "+=": (("-=", 2.5), ("=", 1.0)),
    "-=": (("+=", 2.5),),
}

_ENDS_OPERAND = re.compile(r"[\w)\]\"']$")
_KEYWORDS = frozenset(
    [
        "and",
        "as",
        "assert",
        "async",
        "await",
        "break",
        "class",
        "continue",
        "def",
        "del",
        "elif",
        "else",
        "except",
        "finally",
        "for",
        "from",
        "if",
        "import",
        "in",
        "is",
        "lambda",
        "None",
        "not",
        "or",
        "pass",
        "raise",
        "return",
        "try",
        "while",
        "with",
        "yield",
        "True",
        "False",
        "self",
    ]
)


@frozen
class Edit:
    """Replace `drop` lines of `file`, from `line` (1-based), by `new`."""

    file: str
    line: int
    drop: int
    new: tuple[str, ...]


def propose(sources: Mapping[str, str], report: str) -> tuple[Edit, ...]:
    """Edits that might mend what `report` shows, likeliest first, none twice; total on any text."""
    known = functions(sources)
    weights = weigh_lines(sources, report, known)
    best: dict[Edit, float] = {}
    for edit, prior in _edits(sources, report, known, weights):
        weight = prior + weights.get((edit.file, edit.line), ANYWHERE)
        if weight > best.get(edit, 0.0):
            best[edit] = weight
    return tuple(sorted(best, key=lambda edit: -best[edit]))


def _edits(
    sources: Mapping[str, str],
    report: str,
    known: tuple[Function, ...],
    weights: Mapping[tuple[str, int], float],
) -> Iterator[tuple[Edit, float]]:
    lines = {file: text.split("\n") for file, text in sources.items()}
    for file, number in weights:
        line = lines[file][number - 1]
        for new, prior in (*_token_edits(line), *_shape_edits(line)):
            yield Edit(file, number, 1, (new,)), prior
    for function in known:
        for edit, prior in _function_edits(function, lines[function.file], report):
            yield edit, prior
    yield from _named_edits(lines, weights, report)
    yield from _guards(sources, lines, report)


def _token_edits(line: str) -> Iterator[tuple[str, float]]:
    """One token changed."""
    if line.lstrip().startswith(("def ", "async def ")):
        return
    before = ""
    for hit in _TOKEN.finditer(line):
        text, start, end = hit.group(), hit.start(), hit.end()
        head, tail = line[:start], line[end:]
        if text == "-" and not (_ENDS_OPERAND.search(before) and before not in _KEYWORDS):
            yield head + tail.lstrip(), 1.5
        else:
            for other, prior in _FLIPS.get(text, ()):
                yield head + other + tail, prior
        if text == "is" and not tail.lstrip().startswith("not "):
            yield f"{head}is not{tail}", 2.2
        if text == "not":
            yield head + tail.lstrip(), 2.5
        if text in ("if", "elif", "while") and not tail.lstrip().startswith("not "):
            yield f"{head}{text} not{tail}", 2.2 if head.strip() == "" else 1.2
        if text.isascii() and text.isdecimal() and len(text) < 10:
            yield f"{head}{int(text) + 1}{tail}", 2.2
            if int(text) > 0:
                yield f"{head}{int(text) - 1}{tail}", 2.2
        if text == "=" and head.count("(") == head.count(")"):
            yield f"{head}+={tail}", 0.9
        if (text == ")" or (text.isidentifier() and text not in _KEYWORDS)) and tail[:1] in ("]", ")", "", ","):
            for step in (" - 1", " + 1"):
                yield head + text + step + tail, 1.5 if tail[:1] == "]" else 1.0
        if before in ("(", ":") and (text.isidentifier() and text not in _KEYWORDS):
            yield f"{head}-{text}{tail}", 0.4
        before = text


_SIMPLE = r"[\w.]+(?:\([\w., ]*\))?(?:\[[\w .+-]*\])*"
_ARGUMENTS = re.compile(rf"(?<=[(,\s])({_SIMPLE}), ({_SIMPLE})(?=[,)])")
_DIFFERENCE = re.compile(rf"({_SIMPLE}) - ({_SIMPLE})")
_SUBSCRIPTS = re.compile(r"\[(\w+)\]\[(\w+)\]")
_UNCLOSED_MEAN = re.compile(rf"({_SIMPLE} [+-] {_SIMPLE}) (//?) ")


def _shape_edits(line: str) -> Iterator[tuple[str, float]]:
    """Two things swapped, or a call that is commonly forgotten or half written."""
    bare = line.lstrip()
    if bare.startswith(("def ", "async def ", "for ")):
        return
    for pattern, join, prior in ((_ARGUMENTS, ", ", 2.4), (_DIFFERENCE, " - ", 2.6)):
        for hit in pattern.finditer(line):
            yield line[: hit.start()] + hit.group(2) + join + hit.group(1) + line[hit.end() :], prior
    for hit in _SUBSCRIPTS.finditer(line):
        yield f"{line[: hit.start()]}[{hit.group(2)}][{hit.group(1)}]{line[hit.end() :]}", 1.5
    for hit in _UNCLOSED_MEAN.finditer(line):
        yield f"{line[: hit.start()]}({hit.group(1)}) {hit.group(2)} {line[hit.end() :]}", 1.8
    for wrong, right, prior in (
        (".upper()", ".strip().upper()", 1.8),
        (".lower()", ".strip().lower()", 1.8),
        (".pop()", ".pop(0)", 2.4),
        (".pop(0)", ".pop()", 2.4),
        ("return ", "return await ", 0.1),
    ):
        if wrong in line and right not in line:
            yield line.replace(wrong, right, 1), prior
    if re.fullmatch(r"return \w+", bare):
        yield line + "[::-1]", 0.8


def _function_edits(function: Function, lines: list[str], report: str) -> Iterator[tuple[Edit, float]]:
    """What needs to see a whole function: shared defaults, returns and awaits that are missing, other names."""
    node, file = function.node, function.file
    head = lines[function.first - 1]
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    for hit in re.finditer(r"(\w+)=(\[\]|\{\}|set\(\)|dict\(\)|list\(\))", head):
        name, value = hit.group(1), hit.group(2)
        fixed = f"{head[: hit.start()]}{name}=None{head[hit.end() :]}"
        yield Edit(file, function.first, 1, (fixed, f"{indent}{name} = {value} if {name} is None else {name}")), 9.0
    nothing = "None" in report
    for statement in ast.walk(node):
        if isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant):
            line = lines[statement.lineno - 1]
            space = line[: len(line) - len(line.lstrip())]
            called = isinstance(statement.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom)
            yield (
                Edit(file, statement.lineno, 1, (f"{space}return {line.lstrip()}",)),
                (1.0 if nothing else 0.1) if called else 8.0,
            )
    returned = [r.value for r in ast.walk(node) if isinstance(r, ast.Return) and r.value is not None]
    if returned and not isinstance(node.body[-1], ast.Return | ast.Raise):
        for value in ("True", "False", "0", "[]"):
            again = 1.0 if any(isinstance(r, ast.Constant) and str(r.value) == value for r in returned) else 0.0
            prior = 1.0 + again + (1.5 if nothing else 0.0) + (0.5 if value == "True" else 0.0)
            last = lines[function.last - 1]
            yield Edit(file, function.last, 1, (last, f"{indent}return {value}")), prior
    if isinstance(node, ast.AsyncFunctionDef) and "await" in report:
        for number in range(function.first + 1, function.last + 1):
            line = lines[number - 1]
            for word in ("return ", "= ", "append("):
                if word in line and "await" not in line:
                    yield Edit(file, number, 1, (line.replace(word, f"{word}await ", 1),)), 8.0
    yield from _other_names(function, lines)


def _other_names(function: Function, lines: list[str]) -> Iterator[tuple[Edit, float]]:
    """A variable of the function in place of another."""
    node = function.node
    own = sorted(
        {argument.arg for argument in node.args.args}
        | {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)} - {"_"}
    )
    for name in ast.walk(node):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and name.id in own and name.id != "self":
            line = lines[name.lineno - 1]
            if not line.isascii():  # columns are bytes
                continue
            for other in own:
                if other not in (name.id, "self"):
                    near = 0.7 if set(other.split("_")) & set(name.id.split("_")) or other[0] == name.id[0] else 0.0
                    fixed = line[: name.col_offset] + other + line[name.col_offset + len(name.id) :]
                    yield Edit(function.file, name.lineno, 1, (fixed,)), 0.7 + near


_NAMED = re.compile(r"name '(\w+)' is not defined|has no attribute '(\w+)'|KeyError: '(\w+)'")
_FLOAT = re.compile(r"'float' object cannot be|non-int of type 'float'|indices must be integers")


def _named_edits(
    lines: Mapping[str, list[str]], weights: Mapping[tuple[str, int], float], report: str
) -> Iterator[tuple[Edit, float]]:
    """What the error message points at."""
    everything = "\n".join("\n".join(text) for text in lines.values())
    words = sorted(set(_WORD.findall(everything)) - _KEYWORDS)
    keys = sorted({hit[1] for hit in _STRING.findall(everything)})
    for hit in dict.fromkeys(_NAMED.findall(report)):
        wrong = next(filter(None, hit))
        among = keys if hit[2] else words
        for rank, right in enumerate(get_close_matches(wrong, [w for w in among if w != wrong], n=3, cutoff=0.5)):
            for file, number in weights:
                line = lines[file][number - 1]
                if re.search(rf"\b{wrong}\b", line):
                    yield Edit(file, number, 1, (re.sub(rf"\b{wrong}\b", right, line),)), 10.0 - rank
    if "KeyError" in report:
        for frame in frames(dict.fromkeys(lines, ""), report):
            line = lines[frame.file][frame.line - 1] if 0 < frame.line <= len(lines[frame.file]) else ""
            for found in re.finditer(r"(\w+)\[(\w+)\]", line):
                for default in ("{}", "0", "()"):
                    got = f"{found.group(1)}.get({found.group(2)}, {default})"
                    yield Edit(frame.file, frame.line, 1, (line[: found.start()] + got + line[found.end() :],)), 4.0
    if _FLOAT.search(report):
        for file, number in weights:
            line = lines[file][number - 1]
            if " / " in line:
                yield Edit(file, number, 1, (line.replace(" / ", " // "),)), 8.0


_EMPTY = re.compile(r"IndexError|ZeroDivisionError|'NoneType' object|ValueError: (?:min|max)\(\)|StopIteration")


def _guards(sources: Mapping[str, str], lines: Mapping[str, list[str]], report: str) -> Iterator[tuple[Edit, float]]:
    """An early return, before a traced line, for a value that is empty."""
    if not _EMPTY.search(report):
        return
    for frame in dict.fromkeys(frames(sources, report)):
        if not 0 < frame.line <= len(lines[frame.file]):
            continue
        line = lines[frame.file][frame.line - 1]
        space = line[: len(line) - len(line.lstrip())]
        if not space or line.lstrip().startswith(("elif", "else", "except", ")", "]")):
            continue
        divisors = re.findall(r"/ (len\(\w+\)|\w+)", line) if "ZeroDivision" in report else []
        names = divisors or [n for n in dict.fromkeys(_WORD.findall(line)) if n not in _KEYWORDS and n.islower()]
        for rank, name in enumerate(names[:5]):
            for order, value in enumerate(("[]", "0", "None", "False")):
                guard = f"{space}if not {name}:"
                yield (
                    Edit(frame.file, frame.line, 1, (guard, f"{space}    return {value}", line)),
                    4.5 - 0.3 * rank - 0.1 * order,
                )
