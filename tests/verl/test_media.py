"""Images from verl's dataset to the policy, and from the chain back to verl's servers and trainers."""

import importlib.util
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentkit_hf import processor_renderer
from agentkit_verl.media import multi_modal_data, prompt_media, server_media
from agentkit_verl.tasks import task_of
from omegaconf import OmegaConf

from agentkit import Agent, Task, Trajectory
from agentkit.errors import ConfigError, MissingExtraError
from agentkit.models import ScriptedModel
from agentkit.protocols import Observation, TokenRequest, ToolContext, ToolSpec
from agentkit.tokens import Images, open_image, shown_in

TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ 'user' if message['role'] == 'tool' else message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- for call in message['tool_calls'] or [] %}
<tool_call>
{"name": "{{ call['function']['name'] }}", "arguments": {{ call['function']['arguments'] | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


@pytest.fixture(scope="module")
def processor() -> Any:
    """A processor of Qwen2.5-VL over a small vocabulary: its image processor is that of transformers, on Pillow."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.processing_utils import ProcessorMixin

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    pieces.train_from_iterator([TEMPLATE], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL),
    )
    tokenizer.chat_template = TEMPLATE

    class ImagesOnly(Qwen2_5_VLProcessor):  # type: ignore[misc]  # videos want torchvision
        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
            for name in ("image", "video"):
                setattr(self, f"{name}_token", f"<|{name}_pad|>")
                setattr(self, f"{name}_token_id", tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>"))
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    return ImagesOnly(Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 16), tokenizer, TEMPLATE)


def picture(seed: int, width: int, height: int) -> Any:
    from PIL import Image

    return Image.effect_noise((width, height), 60 + seed).convert("RGB")


def in_png(image: Any) -> bytes:
    held = BytesIO()
    image.save(held, format="PNG")
    return held.getvalue()


PICTURES = [picture(0, 60, 90), picture(1, 200, 40)]


@pytest.fixture
def dataset_cls() -> Any:
    """A dataset class as verl's users write them: it says itself how images are opened, here at half their size."""
    from verl.utils.dataset.rl_dataset import RLHFDataset

    class Halving(RLHFDataset):  # type: ignore[misc]
        asked = 0

        @classmethod
        async def process_multi_modal_info(cls, messages: Any, image_patch_size: int, config: Any) -> Any:
            assert image_patch_size == 14
            assert config.image_key == "images"
            cls.asked += 1
            opened = [
                part["image"]
                for message in messages
                if isinstance(message["content"], list)
                for part in message["content"]
                if part["type"] == "image"
            ]
            return [each.resize((each.width // 2, each.height // 2)) for each in opened] or None, None, None

    return Halving


CONFIG = OmegaConf.create({"image_key": "images", "filter_overlong_prompts": False, "mm_processor_kwargs": {}})


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: Any) -> Callable[[Any], list[dict[str, Any]]]:
    """The rows of a Parquet file with images, as a dataset class of verl hands them on."""
    import datasets
    import pandas as pd

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    said = "Compare <image> with <image>, please."
    columns = {
        "data_source": ["pictures", "words"],
        "prompt": [[{"role": "user", "content": said}], [{"role": "user", "content": "No <image> here."}]],
        "images": [[{"bytes": in_png(each)} for each in PICTURES], None],
        "reward_model": [{"ground_truth": "4"}] * 2,
        "extra_info": [{"index": number} for number in range(2)],
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "rows.parquet")

    def make(dataset_cls: Any) -> list[dict[str, Any]]:
        config = OmegaConf.merge(CONFIG, {"cache_dir": str(tmp_path / "cache")})
        made = dataset_cls([str(tmp_path / "rows.parquet")], tokenizer=None, config=config, processor=processor)
        return [made[number] for number in range(len(made))]

    return make


async def tasked(row: dict[str, Any], dataset_cls: Any, processor: Any, config: Any = CONFIG) -> Task:
    media = await prompt_media(row["raw_prompt"], dataset_cls=dataset_cls, data_config=config, processor=processor)
    return task_of(row, media=media)


class Screenshot:
    """A tool that shows a picture."""

    spec = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})

    async def call(self, arguments: Any, context: ToolContext, /) -> Observation:
        from agentkit_verl.media import as_medium

        return Observation.of(as_medium(picture(2, 50, 50)), "there")


CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class Seeing(ScriptedModel):
    """A scripted model that keeps what it was asked, as verl's servers would get it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.images = Images()
        self.sent: list[tuple[list[int], list[int], list[Any] | None]] = []

    async def sample_tokens(self, request: TokenRequest, emit: Any, /) -> Any:
        ids, images = server_media(request, self.images)
        expanded, same = server_media(request, self.images, expanded=True)
        assert same == images
        self.sent.append((ids, expanded, images))
        return await super().sample_tokens(request, emit)


async def rolled(task: Task, processor: Any) -> tuple[Trajectory, Seeing, Any]:
    renderer = processor_renderer(processor)
    model = Seeing([CALL, "done"], renderer=renderer)
    trajectory = await Agent(model, tools=[Screenshot()]).run(task)
    assert len(trajectory.turns) == 2, trajectory.error
    return trajectory, model, renderer


async def test_a_prompt_with_images_becomes_a_task_that_shows_what_the_dataset_class_opened(
    rows: Any, dataset_cls: Any, processor: Any
) -> None:
    shown, told = rows(dataset_cls)
    task = await tasked(shown, dataset_cls, processor)
    (message,) = task.messages
    assert [part for part in message.parts if isinstance(part, str)] == ["Compare ", " with ", ", please."]
    halves = [each.resize((each.width // 2, each.height // 2)) for each in PICTURES]
    assert [open_image(each).tobytes() for each in message.media] == [each.tobytes() for each in halves]
    assert dataset_cls.asked == 1
    assert (await tasked(told, dataset_cls, processor)).messages[0].content == "No <image> here."
    assert dataset_cls.asked == 1  # a prompt of words costs it nothing
    again = await tasked(shown, dataset_cls, processor)
    assert again == task  # so siblings share what the processor makes of their images


async def test_the_prompt_is_the_one_that_verls_own_loop_builds(rows: Any, dataset_cls: Any, processor: Any) -> None:
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    shown, _ = rows(dataset_cls)
    builder = create_continuous_token_builder(processor.tokenizer, hf_model_type="qwen2_5_vl", processor=processor)
    images, _, _ = await dataset_cls.process_multi_modal_info(shown["raw_prompt"], 14, CONFIG)
    spec = Screenshot.spec
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    schemas = [{"type": "function", "function": function}]
    theirs = builder.build_initial_tokens(shown["raw_prompt"], tools=schemas, images=images)
    _, model, _ = await rolled(await tasked(shown, dataset_cls, processor), processor)
    assert model.sent[0][1] == theirs


async def test_servers_get_a_placeholder_for_each_image_and_trainers_the_pixels_of_all(
    rows: Any, dataset_cls: Any, processor: Any
) -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.workers.rollout.utils import qwen2_5_vl_dedup_image_tokens

    shown, _ = rows(dataset_cls)
    task = await tasked(shown, dataset_cls, processor)
    trajectory, model, renderer = await rolled(task, processor)
    pad = processor.image_token_id
    for turn, count in enumerate((2, 3)):
        ids, expanded, images = model.sent[turn]
        assert images is not None
        assert (len(images), ids.count(pad)) == (count, count)
        assert expanded.count(pad) > count
        assert ids == qwen2_5_vl_dedup_image_tokens(expanded, processor)

    chain = trajectory.chains[0]
    data = multi_modal_data(shown_in(trajectory, 0, renderer), Images())
    originals = [*(open_image(each) for each in task.messages[0].media), picture(2, 50, 50)]
    assert [each.size for each in data["images"]] == [each.size for each in originals]
    assert [each.tobytes() for each in data["images"][:2]] == [each.tobytes() for each in originals[:2]]

    import torch

    worker = SimpleNamespace(processor=processor, tokenizer=processor.tokenizer, _get_mm_processor_kwargs=lambda _: {})
    output = SimpleNamespace(multi_modal_data=data, mm_processor_kwargs=None)
    made = AgentLoopWorker._compute_multi_modal_inputs(worker, output, torch.tensor(chain.token_ids))  # type: ignore[arg-type]
    grid = made["image_grid_thw"]
    assert int(grid.prod(dim=1).sum()) // 4 == list(chain.token_ids).count(pad)  # a merged patch for each placeholder
    wanted = processor.image_processor(images=data["images"], return_tensors="pt")
    assert torch.equal(made["pixel_values"], wanted["pixel_values"])


async def test_a_chain_of_words_has_no_media(rows: Any, dataset_cls: Any, processor: Any) -> None:
    _, told = rows(dataset_cls)
    task = await tasked(told, dataset_cls, processor)
    renderer = processor_renderer(processor)
    model = Seeing(["done"], renderer=renderer)
    trajectory = await Agent(model).run(task)
    assert model.sent[0][0] == model.sent[0][1]
    assert model.sent[0][2] is None
    assert multi_modal_data(shown_in(trajectory, 0, renderer), Images()) == {}


@pytest.mark.skipif(importlib.util.find_spec("qwen_vl_utils") is not None, reason="qwen_vl_utils is installed")
async def test_what_verls_own_dataset_opens_images_with_is_named_where_it_is_missing(rows: Any, processor: Any) -> None:
    from verl.utils.dataset.rl_dataset import RLHFDataset

    shown, told = rows(RLHFDataset)
    with pytest.raises(MissingExtraError, match="RLHFDataset opens images with qwen_vl_utils, which is not installed"):
        await tasked(shown, RLHFDataset, processor)
    assert (await tasked(told, RLHFDataset, processor)).messages[0].parts == ()


async def test_prompts_that_cannot_be_shown_are_refused(dataset_cls: Any, processor: Any) -> None:
    shown = [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "image": PICTURES[0]}]}]

    async def asked(messages: Any, **changed: Any) -> object:
        given = {"dataset_cls": dataset_cls, "data_config": CONFIG, "processor": processor}
        return await prompt_media(messages, **{**given, **changed})

    for kind in ("video", "audio"):
        with pytest.raises(ConfigError, match=rf"raw_prompt\[0\]\.content\[0\] must be a text or an image.*'{kind}'"):
            await asked([{"role": "user", "content": [{"type": kind, kind: "x"}]}])
    with pytest.raises(ConfigError, match=r"raw_prompt\[0\]\.content\[1\] shows an image.*no processor"):
        await asked(shown, processor=None)
    options = OmegaConf.merge(CONFIG, {"mm_processor_kwargs": {"min_pixels": 4}})
    with pytest.raises(ConfigError, match=r"data\.mm_processor_kwargs must be empty.*min_pixels"):
        await asked(shown, data_config=options)

    class Blind(dataset_cls):  # type: ignore[misc]
        @classmethod
        async def process_multi_modal_info(cls, messages: Any, image_patch_size: int, config: Any) -> Any:
            return None, None, None

    with pytest.raises(ConfigError, match="Blind opens 0 images for a prompt that shows 1"):
        await asked(shown, dataset_cls=Blind)


async def test_a_dataset_class_of_before_audio_is_asked_as_verl_asks_it(processor: Any) -> None:
    class Old:
        @classmethod
        async def process_vision_info(cls, messages: Any, image_patch_size: int, config: Any) -> Any:
            return [PICTURES[0]], None

    shown = [{"role": "user", "content": [{"type": "image", "image": "x"}]}]
    (medium,) = await prompt_media(shown, dataset_cls=Old, data_config=CONFIG, processor=processor)
    assert open_image(medium).tobytes() == PICTURES[0].tobytes()
