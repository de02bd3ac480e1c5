"""vLLM runs on asyncio, on real time; one engine serves all tests that want a real one."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from agentkit_vllm import VLLMModel

from agentkit.parsing import HermesParser
from agentkit.tokens import QWEN, HFTemplate, HFTokenizer, TemplateRenderer

ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 64}


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
    async with VLLMModel(
        str(tiny_model_folder), renderer=tiny_renderer, parser=HermesParser(), engine=ENGINE, policy_version=7
    ) as model:
        yield model
    gc.collect()  # an engine that died leaves it to this to close its sockets, with a warning that is no test's fault


@pytest.fixture
def idle(model: VLLMModel) -> Callable[[], Awaitable[None]]:
    """Returns once neither half of the engine has anything to do; far sooner than a long generation would end."""

    async def is_busy() -> bool:
        engine = model.engine
        return engine.output_processor.get_num_unfinished_requests() > 0 or await engine.engine_core.call_utility_async(
            "has_work"
        )

    async def wait() -> None:
        with anyio.fail_after(1.5):
            while await is_busy():
                await anyio.sleep(0.02)

    return wait
