"""Agents as verl's YAML names them: the agent of `agentkit run`, verl's own section, and what is wrong, by path."""

import functools
import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from agentkit_verl.entry import agent_names, check_entries, load_entry
from agentkit_verl.settings import VerlSettings

from agentkit import Agent, Budget, ConfigError, Outcome
from agentkit.models import ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.runs import load_config
from agentkit.tokens import byte_chatml

PARTS = '''
import agentkit as ak


class Shop:
    def __init__(self, seed: int = 0):
        self.seed = seed

    async def start(self, task):
        return None

    async def close(self):
        pass


@ak.tool
async def population(city: str) -> str:
    """The population of a city."""
    return city


async def score(trajectory, env, *, threshold: float = 0.5) -> float:
    return threshold
'''
AGENT: dict[str, Any] = {
    "env": {"use": "PARTS:Shop", "seed": 3},
    "tools": ["PARTS:population", "finish"],
    "reward": {"use": "PARTS:score", "threshold": 0.25},
    "budget": {"trajectory_s": 600, "max_turns": 20},
    "params": {"top_p": 0.9},
    "outcomes": "mask_abnormal",
}
RUN: dict[str, Any] = {
    "model": {"use": "scripted", "script": ["Hello."]},
    "agent": AGENT,
    "dataset": {"path": "tasks.jsonl"},
    "pool": {"max_rollouts": 64, "max_starts": 4},
}
TARGET = {"_target_": "agentkit_verl.AgentKitLoop"}
MODEL = ScriptedModel(["Hello."])
_numbers = count()


