"""Where a bug may be: lines of the sources weighed by what the test report says."""

import ast
import re
from collections.abc import Iterator, Mapping

from attrs import frozen

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
_WORD = re.compile(r"[A-Za-z_]\w*")

ANYWHERE = 0.2
"""What a line weighs that nothing speaks against."""


@frozen
class Function:
    """A function of a source file, its lines (1-based, both included) and what it mentions."""

    file: str
    name: str
    owner: str
    first: int
    last: int
    mentions: frozenset[str]
    node: ast.FunctionDef | ast.AsyncFunctionDef


@frozen
class Frame:
    """A line of a source file in a traceback; `innermost` is where the error came up."""

    file: str
    line: int
    innermost: bool


def functions(sources: Mapping[str, str]) -> tuple[Function, ...]:
    """The functions of all sources that parse, inner ones included."""
    found = []
    for file, text in sources.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        owners = {
            id(child): node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                last = node.end_lineno or node.lineno
                body = "\n".join(text.split("\n")[node.lineno : last])
                mentions = frozenset(_WORD.findall(body))
                found.append(Function(file, node.name, owners.get(id(node), ""), node.lineno, last, mentions, node))
    return tuple(found)


def frames(sources: Mapping[str, str], report: str) -> tuple[Frame, ...]:
    """The frames of all tracebacks that lie in the sources, in the order printed."""
    found: list[Frame] = []
    hits = list(_FRAME.finditer(report))
    for number, hit in enumerate(hits):
        file = next((path for path in sources if hit.group(1).endswith("/" + path) or hit.group(1) == path), None)
        if file is None:
            continue
        until = hits[number + 1].start() if number + 1 < len(hits) else len(report)
        # another test's report begins with a ruler
        innermost = number + 1 == len(hits) or "\n======" in report[hit.end() : until]
        found.append(Frame(file, int(hit.group(2)), innermost))
    return tuple(found)


def weigh_lines(sources: Mapping[str, str], report: str, known: tuple[Function, ...]) -> dict[tuple[str, int], float]:
    """How suspicious each line of code is, by (file, line); lines that are not code are left out."""
    traced = frames(sources, report)
    asserted = frozenset(_WORD.findall("\n".join(_assert_lines(report))))
    tested = frozenset(word for name in re.findall(r"\btest_(\w+)", report) for word in name.split("_"))
    scores = [_first_score(function, traced, asserted, tested) for function in known]
    for share in (0.5, 0.25):
        scores = [
            max(
                [scores[i]]
                + [share * scores[k] for k, caller in enumerate(known) if k != i and function.name in caller.mentions]
            )
            for i, function in enumerate(known)
        ]
    weights = {(file, line): ANYWHERE for file, text in sources.items() for line in _code_lines(text)}
    for function, score in zip(known, scores, strict=True):
        for line in range(function.first, function.last + 1):
            if (function.file, line) in weights:
                weights[function.file, line] = max(weights[function.file, line], score)
    for frame in traced:
        if (frame.file, frame.line) in weights:
            weights[frame.file, frame.line] += 2.0 if frame.innermost else 1.0
    return weights


def _first_score(
    function: Function, traced: tuple[Frame, ...], asserted: frozenset[str], tested: frozenset[str]
) -> float:
    score = ANYWHERE
    if function.name in asserted:
        score += 3.0
    if function.owner and function.owner in asserted:
        score += 1.0
    if function.name.strip("_") in tested:
        score += 1.0
    inside = [f for f in traced if f.file == function.file and function.first <= f.line <= function.last]
    if inside:
        score += 3.0 if any(frame.innermost for frame in inside) else 1.5
    return score


def _assert_lines(report: str) -> Iterator[str]:
    for line in report.split("\n"):
        if line.startswith("    ") and ("assert" in line or "self." in line):
            yield line


def _code_lines(text: str) -> Iterator[int]:
    quoted = False
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        ends_other_way = bare.count('"""') % 2 == 1
        if not quoted and bare and not bare.startswith(('"""', "#", "import ", "from ", "class ", "@", "__all__")):
            yield number
        if ends_other_way:
            quoted = not quoted
