"""A whole file: what becomes of it, and how all that is wrong with it is told."""

import functools
import math
import os
import sys
from pathlib import Path

import pytest

from agentkit import Agent, Budget, ConfigError, ExitReason, Outcome, OutcomePolicy, Pool, react
from agentkit.models import ScriptedModel
from agentkit.runs import Dataset, PoolLimits, RunConfig, load_config

MINIMAL = "model: {use: scripted, script: [Hello.]}\ndataset: tasks.jsonl\n"


def problems(project, text: str, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        project.load(text, **options)
    return str(caught.value).replace(project.parts, "PARTS").replace(str(project.folder), "FOLDER")


def test_a_file_becomes_the_classes_that_python_code_builds(project) -> None:
    config = project.load()
    parts = project.imported()
    assert config.name == "counting"
    assert isinstance(config.agent.model, ScriptedModel)
    assert config.agent.budget == Budget(trajectory_s=600.0, max_turns=20)
    assert config.agent.params == {"temperature": 1.0}
    assert config.agent.outcomes == OutcomePolicy.mask_abnormal()
    assert config.agent.loop is react
    assert [tool.spec.name for tool in config.agent.make_tools()] == ["population", "finish"]
    assert config.dataset == Dataset(project.folder / "tasks.jsonl", limit=100, shuffle=7)
    assert config.pool == PoolLimits(max_rollouts=64, max_starts=16, group_size=8)
    first, second = config.agent.make_env(), config.agent.make_env()
    assert type(first) is parts.Shop
    assert first is not second
    assert first.seed == 3


def test_what_is_not_said_is_the_default(project) -> None:
    config = project.load(MINIMAL)
    assert config.name == "run"  # as the file is called
    assert config.agent == Agent(config.agent.model)
    assert config.pool == PoolLimits()
    assert config.pool.max_generations == math.inf
    assert config.secrets == frozenset()


def test_sections_without_content_are_as_if_they_were_not_there(project) -> None:
    config = project.load(MINIMAL + "agent:\n  budget:\n  params:\n  env:\n  tools:\npool:\n")
    assert config.agent == Agent(config.agent.model)


def test_every_problem_of_a_file_is_told_at_once_with_path_line_and_nearest_name(project) -> None:
    told = problems(
        project,
        """nam: x
model: {use: scriptd, script: ["Hello."]}
agent:
  env: PARTS.Shop
  tools: [bash, {use: bsh}, 3]
  budget: {trajectory_s: "600", max_turn: 20}
  on_rewrite: new_chian
  modle: x
dataset: {path: nope.jsonl, limt: 100, shuffle: true}
pool: {max_rollouts: 1.0, group_size: yes}
""",
    )
    assert told.splitlines()[0] == "FOLDER/run.yaml has 13 problems:"
    for line in (
        "nam (line 1) is unknown: did you mean 'name'?",
        "model.use (line 2) is 'scriptd', which is no short name: did you mean 'scripted'?",
        "agent.env (line 4) is 'PARTS.Shop', which is no short name: write PARTS:Shop, with a colon",
        "agent.tools[1].use (line 5) is 'bsh', which is no short name: did you mean 'bash'?",
        "agent.tools[2] (line 5) must be a name or {use: name, ...}, found the number 3",
        "agent.budget.trajectory_s (line 6) must be a number, found the text '600'",
        "agent.budget.max_turn (line 6) is unknown: did you mean 'max_turns'?",
        "agent.on_rewrite (line 7) is 'new_chian', which it cannot be: did you mean 'new_chain'?",
        "agent.modle (line 8) is unknown: the fields are budget, env, loop,",
        "dataset.shuffle (line 9) must be a whole number or null, found true",
        "dataset.limt (line 9) is unknown: did you mean 'limit'?",
        "pool.max_rollouts (line 10) must be a whole number, found the number 1.0: write it without a point",
        "pool.group_size (line 10) must be a whole number, found the text 'yes'",
    ):
        assert line in told
    assert told.count("\n  ") == 13


def test_checks_of_the_classes_are_told_with_their_field(project) -> None:
    told = problems(
        project, MINIMAL + "agent: {budget: {max_turns: 0}, outcomes: {exhausted: retry}}\npool: {group_size: 0}\n"
    )
    assert "agent.budget.max_turns (line 3) must be a number >= 1, found 0" in told
    assert "agent.outcomes.exhausted (line 3) cannot be 'retry'" in told
    assert "pool.group_size (line 4) must be a whole number >= 1, found 0" in told


def test_a_single_problem_is_one_line(project) -> None:
    assert problems(project, MINIMAL + "agent: {budget: {max_turn: 1}}\n") == (
        "FOLDER/run.yaml: agent.budget.max_turn (line 3) is unknown: did you mean 'max_turns'?"
    )


def test_model_and_dataset_are_needed(project) -> None:
    told = problems(project, "name: x\n")
    assert "model is missing" in told
    assert "dataset is missing" in told


def test_a_dataset_that_is_not_there_is_told_before_anything_runs(project) -> None:
    assert "dataset.path (line 2) is 'FOLDER/nope.jsonl', which is no file" in problems(
        project, MINIMAL.replace("tasks", "nope")
    )


def test_parts_that_do_not_fit_are_told_as_the_agent_tells_them(project) -> None:
    told = problems(project, MINIMAL + "agent: {tools: [finish, finish]}\n")
    assert "agent.tools (line 3) has several tools of one name: 'finish'" in told
    assert "needs Shell" in problems(project, MINIMAL + 'agent: {tools: [bash], env: "PARTS:Shop"}\n')


def test_nothing_is_imported_before_the_whole_file_was_checked(project) -> None:
    flag = project.folder / "imported"
    name = project.module(f"open({str(flag)!r}, 'w').close()\nfrom agentkit.envs import SandboxEnv as Env\n")
    text = MINIMAL + f'agent: {{env: "{name}:Env"}}\npool: {{max_rollout: 3}}\n'
    assert "did you mean 'max_rollouts'" in problems(project, text)
    assert not flag.exists()
    project.load(text.replace("max_rollout:", "max_rollouts:"))
    assert flag.exists()


def test_nothing_is_built_per_run_when_a_file_is_loaded(project) -> None:
    project.load()
    assert project.imported().Shop.made == 0


def test_changes_are_laid_over_the_file(project) -> None:
    config = project.load(
        changes=["agent.budget.max_turns=5", "pool.group_size = 2", "agent.env.seed=4", 'agent.params.stop=["a=b"]']
    )
    assert config.agent.budget.max_turns == 5
    assert config.pool.group_size == 2
    assert config.agent.make_env().seed == 4
    assert config.agent.params == {"temperature": 1.0, "stop": ["a=b"]}
    assert project.load(changes={"agent.budget.max_turns": 6, "name": "3"}).name == "3"


def test_a_change_gives_a_bare_name_its_first_argument_and_reaches_into_lists(project) -> None:
    config = project.load(
        changes=["agent.loop.use=PARTS:careful".replace("PARTS", project.parts), "agent.loop.every=7"]
    )
    assert isinstance(config.agent.loop, functools.partial)
    assert config.agent.loop.keywords == {"every": 7}
    config = project.load(changes=["agent.tools.1=submit"])
    assert [tool.spec.name for tool in config.agent.make_tools()] == ["population", "submit"]
    config = project.load(changes=["agent.reward.expected_key=solution"])
    assert config.agent.reward is not None


def test_null_as_a_change_takes_a_field_back_to_its_default(project) -> None:
    assert project.load(changes=["agent.budget="]).agent.budget == Budget()
    assert project.load(changes=["agent.env=null"]).agent.env is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("agent.budget.max_turns", "must be path=value"),
        ("agent..x=1", "a path is names with dots between"),
        ("pool.group_size.x=1", "pool.group_size is the number 8, which has nothing below it"),
        ("agent.tools.9=1", "'9' is no place in a list of 2"),
        ("agent.tools.x=1", "'x' is no place in a list of 2"),
        ("agent.budget.max_turns={", "the change of agent.budget.max_turns, line 1: this is no YAML"),
        ("agent.budget.max_turn=3", r"agent.budget.max_turn (as changed) is unknown: did you mean 'max_turns'?"),
        (
            "agent.budget.max_turns='3'",
            r"agent.budget.max_turns (as changed) must be a whole number, found the text '3'",
        ),
    ],
)
def test_a_change_that_leads_nowhere_is_told(project, change: str, told: str) -> None:
    assert told in problems(
        project, MINIMAL + "agent: {tools: [finish, submit]}\npool: {group_size: 8}\n", changes=[change]
    )


