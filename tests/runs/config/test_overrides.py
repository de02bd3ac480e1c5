"""What differs for one task: how it is merged, what it may be, and which agent comes of it."""

import copy
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit import Agent, Budget, ConfigError, Pool, Task
from agentkit.models import ScriptedModel
from agentkit.runs import RunConfig
from agentkit.runs.config import overrides as module
from agentkit.runs.config.overrides import merge

keys = st.sampled_from(["a", "b", "use", "c"])
trees = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(keys, trees, max_size=3)


def merged_by_paths(under: dict, over: dict) -> dict:
    """The slow way: every path to something that is no mapping, one after another."""
    if "use" in over and over["use"] != under.get("use"):
        under = {}
    result = {key: copy.deepcopy(value) for key, value in under.items() if key not in over}
    for key in over:
        if over[key] is None:
            continue
        if isinstance(over[key], dict):
            result[key] = merged_by_paths(under[key] if isinstance(under.get(key), dict) else {}, over[key])
        else:
            result[key] = copy.deepcopy(over[key])
    return result


def without_nulls(tree: object) -> object:
    return {k: without_nulls(v) for k, v in tree.items() if v is not None} if isinstance(tree, dict) else tree


@given(mappings, mappings)
@example({"a": {"use": "x", "b": 1}}, {"a": {"use": "y", "c": 2}})
@example({"a": {"use": "x", "b": 1}}, {"a": {"use": "x", "b": None}})
@example({"a": [1, 2]}, {"a": [3]})
@example({"a": "x"}, {"a": {"b": {"c": None}}})
def test_merging_is_as_the_slow_way_and_leaves_both_as_they_were(under, over) -> None:
    before = copy.deepcopy((under, over))
    assert merge(under, over) == merged_by_paths(under, over)
    assert (under, over) == before


@given(mappings, mappings)
def test_laws_of_merging(under, over) -> None:
    merged = merge(under, over)
    assert merge(under, {}) == under
    assert merge({}, over) == without_nulls(over)
    assert merge(merged, over) == merged  # once is enough
    assert merge(under, under) == without_nulls(under) or _has_nulls(under)


def _has_nulls(tree: object) -> bool:
    return tree is None or (isinstance(tree, dict) and any(_has_nulls(value) for value in tree.values()))


CONFIG = """
model: {use: scripted, script: ["Hello."]}
agent:
  env: {use: "PARTS:Shop", seed: 3, items: [a, "${ITEM:-b}"]}
  tools: ["PARTS:population", finish]
  reward: "PARTS:score"
  budget: {trajectory_s: 600, max_turns: 20}
  params: {temperature: 1.0, extra: {top_k: 5, min_p: 0.1}}
dataset: tasks.jsonl
pool: {group_size: 2}
"""


def task(**overrides) -> Task:
    return Task("t", "Go.", metadata={"overrides": overrides})


def told(config, overrides: object) -> str:
    with pytest.raises(ConfigError) as caught:
        config.agent_of(Task("t", "Go.", metadata={"overrides": overrides}))
    return str(caught.value)


def test_a_task_without_overrides_has_the_agent_of_the_run(project) -> None:
    config = project.load(CONFIG)
    assert config.agent_of(Task("t", "Go.")) is config.agent
    assert config.agent_of(task()) is config.agent


def test_overrides_are_laid_over_the_agent_section(project) -> None:
    config = project.load(CONFIG)
    agent = config.agent_of(
        task(env={"seed": 9}, budget={"max_turns": 3}, params={"extra": {"top_k": 7}}, tools=["finish"])
    )
    assert agent.budget == Budget(trajectory_s=600, max_turns=3)
    assert agent.params == {"temperature": 1.0, "extra": {"top_k": 7, "min_p": 0.1}}
    env = agent.make_env()
    assert (env.seed, env.items) == (9, ["a", "b"])
    assert [tool.spec.name for tool in agent.make_tools()] == ["finish"]
    assert agent.model is config.agent.model
    assert agent.renderer is config.agent.renderer
    assert agent.reward is config.agent.reward
    assert config.agent.make_env().seed == 3


def test_null_takes_a_field_back_to_its_default(project) -> None:
    config = project.load(CONFIG)
    agent = config.agent_of(task(env=None, reward=None, tools=None, budget={"max_turns": None}, params={"extra": None}))
    assert (agent.env, agent.reward, agent.tools) == (None, None, ())
    assert agent.budget == Budget(trajectory_s=600)
    assert agent.params == {"temperature": 1.0}
    assert config.agent_of(task(budget=None)).budget == Budget()


def test_another_component_does_not_inherit_arguments(project) -> None:
    config = project.load(CONFIG)
    env = config.agent_of(task(env={"use": f"{project.parts}:Other", "size": 4})).make_env()
    assert (type(env).__name__, env.size, env.seed) == ("Other", 4, 0)
    assert config.agent_of(task(env=f"{project.parts}:Shop")).make_env().seed == 0  # a bare name replaces all


