"""What a Google-style docstring says about a function and its parameters."""

import re
from collections.abc import Mapping
from itertools import pairwise

_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?"
    r"|Notes?|Cancellation|Attributes|Warnings?|See Also):"
)
_ENTRY = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_ARGUMENTS = ("Args", "Arguments", "Parameters")


def describe(docstring: str) -> tuple[str, Mapping[str, str]]:
    """The text before the first section, and the description of each parameter by name."""
    lines = docstring.splitlines()
    heads = [index for index, line in enumerate(lines) if _SECTION.match(line)]
    summary = "\n".join(lines[: heads[0]] if heads else lines).strip()
    described: dict[str, str] = {}
    for head, end in pairwise([*heads, len(lines)]):
        if lines[head].partition(":")[0] in _ARGUMENTS:
            described.update(_entries(lines[head + 1 : end]))
    return summary, described


def _entries(lines: list[str]) -> dict[str, str]:
    described: dict[str, str] = {}
    name, indent = "", None
    for line in lines:
        text = line.strip()
        if not text:
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        entry = _ENTRY.match(text) if depth <= indent else None
        if entry:
            name = entry[1]
            described[name] = entry[2]
        elif name:
            described[name] = f"{described[name]} {text}".strip()
    return described
