"""Why rollouts went wrong, in one line each, so that a run that fails all over can say so at its end."""

import re
from collections import Counter
from collections.abc import Callable

from agentkit.protocols import GradeStatus, Trajectory

OTHERS = "(others)"

_CHARACTERS = 300
_KINDS = 100
_MODULE = re.compile(r"[\w.]+\.(?=\w+(:|$))")


def causes(trajectory: Trajectory, *, redact: Callable[[str], str] = str) -> tuple[str, ...]:
    """What ended `trajectory`, and what kept it from a score: the exception that was raised, without its traceback.

    `redact` takes secrets out of the whole text before any of it is cut.
    """
    found = []
    if trajectory.error:
        found.append(f"{trajectory.exit_reason.value}: {_raised(redact(trajectory.error))}")
    grade = trajectory.grade
    if grade is not None and grade.error and grade.status in (GradeStatus.ERROR, GradeStatus.TIMEOUT):
        found.append(f"reward: {_raised(redact(grade.error))}")
    return tuple(found)


def count_causes(counts: "Counter[str]", found: tuple[str, ...]) -> None:
    """Add `found` to `counts`, which stays bounded: messages may hold numbers that never come twice."""
    for cause in found:
        counts[cause if cause in counts or len(counts) < _KINDS else OTHERS] += 1


def _raised(text: str) -> str:
    """The first line of what was raised last, of a traceback or of a bare message."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    last_frame = max((number for number, line in enumerate(lines) if line.startswith('  File "')), default=-1)
    after = (line for line in lines[last_frame + 1 :] if not line.startswith(" "))
    line = next(after, lines[-1]).strip()
    line = _MODULE.sub("", line, count=1) if _MODULE.match(line) else line
    return line if len(line) <= _CHARACTERS else line[: _CHARACTERS - 1] + "…"
