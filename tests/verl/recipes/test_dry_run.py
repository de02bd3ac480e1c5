"""Each recipe as far as it goes without a GPU: its options in verl's own configuration, its agent, its data."""

import copy
import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agentkit_hf import hf_renderer
from agentkit_verl.entry import Entry, load_entry
from agentkit_verl.parquet import write_parquet
from attrs import frozen
from recipes.gsm8k import prepare_data as gsm8k
from recipes.prepare import line_of, tasks_of
from recipes.search import prepare_data as search
from recipes.swe import prepare_data as swe

from agentkit.models import ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.runs import load_config
from agentkit.tokens import byte_chatml
from tests.vocabularies import load

Called = Callable[..., tuple[list[str], dict[str, str]]]

SANDBOXES = "tests.verl.recipes.images:Images"


@frozen
class Recipe:
    script: str
    mode: str
    rows: str
    prepare: ModuleType
    env: Mapping[str, str] = {}
    loss: str = "vanilla"

    @property
    def folder(self) -> str:
        return self.script.partition("/")[0]


RECIPES = [
    Recipe("gsm8k/run_grpo.sh", "sync", "gsm8k", gsm8k),
    Recipe("gsm8k/run_gspo.sh", "sync", "gsm8k", gsm8k, loss="gspo"),
    Recipe("gsm8k/run_colocate_async.sh", "colocate_async", "gsm8k", gsm8k),
    Recipe("gsm8k/run_separate_async.sh", "separate_async", "gsm8k", gsm8k),
    Recipe("search/run.sh", "sync", "search", search, {"SEARCH_URL": "http://127.0.0.1:9"}),
    Recipe("swe/run_r2e_gym.sh", "colocate_async", "r2e_gym", swe, {"SWE_SANDBOXES": SANDBOXES}),
    Recipe("swe/run_swe_rebench.sh", "colocate_async", "swe_rebench", swe, {"SWE_SANDBOXES": SANDBOXES}),
    Recipe("gpu_check/run.sh", "sync", "gsm8k", gsm8k),
]


@pytest.fixture(scope="module", params=RECIPES, ids=lambda recipe: recipe.script)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return request.param


@frozen
class Call:
    """What the script of a recipe would call, on data made by its `prepare_data.py` from rows of its dataset."""

    argv: list[str]
    environment: Mapping[str, str]
    data: Path


def options(argv: list[str]) -> list[str]:
    assert argv[:2] == ["-m", "verl.trainer.main_ppo"]
    return argv[2:]


@functools.cache
def _verl_config() -> Path:
    import verl

    return Path(verl.__file__).parent / "trainer" / "config"


def composed(argv: list[str]) -> Any:
    """The configuration that `main_ppo` would get; an option that verl does not know is an error here as there."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(_verl_config()), version_base=None):
        return compose("ppo_trainer", overrides=options(argv))


@pytest.fixture(scope="module")
def call(recipe: Recipe, called: Called, tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Call:
    data = tmp_path_factory.mktemp("data") / "train.parquet"
    write_parquet(tasks_of(rows / f"{recipe.rows}.jsonl", recipe.prepare.task_of), data, agent_name="agentkit")
    return Call(*called(recipe.script, MODEL="some/model", DATA=str(data), **recipe.env), data)


@pytest.fixture(scope="module")
def config(call: Call) -> Any:
    return composed(call.argv)


def test_every_script_is_tried(recipes: Path):
    assert {recipe.script for recipe in RECIPES} == {
        str(path.relative_to(recipes)) for path in recipes.glob("*/run*.sh")
    }


def test_verl_takes_every_option_and_builds_its_trainer(
    recipe: Recipe, call: Call, config: Any, monkeypatch: pytest.MonkeyPatch
):
    for name, value in recipe.env.items():  # as the script has them: the trainer looks at its agent before it starts
        monkeypatch.setenv(name, value)
    import agentkit_verl.plugin  # noqa: F401  # what VERL_USE_EXTERNAL_MODULES does in the recipe's own processes
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = copy.deepcopy(config)  # the trainer writes into it
    OmegaConf.to_container(config, resolve=True)
    assert (need_critic(config), need_reference_policy(config)) == (False, False)
    validate_config(config=config, use_reference_policy=False, use_critic=False)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)

    assert (rollout.name, rollout.calculate_log_probs, rollout.multi_turn.enable) == ("vllm", True, True)
    assert rollout.max_model_len == rollout.prompt_length + rollout.response_length
    longest = rollout.prompt_length + rollout.response_length
    parallel = actor.fsdp_config.ulysses_sequence_parallel_size
    assert actor.ppo_max_token_len_per_gpu * parallel >= longest
    assert config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu == actor.ppo_max_token_len_per_gpu
    assert (actor.strategy, actor.engine.strategy, actor.policy_loss.loss_mode) == ("fsdp2", "fsdp2", recipe.loss)
    assert config.data.train_files == str(call.data)

    assert config.trainer.v1.trainer_mode == f"agentkit_{recipe.mode}"
    assert call.environment["VERL_USE_EXTERNAL_MODULES"] == "agentkit_verl.plugin"
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)  # refuses what its mode cannot do
    assert trainer.trainer_mode == recipe.mode
    assert trainer.replay_buffer.sync_refill_failed_groups is (recipe.mode == "sync")


def test_the_advantages_and_the_loss_are_known(config: Any):
    import agentkit_verl.plugin  # noqa: F401
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    assert callable(get_adv_estimator_fn(config.algorithm.adv_estimator))
    assert callable(get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode))


def test_what_workers_need_reaches_them(recipe: Recipe, call: Call, config: Any):
    forwarded = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert set(forwarded) == {"PYTHONPATH", "VERL_USE_EXTERNAL_MODULES", *recipe.env}
    assert {name: call.environment[name] for name in forwarded} == dict(forwarded)


def test_options_given_last_hold(recipe: Recipe, called: Called):
    argv, _ = called(
        recipe.script, "trainer.total_epochs=7", "data.max_response_length=99", MODEL="m", DATA="d", **recipe.env
    )
    config = composed(argv)
    assert (config.trainer.total_epochs, config.data.max_response_length) == (7, 99)


@pytest.mark.parametrize("missing", ["MODEL", "DATA"])
def test_a_missing_variable_is_named(recipe: Recipe, missing: str, called: Called):
    given = {"MODEL": "m", "DATA": "d", **recipe.env}
    del given[missing]
    with pytest.raises(AssertionError, match=f"{missing} must be"):
        called(recipe.script, **given)


@pytest.fixture(scope="module")
def entry(recipe: Recipe, config: Any) -> Entry:
    agent = config.actor_rollout_ref.rollout.agent
    with pytest.MonkeyPatch.context() as patch:
        for name, value in recipe.env.items():
            patch.setenv(name, value)
        return load_entry(
            agent.agent_loop_config_path,
            agent.default_agent_loop,
            model=ScriptedModel(["hello"]),
            parts={"renderer": byte_chatml(), "parser": HermesParser()},
        )


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One of a model that the recipes are for: its vocabulary is what lengths are counted by."""
    try:
        return load("qwen2.5")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def test_the_agent_is_made(recipe: Recipe, config: Any, entry: Entry):
    agent = entry.config.agent
    assert agent.reward is not None
    assert agent.budget.max_turns < 100  # a default that nobody chose
    specs = [tool.spec.name for tool in _made_tools(entry)]
    wanted = {"gsm8k": {"calculate", "finish"}, "search": {"search", "finish"}, "swe": {"execute_bash", "submit"}}
    assert set(specs) == wanted.get(recipe.folder, wanted["gsm8k"])
    rollouts = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    assert entry.config.pool.max_rollouts >= min(rollouts, 256)
    assert entry.settings.min_group == 2