def test_arguments_reach_a_component_that_the_file_names_only(project) -> None:
    agent = project.load(CONFIG).agent_of(task(reward={"threshold": 2}))
    assert agent.reward.keywords == {"threshold": 2.0}


def test_equal_overrides_share_an_agent_and_only_so_many_are_kept(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_AGENTS", 2)
    config = project.load(CONFIG)
    first = config.agent_of(task(budget={"max_turns": 3, "tool_s": 1}))
    assert config.agent_of(task(budget={"tool_s": 1, "max_turns": 3})) is first
    assert config.agent_of(task(budget={"max_turns": 4})) is not first
    assert config.agent_of(task(budget={"max_turns": 3, "tool_s": 1})) is first  # used lately, so it stays
    config.agent_of(task(budget={"max_turns": 5}))
    assert config.agent_of(task(budget={"max_turns": 3, "tool_s": 1})) is first
    assert config._agents._made.__len__() == 2


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"model": {"use": "scripted"}}, "overrides.model cannot differ from task to task: only env, tools,"),
        ({"renderer": "bytes"}, "overrides.renderer cannot differ from task to task"),
        ({"parser": "hermes"}, "overrides.parser cannot differ"),
        ({"on_rewrite": "error"}, "overrides.on_rewrite cannot differ"),
        ({"budgt": {}}, "overrides.budgt is unknown: did you mean 'budget'?"),
        ({"budget": {"max_turn": 3}}, "overrides.budget.max_turn is unknown: did you mean 'max_turns'?"),
        ({"budget": {"max_turns": "3"}}, "overrides.budget.max_turns must be a whole number, found the text '3'"),
        ({"budget": {"max_turns": 0}}, "overrides.budget.max_turns must be a number >= 1, found 0"),
        ({"env": {"seeed": 1}}, "overrides.env.seeed is no argument of PARTS:Shop: did you mean 'seed'?"),
        ({"tools": "finish"}, "overrides.tools must be a list, found the text 'finish'"),
        ({"tools": ["finish", "finish"]}, "overrides.tools has several tools of one name"),
        ({"env": "nope"}, "overrides.env is 'nope', which is no short name"),
        ([1], "overrides must be a mapping with fields of the agent, found a list of 1"),
        ({"budget": {"max_turns": {1}}}, "overrides must be made of plain values"),
        ({"budget": {"tool_s": float("nan")}}, "overrides must be made of plain values"),
    ],
)
def test_what_is_wrong_with_overrides_is_told_by_task_and_path(project, overrides: object, text: str) -> None:
    said = told(project.load(CONFIG), overrides).replace(project.parts, "PARTS")
    assert said.startswith("task 't': ")
    assert text in said


def test_all_that_is_wrong_with_overrides_is_told_at_once(project) -> None:
    wrong = {"tool": [], "model": "x", "budget": {"max_turn": 3, "tool_s": "x"}, "env": "nope"}
    said = told(project.load(CONFIG), wrong)
    for line in (
        "overrides.tool is unknown: did you mean 'tools'?",
        "overrides.model cannot differ from task to task",
        "overrides.budget.max_turn is unknown: did you mean 'max_turns'?",
        "overrides.budget.tool_s must be a number, found the text 'x'",
        "overrides.env is 'nope', which is no short name",
    ):
        assert line in said


@pytest.mark.parametrize(
    "use", ["os:system", "subprocess:run", "OTHER:Env", "PARTS:ak.Pool", "PARTS:system", "builtins:eval"]
)
def test_a_row_can_name_no_code_that_the_configuration_does_not(project, use: str) -> None:
    other = project.module("raise AssertionError('imported')\n")
    module_file = project.folder / f"{project.parts}.py"
    module_file.write_text("from os import system\n" + module_file.read_text())
    config = project.load(CONFIG)
    said = told(config, {"env": {"use": use.replace("OTHER", other).replace("PARTS", project.parts)}})
    assert "a row" in said
    assert "AssertionError" not in said


def test_a_row_never_sees_the_environment(project) -> None:
    config = project.load(CONFIG, environ={"KEY": "sk-0123456789", "ITEM": "from-outside"})
    env = config.agent_of(task(env={"items": ["${KEY}", "$$"]})).make_env()
    assert env.items == ["${KEY}", "$$"]
    assert config.agent_of(task(env={"seed": 1})).make_env().items == ["a", "from-outside"]


def test_what_may_be_overridden_can_be_narrowed_but_not_widened(project) -> None:
    config = project.load(CONFIG + "overridable: [budget]\n")
    assert config.agent_of(task(budget={"max_turns": 2})).budget.max_turns == 2
    assert "overrides.env cannot differ from task to task: only budget may" in told(config, {"env": None})
    with pytest.raises(ConfigError, match=r"overridable .*cannot have 'model': it is one for all tasks of a run"):
        project.load(CONFIG + "overridable: [model]\n")
    with pytest.raises(ConfigError, match=r"overridable .*cannot have 'budgets': did you mean 'budget'"):
        project.load(CONFIG + "overridable: [budgets]\n")


