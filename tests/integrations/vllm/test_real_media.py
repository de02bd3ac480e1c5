"""Images before a real engine: what it samples is what the model samples after the chain's ids and their features."""

import gc
import importlib.util
import warnings
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from agentkit_vllm import VLLMModel
from attrs import evolve

from agentkit import ModelError, user
from agentkit.parsing import HermesParser
from agentkit.protocols import Medium, TokenChunk, TokenRequest, assistant, image

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # vLLM and torch warn at import
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "pages" / "multimodal.py"
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 8}
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}\
{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def picture(*color: int) -> Medium:
    from PIL import Image

    held = BytesIO()
    Image.new("RGB", (80, 60), color).save(held, format="PNG")
    return image(held.getvalue())


RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Idefics3 with its processor: of the models that vLLM runs without torchvision."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
        PreTrainedTokenizerFast,
    )
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    folder = str(tmp_path_factory.mktemp("vision"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<fake_token_around_image>", "<global-img>"]
    backend.add_special_tokens([AddedToken(text, special=True) for text in (*control, "<end_of_utterance>", *tiles)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"model_type": "llama", "vocab_size": 320, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    config = Idefics3Config(
        vision_config=small | {"image_size": 56, "patch_size": 14},
        text_config=small | text | {"hidden_size": 64, "head_dim": 32, "pad_token_id": 256},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=False,
        pad_token_id=256,
    )
    torch.manual_seed(0)
    Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=TEMPLATE).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def renderer(vision_folder: str) -> Any:
    from agentkit_hf import processor_renderer

    return processor_renderer(vision_folder)


@pytest.fixture(scope="module")
async def seeing(vision_folder: str, renderer: Any) -> AsyncIterator[VLLMModel]:
    model = VLLMModel(vision_folder, renderer=renderer, parser=HermesParser(), engine=ENGINE)
    await model.__aenter__()
    yield model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        await model.__aexit__(None, None, None)
        gc.collect()


def request_of(renderer: Any, *colors: tuple[int, ...]) -> TokenRequest:
    first, *rest = (picture(*color) for color in colors)
    said = [user("What is ", first, "?")]
    for each in rest:
        said += [assistant("x"), user("And ", each)]
    ids = renderer.prompt(said, ())
    media = renderer.place(ids, [medium for message in said for medium in message.media])
    deadline = anyio.current_time() + 120
    return TokenRequest("r", ids, len(ids), 6, renderer.stop_ids, deadline, {"temperature": 0}, media)


async def sample(model: VLLMModel, request: TokenRequest) -> tuple[list[int], list[float]]:
    chunks: list[TokenChunk] = []
    await model.sample_tokens(request, chunks.append)
    ids = [each for chunk in chunks for each in chunk.token_ids]
    return ids, [each for chunk in chunks for each in chunk.logprobs]


@pytest.mark.parametrize("colors", [(RED,), (RED, BLUE), (BLUE, RED, RED)])
async def test_what_is_sampled_is_what_the_model_gives_after_ids_and_features(
    seeing: VLLMModel, renderer: Any, vision_folder: str, colors: tuple[tuple[int, ...], ...]
) -> None:
    import torch
    from transformers import Idefics3ForConditionalGeneration

    request = request_of(renderer, *colors)
    ids, logprobs = await sample(seeing, request)
    features = renderer.features([placed.medium for placed in request.media])
    module = Idefics3ForConditionalGeneration.from_pretrained(vision_folder, dtype=torch.float32).eval()
    whole = torch.tensor([[*request.prompt_ids, *ids]])
    with torch.no_grad():
        logits = module(
            input_ids=whole,
            pixel_values=torch.from_numpy(features["pixel_values"]),
            pixel_attention_mask=torch.from_numpy(features["pixel_attention_mask"]),
        ).logits[0]
    start = len(request.prompt_ids)
    expected = torch.log_softmax(logits, dim=-1)[range(start - 1, start - 1 + len(ids)), ids]
    assert logprobs == pytest.approx(expected.tolist(), abs=2e-3)


async def test_another_image_is_another_prompt(seeing: VLLMModel, renderer: Any) -> None:
    red, blue = request_of(renderer, RED), request_of(renderer, BLUE)
    assert red.prompt_ids == blue.prompt_ids
    (_, of_red), (_, of_blue), (_, again) = [await sample(seeing, each) for each in (red, blue, red)]
    assert of_red != pytest.approx(of_blue, abs=1e-4)
    assert of_red == pytest.approx(again, abs=1e-4)


async def test_chain_that_is_not_what_vllm_makes_of_it_records_nothing(seeing: VLLMModel, renderer: Any) -> None:
    request = request_of(renderer, RED)
    (placed,) = request.media
    ids = [*request.prompt_ids[: placed.start], *request.prompt_ids[placed.start + 1 :]]
    shorter = evolve(request, prompt_ids=ids, media=(evolve(placed, stop=placed.stop - 1),))
    chunks: list[TokenChunk] = []
    with pytest.raises(ModelError, match="the renderer's processor is not the model's"):
        await seeing.sample_tokens(shorter, chunks.append)
    assert chunks == []


async def test_what_the_page_shows_runs(vision_folder: str, seeing: VLLMModel, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("example_multimodal", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Entered:
        """The engine that runs already: a second one would take half a minute."""

        takes_media = True

        def __init__(self, folder: str, *, renderer: Any, parser: Any, engine: Any) -> None:
            assert folder == vision_folder
            self.renderer, self.parser = renderer, parser

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *exc: object) -> None: ...

        async def sample_tokens(self, request: TokenRequest, emit: Any, /) -> Any:
            return await seeing.sample_tokens(request, emit)

    monkeypatch.setattr("agentkit_vllm.VLLMModel", Entered)
    trajectory, features = await module.with_vllm(vision_folder, max_model_len=1024)
    assert trajectory.error is None
    assert len(trajectory.chains[0]) > trajectory.turns[0].start
    assert features["pixel_values"].shape[0] == 1
