"""The demo's tasks: different, deterministic, broken as said, and mendable."""

import json
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, InvariantError
from agentkit.protocols import Task
from agentkit.runs.demo import demo_tasks
from agentkit.runs.demo.program import Plant
from agentkit.runs.demo.programs import PROGRAMS

AllPass = Callable[[Sequence[tuple[Mapping[str, str], str]]], list[bool]]


def test_all_tasks_differ_and_programs_are_many() -> None:
    tasks = demo_tasks(36)
    assert len({json.dumps(task.data["files"], sort_keys=True) for task in tasks}) == 36
    assert len({task.id for task in tasks}) == 36
    assert len({task.metadata["program"] for task in tasks}) >= 12
    assert sum(len(task.metadata["kinds"]) == 2 for task in tasks) == 6  # type: ignore[arg-type]  # a tuple


@given(st.integers(0, 20), st.integers())
def test_a_seed_fixes_the_tasks(n: int, seed: int) -> None:
    assert demo_tasks(n, seed=seed) == demo_tasks(n, seed=seed)
    assert demo_tasks(n, seed=seed) == demo_tasks(20, seed=seed)[:n]


def test_seeds_give_other_tasks() -> None:
    assert demo_tasks(12, seed=0) != demo_tasks(12, seed=1)


@pytest.mark.parametrize("n", [-1, 100_000])
def test_too_many_tasks_are_refused(n: int) -> None:
    with pytest.raises(ConfigError, match="different demo tasks"):
        demo_tasks(n)


def test_every_task_there_is_differs() -> None:
    with pytest.raises(ConfigError) as error:
        demo_tasks(-1)
    most = int(str(error.value).split(" different")[0].rsplit(" ", 1)[1])
    tasks = demo_tasks(most)
    assert len({json.dumps(task.data["files"], sort_keys=True) for task in tasks}) == most > 200


def test_the_policy_is_shown_neither_bugs_nor_hidden_tests() -> None:
    for task in demo_tasks(36):
        shown = "\n".join(message.content for message in task.messages) + json.dumps(task.data["files"])
        program = next(each for each in PROGRAMS if each.name == task.metadata["program"])
        assert program.held_out not in json.loads(json.dumps(task.data["files"])).values()
        assert "HeldOut" not in shown
        assert not any(kind in shown for kind in ("wrong comparison", "off by one", "missing edge case"))


def test_a_plant_must_find_its_place_once() -> None:
    with pytest.raises(InvariantError, match="2 times"):
        Plant("x", "a.py", "one", "two").apply({"a.py": "one one"})


@pytest.mark.slow
def test_programs_pass_and_every_plant_fails(all_pass: AllPass) -> None:
    cases = [(program.files, tests) for program in PROGRAMS for tests in (program.tests, program.held_out)]
    assert all_pass(cases) == [True] * len(cases)
    plants = [(program, plant) for program in PROGRAMS for plant in program.plants]
    answers = all_pass([(plant.apply(program.files), program.tests) for program, plant in plants])
    unseen = [(program.name, plant) for (program, plant), passed in zip(plants, answers, strict=True) if passed]
    assert unseen == []


@pytest.mark.slow
def test_two_bugs_fail_as_well(all_pass: AllPass) -> None:
    tasks = [task for seed in range(3) for task in demo_tasks(72, seed=seed) if len(_kinds(task)) == 2]
    cases = []
    for task in tasks:
        files, hidden = task.data["files"], task.data["hidden_tests"]
        assert isinstance(files, dict)
        assert isinstance(hidden, dict)
        cases.append((files, hidden["visible.py"]))
    assert all_pass(cases) == [False] * len(cases)


def _kinds(task: Task) -> tuple[object, ...]:
    kinds = task.metadata["kinds"]
    assert isinstance(kinds, tuple)
    return kinds
