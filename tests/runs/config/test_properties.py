"""Of any configuration: it comes back as it was, and nothing wrong in it goes unnoticed, at any depth."""

import copy
from difflib import get_close_matches

import attrs
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agentkit import Budget, ConfigError, ExitReason, Outcome
from agentkit.runs import load_config
from agentkit.runs.config.document import read_document, write_document
from agentkit.runs.config.problems import spell

VALID = {
    "name": "counting",
    "model": {"use": "scripted-chat", "script": ["Hello."], "chunk_chars": 3, "chunk_s": 0.5},
    "agent": {
        "env": {"use": "PARTS:Sized", "size": {"width": 2, "height": 3}, "sizes": [{"width": 1}]},
        "tools": ["finish", {"use": "agentkit.tools:submit"}],
        "reward": {"use": "weighted", "parts": {"a": [{"use": "exact-match", "expected_key": "x"}, 0.5]}},
        "loop": {"use": "PARTS:careful", "every": 2},
        "budget": {"trajectory_s": 600, "max_turns": 20, "count_waiting": False},
        "params": {"temperature": 1.0, "stop": ["a"]},
        "outcomes": {"exits": {"turn_limit": "mask"}, "blames": {"grader": "drop"}, "retries": 1},
        "on_rewrite": "new_chain",
        "model_retries": 2,
        "name": "counter",
    },
    "dataset": {"path": "tasks.jsonl", "limit": 3, "shuffle": 7, "format": "jsonl", "extra": "data"},
    "pool": {"max_rollouts": 64, "max_starts": 16, "max_generations": 8, "group_size": 2},
    "overridable": ["env", "budget"],
    "logs": {"level": "info", "json": True, "per_rollout": False},
}
FREE = {("agent", "params"), ("agent", "reward", "parts")}  # mappings with keys of the user's own


