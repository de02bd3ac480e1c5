"""The demo's tasks: small repositories, each with one or two planted bugs and a test suite that shows them."""

import ast
from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest
from random import Random

from agentkit.errors import ConfigError, InvariantError
from agentkit.protocols.messages import system, user
from agentkit.protocols.task import Task
from agentkit.runs.demo.program import Plant, Program
from agentkit.runs.demo.programs import PROGRAMS

HARD_EVERY = 6
"""One task in so many has two bugs."""

_SYSTEM = (
    "You fix bugs in small Python repositories. You work in a shell; the repository is its working directory. "
    "Call one tool at a time. When the tests pass, or you are out of ideas, call submit."
)


def demo_tasks(n: int = 36, *, seed: int = 0) -> tuple[Task, ...]:
    """`n` different tasks, the same for the same seed; programs take turns, and every sixth task has two bugs.

    `task.data` holds `files` (the repository, bugs and visible tests included), `visible_tests` (paths),
    `hidden_tests` (text by path, for the grader alone) and `hidden_count` (how many tests those hold).

    Raises:
        ConfigError: `n` is negative, or more than there are different tasks.
    """
    dice = Random(seed)
    easy = _take_turns([[(program, (plant,)) for plant in program.plants] for program in PROGRAMS], dice)
    hard = _take_turns([[(program, pair) for pair in _pairs(program)] for program in PROGRAMS], dice)
    if not 0 <= n <= len(easy) + len(hard):
        raise ConfigError(f"n must be from 0 to {len(easy) + len(hard)} different demo tasks, found {n!r}")
    chosen = []
    for number in range(n):
        pile = hard if hard and (number % HARD_EVERY == HARD_EVERY - 1 or not easy) else easy
        chosen.append(pile.pop(0))
    return tuple(_task(number, program, plants) for number, (program, plants) in enumerate(chosen))


def _take_turns(
    piles: list[list[tuple[Program, tuple[Plant, ...]]]], dice: Random
) -> list[tuple[Program, tuple[Plant, ...]]]:
    """All entries: one of each pile, then another of each, each pile and the order of piles shuffled."""
    for pile in piles:
        dice.shuffle(pile)
    dice.shuffle(piles)
    return [entry for row in zip_longest(*piles) for entry in row if entry is not None]


def _pairs(program: Program) -> Iterator[tuple[Plant, Plant]]:
    """Two plants of a program that do not touch the same text."""
    for one, two in combinations(program.plants, 2):
        try:
            two.apply(one.apply(program.files))
            one.apply(two.apply(program.files))
        except InvariantError:
            continue
        yield one, two


def _task(number: int, program: Program, plants: Sequence[Plant]) -> Task:
    files = dict(program.files)
    for plant in plants:
        files = plant.apply(files)
    files[".gitignore"] = "__pycache__/\n"
    files["README.md"] = f"# {program.name}\n\n{program.about}\n\nTests: `python3 -m unittest`\n"
    files["tests/__init__.py"] = ""
    files[program.test_path] = program.tests
    hidden = {"visible.py": program.tests, "held_out.py": program.held_out}
    words = "A test fails" if len(plants) == 1 else "More than one thing is broken and tests fail"
    return Task(
        id=f"{number:02d}-{program.name}",
        messages=(
            system(_SYSTEM),
            user(
                f"Repository {program.name} (ticket {number:02d}). {program.about} {words} in {program.test_path}: "
                f"run them with `python3 -m unittest`. Mend the package {program.name}/ so that they pass. "
                "Your work is judged by these tests and others that you cannot see; changes to the tests do not count."
            ),
        ),
        data={
            "files": files,
            "visible_tests": (program.test_path,),
            "hidden_tests": hidden,
            "hidden_count": sum(_count_tests(text) for text in hidden.values()),
        },
        metadata={"program": program.name, "kinds": tuple(plant.kind for plant in plants)},
    )


def _count_tests(text: str) -> int:
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for top in ast.parse(text).body
        if isinstance(top, ast.ClassDef)
        for node in top.body
    )
