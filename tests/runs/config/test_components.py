"""Names and arguments: what they become in each role, and how what is wrong with them is told."""

import functools
import sys

import pytest

from agentkit import ConfigError
from agentkit.envs import SandboxEnv
from agentkit.models import ScriptedMessageModel
from agentkit.parsing import HermesParser
from agentkit.protocols import SandboxSpec, Tool
from agentkit.runs.config.components import JudgedAfresh
from agentkit.runs.config.hints import Unresolved, parameters_of
from agentkit.runs.config.references import GROUPS, Importer, ShortNames
from agentkit.sandbox import HostBackend

BASE = "model: {use: scripted, script: [Hello.]}\ndataset: tasks.jsonl\n"


def load(project, agent: str):
    return project.load(f"{BASE}agent: {agent}\n").agent


def told(project, agent: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(project, agent)
    return str(caught.value).replace(project.parts, "PARTS").replace(str(project.folder), "FOLDER")


def test_an_env_is_its_class_or_a_factory_with_arguments(project) -> None:
    assert load(project, '{env: "PARTS:Shop"}').env is project.imported().Shop
    factory = load(project, '{env: {use: "PARTS:Shop", seed: 3, items: [a], price: 2}}').env
    assert isinstance(factory, functools.partial)
    one, two = factory(), factory()
    assert (one.seed, one.items, one.price) == (3, ["a"], 2.0)
    assert type(one.price) is float
    one.items.append("b")
    assert two.items == factory().items == ["a"]  # what one rollout does to its arguments no other sees


def test_an_env_may_come_from_a_function(project) -> None:
    name = project.module(
        f"from {project.parts} import Shop\ndef shop(seed: int) -> Shop:\n    return Shop(seed)\nSHOP = Shop()\n"
    )
    assert load(project, f'{{env: {{use: "{name}:shop", seed: 4}}}}').make_env().seed == 4
    assert "agent.env.seed (line 3) is missing" in told(project, f'{{env: "{name}:shop"}}')
    assert "an object of Shop, shared by all rollouts: name its class" in told(project, f'{{env: "{name}:SHOP"}}')


def test_a_class_that_is_an_attribute_can_be_named(project) -> None:
    name = project.module(f"from {project.parts} import Shop\nclass Shops:\n    Small = Shop\n")
    assert load(project, f'{{env: "{name}:Shops.Small"}}').env is project.imported().Shop


def test_nested_components_are_made_by_their_annotations(project) -> None:
    agent = load(
        project,
        "{env: {use: sandbox, backend: {use: host, max_starts: 2}, spec: {network: host, env: {A: b}}}, tools: [bash]}",
    )
    arguments = agent.env.keywords
    assert isinstance(arguments["backend"], HostBackend)
    assert arguments["spec"] == SandboxSpec(network="host", env={"A": "b"})
    first, second = agent.make_env(), agent.make_env()
    assert isinstance(first, SandboxEnv)
    assert first._backend is second._backend  # shared, as it bounds how many start at a time


def test_classes_of_fields_are_made_at_any_depth(project) -> None:
    parts = project.parts
    env = load(
        project, '{env: {use: "PARTS:Sized", size: {width: 2}, sizes: [{width: 1}, {width: 3, height: 2}]}}'
    ).make_env()
    size = sys.modules[parts].Size
    assert env.size == size(2)
    assert env.sizes == [size(1), size(3, 2)]
    assert "agent.env.sizes[0].width (line 3) must be a whole number, found the text 'x'" in told(
        project, '{env: {use: "PARTS:Sized", size: {width: 2}, sizes: [{width: x}]}}'
    )
    assert "agent.env.size (line 3) is not accepted: ValueError: 'width' must be > 0: 0" in told(
        project, '{env: {use: "PARTS:Sized", size: {width: 0}}}'
    )


def test_tools_are_tools_or_factories(project) -> None:
    name = project.module(
        "import agentkit as ak\n"
        "from agentkit.protocols import ToolSpec\n"
        "class Notes:\n"
        "    def __init__(self, name: str = 'notes', pages: list[int] = ()):\n"
        "        self.spec, self.pages = ToolSpec(name, '', {'type': 'object', 'properties': {}}), pages\n"
        "    async def call(self, arguments, context): ...\n"
        "async def undecorated(x: int) -> str: ...\n"
        "def no_tool() -> int:\n    return 3\n"
        "NUMBER = 3\n"
    )
    agent = load(
        project, f'{{tools: [{{use: "{name}:Notes", name: a, pages: [1]}}, "{name}:Notes", "PARTS:population"]}}'
    )
    first, second = agent.make_tools(), agent.make_tools()
    assert [tool.spec.name for tool in first] == ["a", "notes", "population"]
    assert first[0] is not second[0]
    assert first[0].pages == [1]
    assert first[0].pages is not second[0].pages
    assert first[2] is second[2]
    for use, text in {
        f"{name}:undecorated": "a plain async function: decorate it with @agentkit.tool",
        f"{name}:no_tool": "which gave an object of int, and no Tool",
        f"{name}:NUMBER": "an object of int, and no tool",
    }.items():
        assert text in told(project, f'{{tools: ["{use}"]}}')
    assert "agent.tools[0].a (line 3) is no argument: 'PARTS:population' is an object of FunctionTool already" in told(
        project, '{tools: [{use: "PARTS:population", a: 1}]}'
    )
    assert "agent.tools[0] (line 3) is 'bash', which failed: head_chars and tail_chars must be >= 0" in told(
        project, "{tools: [{use: bash, head_chars: -1}], env: sandbox}"
    )


def test_a_reward_is_the_function_itself(project) -> None:
    assert load(project, '{reward: "PARTS:score"}').reward is project.imported().score


async def test_arguments_are_bound_to_an_async_reward(project) -> None:
    reward = load(project, '{reward: {use: "PARTS:score", threshold: 1}}').reward
    assert await reward(None, None) == 1.0
    assert "threshhold (line 3) is no argument of PARTS:score: did you mean 'threshold'?" in told(
        project, '{reward: {use: "PARTS:score", threshhold: 1}}'
    )
    assert "trajectory (line 3) is no argument" in told(project, '{reward: {use: "PARTS:score", trajectory: 1}}')


async def test_a_reward_of_a_class_is_fresh_for_each_trajectory(project) -> None:
    plain = load(project, '{reward: "PARTS:Judge"}')
    assert await plain.make_reward(plain.reward)(None, None) == 1.0
    bound = load(project, '{reward: {use: "PARTS:Judge", bonus: 2}}')
    assert isinstance(bound.reward, JudgedAfresh)
    reward = bound.make_reward(bound.reward)
    assert [await reward(None, None), await reward(None, None)] == [3.0, 3.0]


def test_a_function_that_makes_a_reward_is_called(project) -> None:
    reward = load(project, "{reward: {use: exact-match, expected_key: solution}}").reward
    assert reward.__name__ == "reward"
    assert "is 'PARTS:plain_score', which is not async: a reward is `async def plain_score(...)`" in told(
        project, '{reward: "PARTS:plain_score"}'
    )


async def test_rewards_within_rewards(project) -> None:
    agent = load(
        project,
        '{reward: {use: weighted, parts: {a: [{use: "PARTS:score", threshold: 1}, 0.5], b: ["PARTS:Judge", 0.25]}}}',
    )
    assert [(await agent.reward(None, None)).value for _ in range(2)] == [0.75, 0.75]
    assert "agent.reward.parts.a[1] (line 3) must be a number, found the text '1'" in told(
        project, '{reward: {use: weighted, parts: {a: ["PARTS:score", "1"]}}}'
    )


def test_a_loop_is_the_function_with_its_arguments(project) -> None:
    assert load(project, '{loop: "PARTS:careful"}').loop is project.imported().careful
    assert load(project, '{loop: {use: "PARTS:careful", every: 2}}').loop.keywords == {"every": 2}
    assert "rollout (line 3) is no argument" in told(project, '{loop: {use: "PARTS:careful", rollout: 2}}')


def test_parsers_and_renderers_are_made(project) -> None:
    agent = load(project, "{parser: {use: hermes, lenient: true}, renderer: bytes}")
    assert isinstance(agent.parser, HermesParser)
    assert "which gave an object of Shop, and no Renderer" in told(project, '{renderer: "PARTS:Shop"}')


def test_models_of_either_kind(project) -> None:
    text = BASE.replace("scripted", "scripted-chat")
    assert isinstance(project.load(text).agent.model, ScriptedMessageModel)
    with pytest.raises(ConfigError, match="which gave an object of Shop, and no TokenModel or MessageModel"):
        project.load('model: "PARTS:Shop"\ndataset: tasks.jsonl\n')


def test_an_object_in_a_module_may_be_the_model(project) -> None:
    name = project.module(
        "from agentkit.models import ScriptedModel\nMODEL = ScriptedModel(['x'])\nasync def late(): ...\n"
    )
    assert project.load(f'model: "{name}:MODEL"\ndataset: tasks.jsonl\n').agent.model is sys.modules[name].MODEL
    with pytest.raises(
        ConfigError, match=r"model\.x \(line 1\) is no argument: .* is an object of ScriptedModel already"
    ):
        project.load(f'model: {{use: "{name}:MODEL", x: 1}}\ndataset: tasks.jsonl\n')
    with pytest.raises(ConfigError, match="which is async: what makes a component is not"):
        project.load(f'model: "{name}:late"\ndataset: tasks.jsonl\n')


def test_a_callable_argument_is_named(project) -> None:
    name = project.module(
        "def say(prompt: str) -> str:\n    return 'hi'\ndef add(prompt: str, n: int = 1) -> str:\n    return 'x' * n\n"
    )
    model = project.load(BASE.replace("[Hello.]", f'"{name}:say"')).agent.model
    assert model._function is sys.modules[name].say
    model = project.load(BASE.replace("[Hello.]", f'{{use: "{name}:add", n: 3}}')).agent.model
    assert model._function("") == "xxx"


def test_a_sub_agent_is_an_agent_section_with_a_model(project) -> None:
    agent = load(
        project,
        '{tools: [{use: "agentkit.actors:SubAgent", description: Helps., agent: {name: helper, '
        "model: {use: scripted-chat, script: [Hi.]}, budget: {max_turns: 2}}}]}",
    )
    (tool,) = agent.make_tools()
    assert tool.spec.name == "helper"
    assert tool._agent.budget.max_turns == 2
    assert "agent.tools[0].agent.budget.max_turn (line 3) is unknown" in told(
        project,
        '{tools: [{use: "agentkit.actors:SubAgent", description: x, agent: '
        "{model: {use: scripted, script: [a]}, budget: {max_turn: 2}}}]}",
    )
    assert "must be an agent section with a model in it" in told(
        project, '{tools: [{use: "agentkit.actors:SubAgent", description: x, agent: {}}]}'
    )


def test_arguments_are_told_with_what_is_missing_and_what_is_not_known(project) -> None:
    text = told(project, '{env: {use: "PARTS:Other", sise: 3}}')
    assert "agent.env.sise (line 3) is no argument of PARTS:Other: did you mean 'size'?" in text
    assert "agent.env.size (line 3) is missing: PARTS:Other needs it" in text
    assert "agent.env.price (line 3) must be a number, found the text '1'" in told(
        project, '{env: {use: "PARTS:Shop", price: "1"}}'
    )


def test_null_is_none_where_that_is_allowed_and_else_nothing(project) -> None:
    assert load(project, '{env: {use: "PARTS:Shop", seed: null, backend: null}}').env.keywords == {"backend": None}


def test_arguments_by_any_name_go_where_they_are_taken(project) -> None:
    name = project.module(
        "class Free:\n    def __init__(self, a, **rest: int):\n        self.a, self.rest = a, rest\n"
        "    async def start(self, task): ...\n    async def close(self): ...\n"
        "class Placed(Free):\n    def __init__(self, a, /):\n        pass\n"
    )
    env = load(project, f'{{env: {{use: "{name}:Free", a: [1, {{b: 2}}], c: 3}}}}').make_env()
    assert (env.a, env.rest) == ([1, {"b": 2}], {"c": 3})
    assert "agent.env.c (line 3) must be a whole number" in told(
        project, f'{{env: {{use: "{name}:Free", a: 1, c: x}}}}'
    )
    assert "agent.env.a (line 3) is missing: " in (text := told(project, f'{{env: "{name}:Placed"}}'))
    assert "it can only be given by place" in text


def test_an_annotation_that_cannot_be_resolved_is_told_only_where_it_matters(project) -> None:
    name = project.module(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from agentkit.protocols import SandboxBackend\n"
        "class Env:\n    def __init__(self, n: int = 0, backend: 'SandboxBackend | None' = None):\n        self.n = n\n"
        "    async def start(self, task): ...\n    async def close(self): ...\n"
    )
    assert load(project, f'{{env: {{use: "{name}:Env", n: 3}}}}').make_env().n == 3
    assert "agent.env.n (line 3) must be a whole number" in told(project, f'{{env: {{use: "{name}:Env", n: x}}}}')
    text = told(project, f'{{env: {{use: "{name}:Env", backend: host}}}}')
    assert (
        "agent.env.backend (line 3) cannot be given: its annotation 'SandboxBackend | None' cannot be resolved" in text
    )
    assert "import what it names outside of TYPE_CHECKING" in text


@pytest.mark.parametrize(
    ("use", "text"),
    [
        ("nomodule_at_all:x", "is in the module 'nomodule_at_all', which is not there: looked in 'FOLDER' and among"),
        ("PARTS.sub:x", "is in the module 'PARTS.sub', which is not there"),
        ("PARTS:Shp", "is 'Shp' of 'PARTS', which has no such name: did you mean 'Shop'?"),
        ("PARTS:Shop.nothing", "has no such name"),
        ("PARTS:", "must be written package.module:Name, found 'PARTS:'"),
        ("a b:c", "must be written package.module:Name"),
        ("../x:y", "must be written package.module:Name"),
        ("x:y:z", "must be written package.module:Name"),
        ("sandbx", "is no short name: did you mean 'sandbox'?; one of your own is package.module:Name"),
        ("", "is no short name"),
    ],
)
def test_a_name_that_stands_for_nothing_is_told(project, use: str, text: str) -> None:
    assert text in told(project, f'{{env: "{use}"}}')


def test_errors_while_importing_are_shown_as_such_with_the_users_line(project) -> None:
    absent = project.module("import json\nimport not_installed_thing\n")
    text = told(project, f'{{env: "{absent}:Env"}}')
    assert "whose import failed: ModuleNotFoundError: No module named 'not_installed_thing'" in text
    assert f"FOLDER/{absent}.py, line 2: import not_installed_thing)" in text
    broken = project.module("def f(:\n")
    assert f"SyntaxError: invalid syntax (FOLDER/{broken}.py, line 1: def f(:)" in told(
        project, f'{{env: "{broken}:Env"}}'
    )
    leaves = project.module("import sys\nsys.exit(3)\n")
    assert "whose import failed: SystemExit: 3" in told(project, f'{{env: "{leaves}:Env"}}')
    inner = project.module(f"import {absent}\n")
    assert "No module named 'not_installed_thing'" in told(project, f'{{env: "{inner}:Env"}}')


def test_a_module_of_the_same_name_from_elsewhere_is_not_taken_for_it(new_project) -> None:
    one, two = new_project(), new_project()
    (one.folder / "same_name_of_test.py").write_text((one.folder / f"{one.parts}.py").read_text())
    (two.folder / "same_name_of_test.py").write_text((two.folder / f"{two.parts}.py").read_text())
    load(one, '{env: "same_name_of_test:Shop"}')
    load(one, '{env: "same_name_of_test:Shop"}')
    assert "was imported already: give yours another name" in told(two, '{env: "same_name_of_test:Shop"}')


def test_a_folder_beside_the_file_does_not_hide_an_installed_package(project) -> None:
    (project.folder / "agentkit").mkdir()
    assert load(project, '{env: "agentkit.envs:SandboxEnv"}').env is SandboxEnv


def test_a_short_name_of_two_packages_must_be_written_out(project, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        info = project.folder / f"other{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: other{number}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[agentkit.envs]\nmine = {project.parts}:Shop\nclash = mod{number}:Env\n"
        )
    monkeypatch.syspath_prepend(str(project.folder))
    assert load(project, "{env: {use: mine, seed: 5}}").make_env().seed == 5
    assert "is 'clash', a short name of several packages: write mod1:Env or mod2:Env" in told(project, "{env: clash}")


def test_what_arguments_hold_is_not_in_a_repr(project) -> None:
    agent = load(
        project, '{env: {use: "PARTS:Shop", items: [hunter2hunter2]}, reward: {use: "PARTS:Judge", bonus: 77777.0}}'
    )
    assert "hunter2" not in repr(agent)
    assert "77777" not in repr(agent)


NAMES = [(group, name) for group in GROUPS for name in ShortNames().of(group)]


@pytest.mark.parametrize(("group", "name"), NAMES)
def test_every_short_name_stands_for_something_whose_arguments_can_be_given(group: str, name: str) -> None:
    target = Importer().find(name, group)
    if isinstance(target, Tool) and not isinstance(target, type):
        return
    parameters = parameters_of(target, skip={"loops": 1}.get(group, 0))
    unresolved = [each.name for each in parameters.named.values() if isinstance(each.hint, Unresolved)]
    assert not unresolved