def test_a_run_composed_in_python_has_overrides_too() -> None:
    agent = Agent(ScriptedModel(["Hello."]), budget=Budget(max_turns=9, tool_s=5), params={"a": {"b": 1}})
    config = RunConfig(agent=agent, dataset=[Task("t", "Go.")])
    made = config.agent_of(task(budget={"max_turns": 2}, params={"a": {"c": 2}}, tools=["finish"], loop="chat"))
    assert made.budget == Budget(max_turns=2, tool_s=5)
    assert made.params == {"a": {"b": 1, "c": 2}}
    assert [tool.spec.name for tool in made.make_tools()] == ["finish"]
    assert made.loop.__name__ == "chat"
    assert made.model is agent.model
    assert "must say what it is by `use: name`" in told(config, {"reward": {"expected_key": "x"}})


def test_a_survey_looks_at_every_row_and_names_file_line_and_path(project) -> None:
    rows = [{"id": f"r{n}", "prompt": "Go.", "overrides": {"budget": {"max_turns": n + 1}}} for n in range(4)]
    project.tasks([*rows, {"id": "x", "prompt": "Go.", "overrides": {"budget": {"max_turns": 0}, "env": {"sed": 1}}}])
    with pytest.raises(ConfigError) as caught:
        project.load(CONFIG).survey()
    said = str(caught.value)
    assert "tasks.jsonl, line 5: overrides.budget.max_turns must be a number >= 1, found 0" in said
    project.tasks(
        [*rows, {"id": "y", "prompt": "Go.", "overrides": {"env": {"sed": 1}}}, {"id": "z", "overrides": {"mdl": 1}}]
    )
    with pytest.raises(ConfigError) as caught:
        project.load(CONFIG).survey()
    said = str(caught.value)
    assert "line 5: overrides.env.sed is no argument" in said
    assert "line 6: overrides.mdl is unknown" in said
    project.tasks(rows)
    assert project.load(CONFIG).survey().tasks == 4


def test_a_survey_checks_the_form_of_more_kinds_than_it_makes(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.runs.config.settings.KEPT_AGENTS", 2)
    rows = [{"id": f"r{n}", "prompt": "Go.", "overrides": {"budget": {"max_turns": n + 1}}} for n in range(5)]
    project.tasks([*rows, {"id": "x", "prompt": "Go.", "overrides": {"budget": {"max_turns": -1}}}])
    config = project.load(CONFIG)
    with pytest.raises(ConfigError, match=r"line 6: overrides\.budget\.max_turns must be a number >= 1, found -1"):
        config.survey()
    assert len(config._agents._made) == 2


def test_the_digest_of_tasks_in_python_is_that_of_what_is_asked() -> None:
    agent = Agent(ScriptedModel(["Hello."]))

    def digest(*tasks: Task) -> str:
        return RunConfig(agent=agent, dataset=tasks).survey().sha256

    base = Task("t", "Go.", data={"x": object()})
    assert digest(base) == digest(Task("t", "Go.", data={"x": object()}))  # no address is part of it
    different = [Task("u", "Go."), Task("t", "Stop."), Task("t", "Go.", data={"y": 1}), task(budget={"max_turns": 2})]
    assert len({digest(base), *map(digest, different)}) == 5
    with pytest.raises(ConfigError, match="the id 't' is that of an earlier task too"):
        digest(base, base)


async def test_rollouts_run_with_the_agent_of_their_row(project) -> None:
    script = project.module("def say(prompt: str) -> str:\n    return 'again'\n")
    text = CONFIG.replace('["Hello."]', f'"{script}:say"').replace('["PARTS:population", finish]', "[]")
    loop = project.module(
        "async def talkative(rollout, n: int = 1):\n"
        "    async for action in rollout:\n"
        "        if rollout.turns >= n:\n"
        "            return\n"
        "        rollout.observe('more')\n"
    )
    rows = [{"id": f"r{n}", "prompt": "Go.", "overrides": {"loop": {"n": n}}} for n in (1, 2, 3)]
    project.tasks(rows)
    config = project.load(text.replace("  tools:", f'  loop: "{loop}:talkative"\n  tools:'))
    async with Pool(config.agent, group_size=2, agent_of=config.agent_of) as pool:
        trajectories = await pool.run(config.tasks())
    assert sorted((t.task_id, len(t.turns)) for t in trajectories) == [
        ("r1", 1),
        ("r1", 1),
        ("r2", 2),
        ("r2", 2),
        ("r3", 3),
        ("r3", 3),
    ]
    (kept,) = {json.dumps(t.task.metadata["overrides"]) for t in trajectories if t.task_id == "r2"}
    assert json.loads(kept) == {"loop": {"n": 2}}  # who reads the record sees what was different
