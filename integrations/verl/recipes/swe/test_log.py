"""What pytest said of each test: its short summary, as `-rA` prints it, read back."""

import re
from collections.abc import Mapping
from typing import Final

STATUSES: Final = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_HEADER: Final = re.compile(r"^=+ short test summary info =+\s*$", re.MULTILINE)
_LINE: Final = re.compile(rf"^({'|'.join(STATUSES)}) (\S.*)$")
_COUNTED: Final = re.compile(r"\[\d+\] ")  # SKIPPED [2] file:line: reason, which names no test


def results_of(output: str) -> dict[str, str]:
    """{id of a test: status} of the last short summary in `output`; empty where there is none.

    What was printed before the summary, by tests for one, is not looked at. A later line about the same test wins.
    """
    output = _COLOURS.sub("", output.replace("\r", ""))
    headers = list(_HEADER.finditer(output))
    if not headers:
        return {}
    found: dict[str, str] = {}
    for line in output[headers[-1].end() :].splitlines():
        if (match := _LINE.match(line)) and not _COUNTED.match(match[2]):
            found[match[2].split(" - ")[0].rstrip()] = match[1]
    return found


def dotted(test_id: str) -> str:
    """The name that R2E-Gym has for a test: what is behind the file, with dots; the id itself where it has no file."""
    file, separator, name = _COLOURS.sub("", test_id).split(" - ")[0].partition("::")
    return name.replace("::", ".") if separator else file


def agree(found: Mapping[str, str], expected: Mapping[str, str], *, all_tests: bool) -> int:
    """How many tests of `expected` have the status expected of them.

    With `all_tests` names are `dotted` on both sides, as R2E-Gym compares them. Otherwise an id may be cut at its
    first blank, as the logs that SWE-bench's datasets were made from had it: then all tests that it may stand for must
    have the status. Where PASSED is expected XFAIL will do.
    """
    if all_tests:
        names = {dotted(name): status for name, status in found.items()}
        return sum(names.get(dotted(name)) == status for name, status in expected.items())
    return sum(all(_fits(status, wanted) for status in _statuses(found, name)) for name, wanted in expected.items())


def _statuses(found: Mapping[str, str], name: str) -> list[str]:
    if name in found:
        return [found[name]]
    return [status for full, status in found.items() if full.split(" ")[0] == name] or ["MISSING"]


def _fits(status: str, wanted: str) -> bool:
    return status == wanted or (wanted == "PASSED" and status == "XFAIL")
