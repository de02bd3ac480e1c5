"""Projects in a folder of their own: a run.yaml, tasks, and modules whose names no other test has."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from agentkit.runs import RunConfig, load_config

PARTS = '''
import attrs
import agentkit as ak
from agentkit.sandbox import HostBackend


class Shop:
    """An env that notes what it was made with."""

    made = 0

    def __init__(self, seed: int = 0, items: list[str] = (), price: float = 1.0, backend: "HostBackend | None" = None):
        type(self).made += 1
        self.seed, self.items, self.price, self.backend = seed, items, price, backend

    async def start(self, task):
        return None

    async def close(self):
        pass


class Other(Shop):
    def __init__(self, size: int):
        super().__init__()
        self.size = size


@ak.tool
async def population(city: str) -> str:
    """The population of a city."""
    return city


class Judge:
    """A reward with state: one that judged twice says so."""

    def __init__(self, bonus: float = 0.0):
        self.bonus, self.judged = bonus, 0

    async def __call__(self, trajectory, env):
        self.judged += 1
        return self.bonus + self.judged


async def score(trajectory, env, *, threshold: float = 0.5) -> float:
    return threshold


def plain_score(trajectory, env):
    return 1.0


async def careful(rollout, every: int = 3):
    async for action in rollout:
        await rollout.act(action)


@attrs.frozen
class Size:
    width: int = attrs.field(validator=attrs.validators.gt(0))
    height: int = 1


class Sized(Shop):
    def __init__(self, size: Size, sizes: "list[Size]" = ()):
        super().__init__()
        self.size, self.sizes = size, sizes
'''

CONFIG = """
name: counting
model: {use: scripted, script: ["Hello."]}
agent:
  env: {use: "PARTS:Shop", seed: 3}
  tools: ["PARTS:population", finish]
  reward: exact-match
  loop: react
  budget: {trajectory_s: 600, max_turns: 20}
  params: {temperature: 1.0}
  outcomes: mask_abnormal
dataset: {path: tasks.jsonl, limit: 100, shuffle: 7}
pool: {max_rollouts: 64, max_starts: 16, group_size: 8}
"""

_numbers = count()


class Project:
    """A folder with a module of parts and a few tasks, and a way to load YAML text from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = self.module(PARTS)
        self.tasks([{"id": "a", "prompt": "Go."}, {"id": "b", "prompt": "Go."}])

    def module(self, code: str) -> str:
        name = f"parts_of_test_{next(_numbers)}"
        (self.folder / f"{name}.py").write_text(code)
        return name

    def tasks(self, rows: list[Mapping[str, object]], name: str = "tasks.jsonl") -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(self, text: str = CONFIG) -> Path:
        path = self.folder / "run.yaml"
        path.write_text(text.replace("PARTS", self.parts))
        return path

    def load(self, text: str = CONFIG, **options: object) -> RunConfig:
        return load_config(self.write(text), environ=options.pop("environ", {}), **options)

    def imported(self) -> object:
        return sys.modules[self.parts]


@pytest.fixture(scope="session")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Project]]:
    before = list(sys.path)
    yield lambda: Project(tmp_path_factory.mktemp("project"))
    sys.path[:] = before


@pytest.fixture
def project(new_project: Callable[[], Project]) -> Project:
    return new_project()


@pytest.fixture(scope="module")
def shared_project(new_project: Callable[[], Project]) -> Project:
    """One for all examples of a property."""
    return new_project()
