"""vLLM runs on asyncio, on real time; one engine serves all tests that want a real one."""

from collections.abc import AsyncIterator
from pathlib import Path

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
