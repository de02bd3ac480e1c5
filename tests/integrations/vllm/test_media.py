"""Images on their way to vLLM: unexpanded placeholders beside the images, and what it makes of them is checked."""

import asyncio
from collections.abc import AsyncGenerator
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from agentkit_vllm.requests import Requests
from attrs import define, field
from PIL import Image

from agentkit.errors import ModelError
from agentkit.protocols import MediaError, Medium, Placed, TokenChunk, TokenRequest, image, video

PAD = 9


def picture(color: int) -> Medium:
    held = BytesIO()
    Image.new("RGB", (4, 3), (color, 0, 0)).save(held, format="PNG")
    return image(held.getvalue())


RED, DARK = picture(255), picture(1)
PROMPT = [5, PAD, PAD, PAD, 6, PAD, PAD, 7]
SHOWN = (Placed(RED, 1, 4, PAD), Placed(DARK, 5, 7, PAD))


@define
class Engine:
    """Expands placeholders as vLLM does: by what it makes of each image."""

    lengths: dict[str, int]
    prompts: list[Any] = field(factory=list)
    aborted: list[str] = field(factory=list)
    model_config: Any = field(factory=lambda: SimpleNamespace(max_model_len=64))

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncGenerator[Any, None]:
        self.prompts.append(prompt)
        ids = list(prompt["prompt_token_ids"])
        if "type" not in prompt:  # else it counts as processed
            lengths = iter([self.lengths[name] for name in prompt["multi_modal_uuids"]["image"]])
            ids = [each for token in ids for each in [token] * (next(lengths) if token == PAD else 1)]
        await asyncio.sleep(0)
        sampled = SimpleNamespace(
            index=0, token_ids=(3,), logprobs=[{3: SimpleNamespace(logprob=-1.0)}], finish_reason="stop", stop_reason=3
        )
        yield SimpleNamespace(outputs=[sampled], prompt_token_ids=ids, prompt_logprobs=None)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def shutdown(self) -> None: ...


class Params:
    __struct_fields__ = ("temperature",)

    def __init__(self, **values: Any) -> None: ...


SAMPLING = SimpleNamespace(SamplingParams=Params, RequestOutputKind=SimpleNamespace(DELTA="delta"))


def right_engine() -> Engine:
    return Engine({RED.digest.hex(): 3, DARK.digest.hex(): 2})


async def ask(
    engine: Engine, *, shown: tuple[Placed, ...] = SHOWN, requests: Requests | None = None
) -> list[TokenChunk]:
    chunks: list[TokenChunk] = []
    request = TokenRequest("r", PROMPT, len(PROMPT), 10, frozenset({3}), 60.0, media=shown)
    await (requests or Requests(engine, SAMPLING)).run(request, {}, 10, chunks.append)
    return chunks


async def test_each_image_goes_as_one_placeholder_and_its_pixels():
    engine = right_engine()
    assert await ask(engine) == [TokenChunk([3], [-1.0])]
    (prompt,) = engine.prompts
    assert prompt["prompt_token_ids"] == [5, PAD, 6, PAD, 7]
    red, dark = prompt["multi_modal_data"]["image"]
    assert (red.getpixel((0, 0)), dark.getpixel((3, 2)), red.mode) == ((255, 0, 0), (1, 0, 0), "RGB")
    assert prompt["multi_modal_uuids"] == {"image": [RED.digest.hex(), DARK.digest.hex()]}


@pytest.mark.parametrize("lengths", [(3, 3), (2, 3), (3, 1)])
async def test_prompt_that_vllm_makes_otherwise_is_refused_before_anything_is_recorded(lengths):
    engine = Engine(dict(zip((RED.digest.hex(), DARK.digest.hex()), lengths, strict=True)))
    chunks: list[TokenChunk] = []
    request = TokenRequest("r", PROMPT, len(PROMPT), 10, frozenset({3}), 60.0, media=SHOWN)
    with pytest.raises(ModelError, match="the renderer's processor is not the model's"):
        await Requests(engine, SAMPLING).run(request, {}, 10, chunks.append)
    assert chunks == []
    assert engine.aborted == ["r-0"]


async def test_image_that_was_shown_before_is_not_opened_again():
    engine = right_engine()
    requests = Requests(engine, SAMPLING)
    for _ in range(3):
        await ask(engine, requests=requests)
    assert requests._images.opened == 2


async def test_what_it_cannot_show_is_said():
    clip = Placed(video(b"\0\0\0\x18ftypmp42"), 1, 4, PAD)
    with pytest.raises(MediaError, match="shows images, found <video/mp4"):
        await ask(right_engine(), shown=(clip,))
    broken = Placed(image(b"\x89PNG\r\n\x1a\nno more"), 1, 4, PAD)
    with pytest.raises(MediaError, match="cannot be opened"):
        await ask(right_engine(), shown=(broken,))


async def test_text_alone_goes_as_it_did():
    engine = right_engine()
    request = TokenRequest("r", [5, 6], 2, 10, frozenset({3}), 60.0)
    await Requests(engine, SAMPLING).run(request, {}, 10, lambda chunk: None)
    assert engine.prompts == [{"type": "token", "prompt_token_ids": [5, 6]}]