def test_the_data_loads_and_its_prompts_fit(
    recipe: Recipe, call: Call, config: Any, entry: Entry, tokenizer: Any, rows: Path, monkeypatch: pytest.MonkeyPatch
):
    from agentkit_verl.tasks import task_of
    from verl.utils.dataset.rl_dataset import get_dataset_class

    monkeypatch.setattr(os, "environ", os.environ)  # which datasets replaces by a copy
    dataset = get_dataset_class(config.data)(str(call.data), tokenizer, config.data)
    tasks = tasks_of(rows / f"{recipe.rows}.jsonl", recipe.prepare.task_of)
    assert len(dataset) == len(tasks)  # none was filtered out as too long
    renderer = hf_renderer(tokenizer)
    for number, task in enumerate(tasks):
        row = dict(dataset[number])
        assert row["agent_name"] == config.actor_rollout_ref.rollout.agent.default_agent_loop
        assert row["data_source"] == task.data["data_source"]
        row.pop("dummy_tensor")
        again = task_of(row)
        assert (again.id, again.messages, again.data) == (task.id, task.messages, task.data)
        tools = [tool.spec for tool in _made_tools(entry)]
        opening = renderer.prompt(task.messages, tools)
        assert 0 < len(opening) < config.data.max_prompt_length


def _made_tools(entry: Entry) -> list[Any]:
    return [tool if hasattr(tool, "spec") else tool() for tool in entry.config.agent.tools]


def test_the_entry_that_the_page_shows_is_one():
    path = Path(__file__).parents[3] / "examples" / "verl" / "agent.yaml"
    parts = {"renderer": byte_chatml(), "parser": HermesParser()}
    shown = load_entry(path, "cities", model=ScriptedModel(["hello"]), parts=parts)
    assert [tool.spec.name for tool in _made_tools(shown)] == ["population"]
    assert shown.settings.batch_s == 600


@pytest.mark.parametrize("folder", ["gsm8k", "search", "swe"])
def test_what_is_trained_can_be_evaluated(
    folder: str, recipes: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = {"swe": "r2e_gym"}.get(folder, folder)
    task_of = {"gsm8k": gsm8k, "search": search, "swe": swe}[folder].task_of
    tasks = tasks_of(rows / f"{name}.jsonl", task_of)
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(line_of(task))}\n" for task in tasks))
    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SWE_SANDBOXES", SANDBOXES)
    changes = {"dataset.path": str(tmp_path / "tasks.jsonl")}
    config = load_config(recipes / folder / "run.yaml", environ=dict(os.environ), changes=changes)
    again = list(config.tasks())
    assert [(task.id, task.messages, task.data) for task in again] == [
        (task.id, task.messages, task.data) for task in tasks
    ]
