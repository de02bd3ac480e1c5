"""Images of verl's rows as media of a task, and media of a chain as verl's servers and trainers take them.

A row's images go through the dataset class first, as in verl's own loops: it is what opens them and scales them to the
pixels that a row or `data` allows. What it gives is kept without loss, so the trainer gets the same pixels back.
"""

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import anyio

from agentkit.errors import ConfigError, MissingExtraError
from agentkit.protocols import MediaError, Medium, Placed, TokenRequest, image
from agentkit.tokens import Images, collapse
from agentkit_verl.plain import is_listed, listed

_IMAGE_KINDS = frozenset(("image", "image_url"))
_OTHER_KINDS = frozenset(("video", "video_url", "audio", "audio_url", "input_audio"))
_PATCH_SIZE = 14  # what verl takes for processors that do not name theirs
_PNG_LEVEL = 1  # lossless at any level; this one costs a third of the time of the usual one


async def prompt_media(
    messages: object, *, dataset_cls: Any, data_config: Any, processor: object | None
) -> tuple[Medium, ...]:
    """The images that `messages` (a row's `raw_prompt`) show, in order, as the dataset class of verl opens them.

    `dataset_cls` and `data_config` are what an agent loop is made with. Images are encoded in a thread. A prompt
    without images costs a look at its messages.

    Raises:
        ConfigError: it shows a video or a sound; there is no processor; `data.mm_processor_kwargs` are given, which
            the renderer of the chain would not know of; or the dataset class gives another number of images.
        MissingExtraError: what the dataset class opens images with is not installed.
    Cancellation: a thread that opens or encodes images ends by itself.
    """
    places = list(_image_places(messages))
    if not places:
        return ()
    if processor is None:
        raise ConfigError(f"{places[0]} shows an image, and the model has no processor: give a model that sees")
    options = _get(data_config, "mm_processor_kwargs")
    if options:
        raise ConfigError(
            f"data.mm_processor_kwargs must be empty where prompts show images, found {dict(options)!r:.200}: the "
            "chain is rendered with the processor's own settings"
        )
    opened = await _opened(list(listed(messages)), dataset_cls, data_config, processor)
    if len(opened) != len(places):
        raise ConfigError(
            f"{dataset_cls.__name__} opens {len(opened)} images for a prompt that shows {len(places)}, the first at "
            f"{places[0]}"
        )
    return await anyio.to_thread.run_sync(lambda: tuple(map(as_medium, opened)), abandon_on_cancel=True)


def as_medium(picture: Any) -> Medium:
    """A Pillow image as a medium, its pixels in RGB kept without loss; the bytes or the path of a file as they are.

    Raises:
        ConfigError: it is none of these.
    """
    if not hasattr(picture, "convert"):
        return image(picture)
    held = BytesIO()
    picture.convert("RGB").save(held, format="PNG", compress_level=_PNG_LEVEL)
    return Medium("image", held.getvalue(), "image/png")


def multi_modal_data(placed: Sequence[Placed], images: Images, *, length: int | None = None) -> dict[str, Any]:
    """`AgentLoopOutput.multi_modal_data` for a chain that shows `placed`: its images in order, or nothing.

    Of a row that is shorter than its chain, `length` are the tokens of prompt and response: what is shown later is left
    out, for a trainer wants as many images as the row has places for.

    Raises:
        MediaError: one is no image, or `length` ends in the middle of one.
    """
    shown: list[Any] = []
    for each in placed:
        if length is not None and each.stop > length:
            if each.start < length:
                raise MediaError(
                    f"a row of {length} tokens ends within {each.medium!r}, at {each.start} to {each.stop}"
                )
            continue
        shown.append(images.open(each.medium))
    return {"images": shown} if shown else {}


def server_media(
    request: TokenRequest, images: Images, *, expanded: bool = False
) -> tuple[list[int], list[Any] | None]:
    """The `prompt_ids` and `image_data` of a request to verl's servers.

    vLLM and TensorRT-LLM expand a placeholder for each image themselves and get the prompt with one; `expanded` leaves
    the prompt as it is, as verl sends it to SGLang.

    Raises:
        MediaError: a medium of the request is no image.
    """
    if not request.media:
        return list(request.prompt_ids), None
    ids = list(request.prompt_ids) if expanded else collapse(request.prompt_ids, request.media)
    return ids, [images.open(each.medium) for each in request.media]


async def _opened(messages: list[object], dataset_cls: Any, data_config: Any, processor: object) -> Sequence[object]:
    patch_size = getattr(getattr(processor, "image_processor", None), "patch_size", _PATCH_SIZE)
    opening = getattr(dataset_cls, "process_multi_modal_info", None) or dataset_cls.process_vision_info
    try:
        images, *_ = await opening(messages, image_patch_size=patch_size, config=data_config)
    except ImportError as error:
        raise MissingExtraError(
            f"{dataset_cls.__name__} opens images with {error.name or error}, which is not installed: "
            "pip install qwen-vl-utils torchvision, or name a dataset class of your own (data.custom_cls)"
        ) from error
    return [] if images is None else list(images)


def _image_places(messages: object) -> Iterator[str]:
    """The places of the parts that show images.

    Raises:
        ConfigError: a part is a video or a sound.
    """
    for number, message in enumerate(listed(messages) if is_listed(messages) else ()):
        content = message.get("content") if isinstance(message, Mapping) else None
        for at, part in enumerate(listed(content) if is_listed(content) else ()):
            kind = part.get("type") if isinstance(part, Mapping) else None
            place = f"raw_prompt[{number}].content[{at}]"
            if kind in _OTHER_KINDS:
                raise ConfigError(
                    f"{place} must be a text or an image, found the type {kind!r}: agents see images only"
                )
            if kind in _IMAGE_KINDS:
                yield place


def _get(config: Any, name: str) -> Any:
    return config.get(name) if hasattr(config, "get") else getattr(config, name, None)
