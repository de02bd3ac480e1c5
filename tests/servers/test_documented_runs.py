"""The runs that the documentation shows for vLLM, against a real server: the tiny model in place of the named one."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from agentkit import ExitReason
from agentkit.journal import JournalReader
from agentkit.runs import RunConfig, execute, load_config

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]

RUNS = Path(__file__).parents[2] / "examples" / "run"


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules beside a configuration are forgotten again."""
    monkeypatch.setattr(sys, "path", [str(RUNS), *sys.path])
    yield
    sys.modules.pop("cities", None)


async def check(config: RunConfig, folder: Path) -> None:
    result = await execute(config, folder)
    assert result.finished
    with JournalReader.open(folder) as reader:
        trajectories = list(reader.trajectories())
    assert len(trajectories) == 3 * config.pool.group_size
    for trajectory in trajectories:
        assert trajectory.exit_reason not in {ExitReason.MODEL_ERROR, ExitReason.INTERNAL_ERROR}, trajectory.error
        assert trajectory.score is not None
        for turn in trajectory.turns:
            chain = trajectory.chains[turn.chain]
            assert set(chain.response_mask[turn.start : turn.stop]) == {1}
            assert all(value <= 0 for value in chain.logprobs[turn.start : turn.stop])


async def test_in_yaml(vllm_server: Any, tiny_model_folder: Path, tmp_path: Path):
    changes = {
        "model.model": "tiny",
        "agent.renderer.tokenizer": str(tiny_model_folder),
        "agent.budget.max_tokens": 1200,
        "pool.group_size": 2,
    }
    config = load_config(RUNS / "vllm.yaml", environ={"MODEL_URL": vllm_server.url}, changes=changes)
    await check(config, tmp_path / "run")


async def test_in_python(vllm_server: Any, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MODEL_URL", vllm_server.url)
    monkeypatch.setenv("MODEL_NAME", "tiny")
    spec = spec_from_file_location("example_vllm_server", RUNS / "vllm_server.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    await check(module.make_config(str(tiny_model_folder)), tmp_path / "run")


async def test_in_messages(vllm_server: Any, tmp_path: Path):
    changes = {"model.model": "tiny", "agent.budget.max_turns": 2, "model.max_tokens": 100, "pool.group_size": 2}
    environ = {"MODEL_URL": vllm_server.url, "API_KEY": "sk-no-key-needed"}
    config = load_config(RUNS / "chat.yaml", environ=environ, changes=changes)
    result = await execute(config, tmp_path / "run")
    assert result.finished
