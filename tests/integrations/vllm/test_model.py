"""What a VLLMModel says before there is an engine."""

import sys

import anyio
import pytest
from agentkit_vllm import VLLMModel

import agentkit as ak
from agentkit.errors import ConfigError, MissingExtraError
from agentkit.models import ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.protocols import HasRenderer, TokenModel, TokenRequest
from agentkit.tokens import byte_chatml

REQUEST = TokenRequest("r", [1, 2], 2, 10, frozenset(), 60.0)


class HideVLLM:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "vllm":
            raise ModuleNotFoundError("No module named 'vllm'", name="vllm")


async def enter(model: VLLMModel) -> None:
    async with model:
        raise AssertionError("entered")


def test_it_is_a_token_model_that_brings_its_renderer():
    model = VLLMModel("m", renderer=byte_chatml(), parser=HermesParser())
    assert isinstance(model, TokenModel)
    assert isinstance(model, HasRenderer)
    agent = ak.Agent(model)
    assert agent.renderer is model.renderer
    assert agent.parser is model.parser


def test_an_agent_may_bring_the_renderer_instead():
    scripted = ScriptedModel(["a"])
    agent = ak.Agent(VLLMModel("m"), renderer=scripted.renderer, parser=scripted.parser)
    assert agent.renderer is scripted.renderer


def test_a_renderer_that_nobody_gave_is_asked_for():
    with pytest.raises(ConfigError, match="no renderer: pass renderer="):
        ak.Agent(VLLMModel("m", parser=HermesParser()))
    with pytest.raises(ConfigError, match="no parser: pass parser="):
        ak.Agent(VLLMModel("m", renderer=byte_chatml()))


async def test_sampling_before_it_is_entered_says_what_to_do():
    with pytest.raises(ConfigError, match="async with VLLMModel"):
        await VLLMModel("m").sample_tokens(REQUEST, lambda chunk: None)
    with pytest.raises(ConfigError, match="async with VLLMModel"):
        _ = VLLMModel("m").engine


def test_on_trio_it_says_that_it_needs_asyncio():
    with pytest.raises(ConfigError, match=r"needs asyncio.*backend='asyncio'"):
        anyio.run(enter, VLLMModel("m"), backend="trio")


async def test_without_vllm_one_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [HideVLLM(), *sys.meta_path])
    model = VLLMModel("m")
    for _ in range(2):  # a failed start leaves it as it was
        with pytest.raises(MissingExtraError, match=r"VLLMModel needs 'vllm'.*agentkit-rl\[vllm\]"):
            await enter(model)


def test_params_that_cannot_work_are_refused_when_it_is_made():
    with pytest.raises(ConfigError, match=r"params\.max_tokens"):
        VLLMModel("m", params={"max_tokens": 5})


def test_making_one_needs_no_loop_and_shows_no_more_than_the_model():
    assert repr(VLLMModel("m", engine={"hf_token": "secret"})) == "VLLMModel('m')"
