"""vLLM runs on asyncio, on real time; one engine serves all tests that want a real one."""

import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from agentkit_vllm import VLLMModel

from agentkit.parsing import HermesParser
from agentkit.protocols import TokenRequest
from agentkit.tokens import QWEN, HFTemplate, HFTokenizer, TemplateRenderer

ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 2048, "max_num_seqs": 64}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tiny_renderer(tiny_model_folder: Path) -> TemplateRenderer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    return TemplateRenderer(HFTokenizer(tokenizer), HFTemplate(tokenizer), QWEN)


@pytest.fixture(scope="session")
async def model(tiny_model_folder: Path, tiny_renderer: TemplateRenderer) -> AsyncIterator[VLLMModel]:
    model = VLLMModel(
        str(tiny_model_folder), renderer=tiny_renderer, parser=HermesParser(), engine=ENGINE, policy_version=7
    )
    await model.__aenter__()
    yield model
    with warnings.catch_warnings():
        # an engine leaves its sockets to the garbage collector, which warns of them
        warnings.simplefilter("ignore", ResourceWarning)
        await model.__aexit__(None, None, None)
        gc.collect()


@pytest.fixture
def idle(model: VLLMModel) -> Callable[[], Awaitable[None]]:
    """Returns once the engine has nothing to do, and fails where something from before still runs in it.

    The clock is a short generation: the engine gives each request one token a step, so one that was to run for many
    more steps than this is still there after it, however fast the machine is.
    """

    async def wait() -> None:
        request = TokenRequest("clock", [300], 1, 50, frozenset(), anyio.current_time() + 60, {"ignore_eos": True})
        await model.sample_tokens(request, lambda chunk: None)
        for _ in range(20):  # each asks between two steps
            if not await model.engine.engine_core.call_utility_async("has_work"):
                break
        else:
            raise AssertionError("the engine still works on something")
        assert model.engine.output_processor.get_num_unfinished_requests() == 0

    return wait