class Files:
    """Configurations in a folder; JSON is YAML."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts = folder, f"parts_of_entry_{next(_numbers)}"
        (folder / f"{self.parts}.py").write_text(PARTS)
        (folder / "tasks.jsonl").write_text('{"id": "a", "prompt": "Go."}\n')

    def write(self, name: str, content: object) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=1).replace("PARTS", self.parts))
        return path

    def fault(self, content: object, name: str | None = None, **options: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            load_entry(self.write("agents.yaml", content), name, model=MODEL, **options)
        return str(caught.value).replace(str(self.folder), "FOLDER").replace(self.parts, "PARTS")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    before = list(sys.path)
    yield Files(tmp_path)
    sys.path[:] = before


def parts_of(agent: Agent) -> dict[str, object]:
    """What an agent is made of, functions with arguments told by these."""
    plain: dict[str, object] = {}
    for name in (field.name for field in attrs.fields(Agent) if field.name not in ("model", "renderer", "parser")):
        value = getattr(agent, name)
        is_partial = isinstance(value, functools.partial)
        plain[name] = (value.func, value.args, value.keywords) if is_partial else value
    env = agent.make_env()
    return {**plain, "env": (type(env), vars(env)), "tools": [tool.spec for tool in agent.make_tools()]}


def test_an_entry_with_sections_with_a_file_and_agentkit_run_give_equal_agents(files: Files) -> None:
    run = files.write("run.yaml", RUN)
    plain = load_config(run)
    sections = [{"name": "cities", **TARGET, "verl": {"credit": "turn"}, "agent": AGENT, "pool": RUN["pool"]}]
    named = [{"name": "cities", **TARGET, "verl": {"credit": "turn"}, "config": "run.yaml"}]
    for content in (sections, named):
        entry = load_entry(files.write("agents.yaml", content), "cities", model=MODEL)
        assert parts_of(entry.config.agent) == parts_of(plain.agent)
        assert entry.config.agent.model is MODEL
        assert entry.config.pool == plain.pool
        assert entry.config.name == "cities"
        assert entry.settings == VerlSettings(credit="turn")
    assert plain.agent.budget == Budget(trajectory_s=600.0, max_turns=20)
    assert set(plain.agent.outcomes.exits.values()) == {Outcome.TRAIN, Outcome.MASK}


def test_agentkit_run_takes_the_entry_where_it_has_model_and_dataset(files: Files) -> None:
    path = files.write("agents.yaml", [{"name": "cities", **TARGET, "verl": {}, **RUN}])
    config = load_config(path)
    assert parts_of(config.agent) == parts_of(load_entry(path, None, model=MODEL).config.agent)
    assert [task.id for task in config.tasks()] == ["a"]


def test_one_of_several_entries_is_asked_for_by_name(files: Files) -> None:
    content = [{"name": n, **TARGET, "agent": {"budget": {"max_turns": k}}} for n, k in (("a", 1), ("b", 2))]
    path = files.write("agents.yaml", content)
    assert load_entry(path, "b", model=MODEL).config.agent.budget.max_turns == 2
    assert files.fault(content, "c") == "FOLDER/agents.yaml: no entry has the name 'c', found a, b"
    assert files.fault(content) == "FOLDER/agents.yaml: the file has 2 entries, a, b: name one of them"


def test_settings_of_the_entry_are_laid_over_those_of_the_runs_file(files: Files) -> None:
    files.write("run.yaml", {**RUN, "verl": {"credit": "token", "batch_s": 60, "tools_kwargs": {"a": {"b": 1}}}})
    content = [{"name": "x", **TARGET, "config": "run.yaml", "verl": {"credit": "turn", "kinds": True}}]
    entry = load_entry(files.write("agents.yaml", content), "x", model=MODEL)
    said = VerlSettings(credit="turn", kinds=True, batch_s=60, tools_kwargs={"a": {"b": 1}})
    assert entry.settings == said
    (entry_,) = [load_entry(files.write("agents.yaml", [{**content[0], "verl": None}]), "x", model=MODEL)]
    assert entry_.settings.credit == "token"


def test_the_runs_file_may_lie_elsewhere_with_its_modules_beside_it(files: Files) -> None:
    module = f"deeper_{next(_numbers)}"
    run = {**RUN, "agent": {"env": f"{module}:Shop"}, "dataset": "nowhere.jsonl"}
    files.write("deep/run.yaml", run)
    (files.folder / "deep" / f"{module}.py").write_text(PARTS)
    path = files.write("agents.yaml", [{"name": "x", **TARGET, "config": "deep/run.yaml"}])
    env = load_entry(path, "x", model=MODEL).config.agent.make_env()
    assert type(env).__module__ == module


def test_verls_model_needs_no_variable_of_the_files_own(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_URL", raising=False)
    run = {**RUN, "model": {"use": "openai-chat", "base_url": "${NO_SUCH_URL}"}, "dataset": "${NO_SUCH_URL}"}
    files.write("run.yaml", run)
    path = files.write("agents.yaml", [{"name": "x", **TARGET, "config": "run.yaml"}])
    assert load_entry(path, "x", model=MODEL).config.agent.model is MODEL
    with pytest.raises(ConfigError, match="NO_SUCH_URL"):
        load_config(files.folder / "run.yaml")
    files.write("run.yaml", {**run, "agent": {"params": {"user": "${NO_SUCH_URL}"}}})
    with pytest.raises(ConfigError, match="NO_SUCH_URL"):  # the agent's variables do matter
        load_entry(path, "x", model=MODEL)


def test_parts_stand_where_the_file_says_nothing(files: Files) -> None:
    class Bare:
        async def sample_tokens(self, request: object, emit: object, /) -> Any:
            raise NotImplementedError

    parser, renderer = HermesParser(), byte_chatml()
    path = files.write("agents.yaml", [{"name": "x", "agent": {"parser": "qwen3-coder"}}])
    entry = load_entry(path, "x", model=Bare(), parts={"parser": parser, "renderer": renderer})
    assert entry.config.agent.renderer is renderer
    assert type(entry.config.agent.parser).__name__ == "Qwen3CoderParser"
    assert agent_names(path, "x") == {"parser"}
    files.write("run.yaml", {**RUN, "agent": {"parser": "hermes", "env": None}})
    assert agent_names(files.write("agents.yaml", [{"name": "x", "config": "run.yaml"}]), "x") == {"parser"}
    assert agent_names(files.write("agents.yaml", [{"name": "x"}]), "x") == frozenset()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"agent": {"budget": {"max_turn": 3}}}, "agent.budget.max_turn"),
        ({"agent": {"env": "PARTS:Nothing"}}, "agent.env"),
        ({"verl": {"credits": "turn"}}, "verl.credits"),
        ({"verl": {"credit": "turns"}}, "verl.credit"),
        ({"verl": {"batch_s": "soon"}}, "verl.batch_s"),
        ({"verl": {"batch_s": 0}}, "verl.batch_s must be a number of seconds > 0, found 0"),
        ({"verl": {"min_group": 0}}, "verl.min_group must be at least 1, found 0"),
        ({"verl": {"on_lost_group": "ignore"}}, "verl.on_lost_group"),
        ({"verl": {"weights": "equal"}}, "verl.weights"),
        ({"verl": ["turn"]}, "verl must be a mapping, found ['turn']"),
        ({"config": "nowhere.yaml"}, "cannot read the agent's configuration 'FOLDER/nowhere.yaml'"),
        ({}, "the entry 'x' has no agent"),
        ({"config": 3}, "config must be the name of a file, found 3"),
        ({"config": "run.yaml", "agent": {}, "pool": {}}, "the entry has config and 'agent', 'pool'"),
    ],
)
def test_what_is_wrong_is_told_with_the_file_and_the_path(files: Files, entry: dict[str, Any], told: str) -> None:
    files.write("run.yaml", RUN)
    message = files.fault([{"name": "x", **TARGET, **entry}], "x")
    assert told in message
    assert message.startswith(("FOLDER/agents.yaml", "cannot read"))


def test_a_trainer_hears_of_a_fault_before_it_starts(files: Files) -> None:
    files.write("run.yaml", RUN)
    good = {"name": "good", **TARGET, "config": "run.yaml"}
    others = {"name": "other", "_target_": "their.Loop", "whatever": 1}
    check_entries(files.write("agents.yaml", [good, others]))
    bad = {"name": "bad", **TARGET, "agent": {"budget": {"max_turn": 3}}}
    with pytest.raises(ConfigError, match="max_turn"):
        check_entries(files.write("agents.yaml", [good, others, bad]))
    with pytest.raises(ConfigError, match="must be a list of mappings"):
        check_entries(files.write("agents.yaml", {"name": "x"}))
    with pytest.raises(ConfigError, match="cannot read"):
        check_entries(files.folder / "none.yaml")


def test_evaluating_an_entry_that_names_its_run_says_which_file_to_take(files: Files) -> None:
    path = files.write("agents.yaml", [{"name": "x", **TARGET, "config": "run.yaml"}])
    with pytest.raises(ConfigError, match=r"the entry's run is in 'run.yaml', as config says: name that file"):
        load_config(path)


def test_no_file_and_no_list(files: Files) -> None:
    with pytest.raises(ConfigError, match="cannot read the agent's configuration"):
        load_entry(files.folder / "none.yaml", "x", model=MODEL)
    with pytest.raises(ConfigError, match="cannot read the agent's configuration"):
        agent_names(files.folder / "none.yaml", "x")
    assert files.fault(["x"], "x") == "FOLDER/agents.yaml: a list must have mappings as entries, each with a name"