def with_parts(project, tree: object) -> object:
    if isinstance(tree, dict):
        return {key: with_parts(project, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [with_parts(project, value) for value in tree]
    return tree.replace("PARTS", project.parts) if isinstance(tree, str) else tree


def load(project, tree: object):
    path = project.folder / "run.yaml"
    path.write_text(write_document(with_parts(project, tree)))
    return load_config(path, environ={})


def places(tree: object, path: tuple = ()):
    """The path of every mapping, list and scalar."""
    yield path, tree
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from places(value, (*path, index))


def put(tree, path: tuple, value: object):
    tree = copy.deepcopy(tree)
    here = tree
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return tree


MAPPINGS = [path for path, value in places(VALID) if isinstance(value, dict) and path not in FREE]
LEAVES = [
    (path, value)
    for path, value in places(VALID)
    if path and not isinstance(value, dict | list) and path[:2] != ("agent", "params")
]
DEEP = ("agent", "env", "sizes", 0)


@given(st.sampled_from(MAPPINGS), st.data())
@example(DEEP, None)
@example((), None)
@example(("agent", "outcomes", "exits"), None)
def test_every_unknown_key_at_every_depth_is_told_with_its_path_and_line(shared_project, path, data) -> None:
    here = dict(places(VALID))[path]
    known = sorted(here)
    if data is None:
        key = known[0] + "x"
    else:
        near = st.sampled_from(known).flatmap(
            lambda name: st.sampled_from([name + "s", name[:-1], name.upper(), f"x{name}"])
        )
        key = data.draw(near | st.text(st.characters(codec="utf-8"), max_size=6))
    assume(key not in _allowed(path))
    tree = put(VALID, (*path, key), 1)
    text = write_document(with_parts(shared_project, tree))
    with pytest.raises(ConfigError) as caught:
        load(shared_project, tree)
    lines = read_document(text, where="x").lines
    assert f"{spell((*path, key))} (line {lines[(*path, key)]})" in str(caught.value)
    if get_close_matches(key, sorted(_allowed(path) - {"use"}), n=1) and "already" not in str(caught.value):
        assert "did you mean" in str(caught.value)


def _allowed(path: tuple) -> set[str]:
    from agentkit.actors import Agent, OutcomePolicy
    from agentkit.models import ScriptedMessageModel
    from agentkit.runs import Dataset, PoolLimits
    from agentkit.runs.config import LogSettings
    from agentkit.runs.config.hints import parameters_of

    classes = {
        ("agent",): Agent, ("agent", "budget"): Budget, ("agent", "outcomes"): OutcomePolicy, ("dataset",): Dataset,
        ("pool",): PoolLimits, ("logs",): LogSettings,
    }  # fmt: skip
    if path in classes:
        return {each.name for each in attrs.fields(classes[path])} - {"model"}
    others = {
        (): {"name", "model", "agent", "dataset", "pool", "overridable", "logs"},
        ("model",): {"use", *parameters_of(ScriptedMessageModel).named},
        ("agent", "env"): {"use", "size", "sizes"},
        ("agent", "outcomes", "exits"): {each.value for each in ExitReason},
        ("agent", "outcomes", "blames"): {"policy", "environment", "infrastructure", "grader", "caller"},
        ("agent", "loop"): {"use", "every"},
        ("agent", "reward"): {"use", "parts"},
    }
    return others.get(path, {"width", "height", "use", "expected_key"})


WRONG = [None, True, 3, 2.5, "wrong-text", ["x"], {"x": 1}, [], {}]


def _kind(value: object) -> object:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


@given(st.sampled_from(LEAVES), st.sampled_from(WRONG))
@example((("agent", "budget", "max_turns"), 20), 2.5)
@example((("agent", "budget", "count_waiting"), False), 3)
@example((("pool", "max_generations"), 8), True)
@example(((*DEEP, "width"), 1), "wrong-text")
@example((("agent", "reward", "parts", "a", 1), 0.5), "wrong-text")
def test_every_value_of_the_wrong_kind_at_every_depth_is_told_with_its_path(shared_project, leaf, wrong) -> None:
    path, right = leaf
    assume(wrong is not None and _kind(wrong) != _kind(right))
    with pytest.raises(ConfigError) as caught:
        load(shared_project, put(VALID, path, wrong))
    assert spell(path) in str(caught.value)


def test_two_problems_are_told_as_two(shared_project) -> None:
    tree = put(put(VALID, ("agent", "budget", "max_turn"), 1), ("pool", "group_sise"), 1)
    with pytest.raises(ConfigError, match="has 2 problems"):
        load(shared_project, tree)


budgets = st.fixed_dictionaries(
    {},
    optional={
        "trajectory_s": st.integers(0, 9999) | st.floats(0, 1e6) | st.just(float("inf")),
        "grace_s": st.floats(0, 100),
        "max_turns": st.integers(1, 1000),
        "count_waiting": st.booleans(),
    },
)
outcomes = st.just("mask_abnormal") | st.fixed_dictionaries(
    {},
    optional={
        "exits": st.dictionaries(
            st.sampled_from([each.value for each in ExitReason]), st.sampled_from([each.value for each in Outcome])
        ),
        "ungraded": st.sampled_from(["drop", "mask", "train"]),
        "retries": st.integers(0, 5),
    },
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=8)
params = st.dictionaries(
    texts,
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.lists(texts, max_size=2),
    max_size=3,
)
agents = st.fixed_dictionaries(
    {},
    optional={
        "budget": budgets,
        "outcomes": outcomes,
        "params": params,
        "loop": st.sampled_from(["react", {"use": "chat"}]),
        "env": st.just("PARTS:Shop") | st.integers().map(lambda seed: {"use": "PARTS:Shop", "seed": seed}),
        "tools": st.lists(st.sampled_from(["finish", "submit"]), unique=True),
    },
)
pools = {"group_size": st.integers(1, 64), "max_generations": st.just(float("inf"))}
logs = {"level": st.sampled_from(["debug", "error"]), "json": st.booleans()}
configs = st.fixed_dictionaries(
    {"model": st.just({"use": "scripted-chat", "script": ["Hello."]}), "dataset": st.just({"path": "tasks.jsonl"})},
    optional={
        "name": texts,
        "agent": agents,
        "pool": st.fixed_dictionaries({}, optional=pools),
        "overridable": st.lists(st.sampled_from(["env", "budget"]), unique=True),
        "logs": st.fixed_dictionaries({}, optional=logs),
    },
)


def _said(config) -> tuple:
    agent = config.agent
    env = agent.env.keywords if hasattr(agent.env, "keywords") else agent.env
    plain = (
        agent.budget,
        agent.outcomes,
        agent.params,
        agent.loop,
        env,
        [tool.spec.name for tool in agent.make_tools()],
    )
    return (config.name, config.dataset, config.pool, config.overridable, config.logs, *plain)


@given(configs, st.booleans())
def test_a_configuration_comes_back_from_its_own_yaml(shared_project, tree, defaults) -> None:
    config = load(shared_project, tree)
    path = shared_project.folder / "run.yaml"
    path.write_text(config.to_yaml(defaults=defaults))
    again = load_config(path, environ={})
    assert _said(again) == _said(config)
    shown = [read_document(each.to_yaml(defaults=True), where="x").tree for each in (again, config)]
    assert shown[0] == shown[1]