def test_changes_are_no_text(project) -> None:
    assert "must be a list of path=value" in problems(project, MINIMAL, changes="a=1")


def test_relative_paths_and_modules_count_from_the_base(project, tmp_path: Path) -> None:
    copy = tmp_path / "config.yaml"
    copy.write_text(project.write().read_text())
    config = load_config(copy, base=project.folder, environ={})
    assert config.dataset.path == project.folder / "tasks.jsonl"
    with pytest.raises(ConfigError, match="which is no file"):
        load_config(copy, environ={})


def test_paths_count_from_the_folder_of_the_file_wherever_one_stands(project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(MINIMAL)
    monkeypatch.chdir(project.folder.parent)
    config = load_config(os.path.join(project.folder.name, "run.yaml"), environ={})
    assert len(list(config.tasks())) == 2
    monkeypatch.chdir("/")
    assert len(list(config.tasks())) == 2


def test_exits_are_laid_over_the_default_ones(project) -> None:
    outcomes = project.load(MINIMAL + "agent: {outcomes: {exits: {turn_limit: mask}, retries: 1}}\n").agent.outcomes
    assert outcomes.retries == 1
    assert outcomes.exits[ExitReason.TURN_LIMIT] is Outcome.MASK
    assert outcomes.exits[ExitReason.FINISHED] is Outcome.TRAIN


def test_text_that_other_yaml_takes_for_something_else_stays_text(project) -> None:
    text = (
        MINIMAL.replace("Hello.", "no, yes, on, off, 2024-01-01, 12:30:00")
        + "name: no\nagent: {params: {a: off, b: 1e3}}\n"
    )
    config = project.load(text)
    assert config.name == "no"
    assert config.agent.params == {"a": "off", "b": 1000.0}


@pytest.mark.parametrize("raw", [b"\xff\xfea", b"a: \x00\n", b"model: \x80"])
def test_bytes_that_are_no_yaml_are_the_callers_error(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "run.yaml").write_bytes(raw)
    with pytest.raises(ConfigError, match=r"must be UTF-8|no YAML"):
        load_config(tmp_path / "run.yaml", environ={})


def test_a_file_that_is_not_there_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*No such file"):
        load_config(tmp_path / "run.yaml", environ={})


def test_a_byte_order_mark_and_windows_lines_are_nothing_special(project) -> None:
    path = project.folder / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_config(path, environ={}).agent.model is not None


def test_hostile_keys_do_not_reach_a_terminal_as_they_are(project) -> None:
    told = problems(project, MINIMAL + 'agent: {"\\e[31mred\\nname: forged": 1}\n')
    assert "\x1b" not in told
    assert "\nname" not in told


def test_every_error_pickles_and_is_a_config_error(project) -> None:
    import pickle

    with pytest.raises(ConfigError) as caught:
        project.load("name: 3\n")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


async def test_a_loaded_run_runs(project) -> None:
    config = project.load(MINIMAL + "pool: {group_size: 2}\n")
    async with Pool(config.agent, group_size=config.pool.group_size, agent_of=config.agent_of) as pool:
        trajectories = await pool.run(config.tasks())
    assert sorted((t.task_id, t.key.index, t.exit_reason) for t in trajectories) == [
        (task, index, ExitReason.FINISHED) for task in "ab" for index in (0, 1)
    ]


def test_the_same_run_composed_in_python(project) -> None:
    model = ScriptedModel(["Hello."])
    config = RunConfig(
        agent=Agent(model), dataset=Dataset(project.folder / "tasks.jsonl"), pool=PoolLimits(group_size=2)
    )
    assert [task.id for task in config.tasks()] == ["a", "b"]
    assert config.survey().tasks == 2


@pytest.mark.parametrize(
    ("name", "value"), [("max_rollouts", 0), ("group_size", 1.5), ("max_starts", math.nan), ("group_size", True)]
)
def test_limits_are_checked_in_python_too(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"pool\.{name} must be a (whole )?number >= 1, found"):
        PoolLimits(**{name: value})


def test_loading_needs_the_folder_on_the_path_only_for_modules_in_it(project) -> None:
    project.load(MINIMAL)
    assert str(project.folder) not in sys.path
    project.load()
    assert sys.path[0] == str(project.folder)
