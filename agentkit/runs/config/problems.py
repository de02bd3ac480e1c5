"""What is wrong with a configuration: problems with a path, collected and told all at once."""

from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import TypeAlias, TypeVar

from attrs import evolve, frozen

from agentkit.errors import ConfigError

Path: TypeAlias = tuple[str | int, ...]

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")

_MOST = 50
_LONGEST = 2_000


@frozen
class Problem:
    """One thing that is wrong: where, and what. The text follows the path: `is unknown: did you mean 'seed'?`."""

    path: Path
    text: str


class Problems(Exception):
    """One or more problems, on their way to the `ConfigError` that tells them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    @classmethod
    def one(cls, text: str, *path: str | int) -> "Problems":
        """A single problem."""
        return cls((Problem(path, text),))

    def under(self, *path: str | int) -> "Problems":
        """The same problems, seen from further up."""
        return Problems(evolve(problem, path=(*path, *problem.path)) for problem in self.problems)


def collect(items: Iterable[tuple[str | int, ItemT]], make: Callable[[ItemT], MadeT]) -> list[MadeT]:
    """What `make` makes of each item, in order; the step of the path to an item stands before it.

    Raises:
        Problems: those of all items.
    """
    made: list[MadeT] = []
    problems: list[Problem] = []
    for step, item in items:
        try:
            made.append(make(item))
        except Problems as error:
            problems += error.under(step).problems
    if problems:
        raise Problems(problems)
    return made


def spell(path: Path) -> str:
    """The path as a person writes it: `agent.tools[1].seed`; a name that is not plain is quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("-", "_").isidentifier() and step.isascii():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r:.80}]"
    return text


def nearest(name: str, names: Collection[str], *, kind: str) -> str:
    """A hint at the name that was meant, or at those there are; `kind` is what they are called, in the plural."""
    close = get_close_matches(name, names, n=1) or get_close_matches(name.lower(), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return f"there are no {kind}"
    return f"the {kind} are {', '.join(sorted(names))}"


def shown(value: object) -> str:
    """What was found, in the words of YAML, short; a text from a variable as it was written."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {getattr(value, 'written', value)!r:.80}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return f"the number {value!r}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a mapping with {', '.join(sorted(map(repr, value)))[:120]}" if value else "an empty mapping"
    return f"{type(value).__name__} {value!r:.80}"


def tell(
    problems: Sequence[Problem], *, where: str, place: Callable[[Path], str | None], hide: Callable[[str], str]
) -> ConfigError:
    """The error that lists `problems`: `place` says where in the file a path is, `hide` takes secrets out of texts."""
    told = [_line(problem, place, hide) for problem in problems[:_MOST]]
    if len(problems) == 1:
        return ConfigError(f"{where}: {told[0]}")
    if len(problems) > _MOST:
        told.append(f"and {len(problems) - _MOST} more")
    return ConfigError("\n  ".join([f"{where} has {len(problems)} problems:", *told]))


def _line(problem: Problem, place: Callable[[Path], str | None], hide: Callable[[str], str]) -> str:
    at = place(problem.path)
    text = problem.text if len(problem.text) <= _LONGEST else f"{problem.text[:_LONGEST]}..."
    path = spell(problem.path)
    return hide(f"{path}{f' ({at})' if at else ''} {text}".strip())
