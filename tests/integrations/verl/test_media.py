"""Images of rows on their way to a task, and of chains to servers and trainers. Verl's own classes: `tests/verl`."""

from io import BytesIO
from typing import Any

import pytest
from agentkit_verl.media import as_medium, multi_modal_data, prompt_media, server_media

from agentkit.errors import ConfigError
from agentkit.protocols import MediaError, Medium, Placed, TokenRequest, video
from agentkit.tokens import Images, open_image

pillow: Any = pytest.importorskip("PIL.Image")

PAD = 9


class Opens:
    """A dataset class that opens images by what is at their place."""

    @classmethod
    async def process_multi_modal_info(cls, messages: Any, image_patch_size: int, config: Any) -> Any:
        parts = [part for message in messages for part in message["content"] if isinstance(message["content"], list)]
        opened = [part["image"] for part in parts if part["type"] == "image"]
        return opened or None, None, None


def picture(shade: int) -> Any:
    return pillow.new("RGB", (4 + shade, 3), (shade, 0, 0))


def placed(*starts: int) -> tuple[Placed, ...]:
    return tuple(Placed(as_medium(picture(start)), start, start + 3, PAD) for start in starts)


def request(ids: list[int], media: tuple[Placed, ...]) -> TokenRequest:
    return TokenRequest("r", ids, len(ids), 5, frozenset(), float("inf"), media=media)


@pytest.mark.slow
async def test_images_come_in_the_order_of_the_prompt() -> None:
    shown = [
        {"role": "user", "content": [{"type": "image", "image": picture(1)}, {"type": "text", "text": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": "y"}, {"type": "image", "image": picture(2)}]},
    ]
    media = await prompt_media(shown, dataset_cls=Opens, data_config={}, processor=object())
    assert [open_image(each).size for each in media] == [(5, 3), (6, 3)]


async def test_a_prompt_of_words_asks_nobody() -> None:
    for messages in ([], [{"role": "user", "content": "x"}], [{"role": "user", "content": [{"type": "text"}]}, 3]):
        assert await prompt_media(messages, dataset_cls=None, data_config=None, processor=None) == ()


IMAGE = {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "image": picture(1)}]}
ADDRESS = {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}


@pytest.mark.parametrize(
    ("message", "changed", "told"),
    [
        (IMAGE, {"processor": None}, r"raw_prompt\[0\]\.content\[1\] shows an image, and the model has no processor"),
        (IMAGE, {"data_config": {"mm_processor_kwargs": {"a": 1}}}, r"mm_processor_kwargs must be empty .* {'a': 1}"),
        (ADDRESS, {}, "Opens opens 0 images for a prompt that shows 1"),
        ({"content": [{"type": "video"}]}, {}, r"content\[0\] must be a text or an image, found the type 'video'"),
        ({"content": [{"type": "input_audio"}]}, {}, "found the type 'input_audio'"),
    ],
)
async def test_what_cannot_be_shown_is_refused(message: object, changed: dict[str, Any], told: str) -> None:
    given = {"dataset_cls": Opens, "data_config": {}, "processor": object(), **changed}
    with pytest.raises(ConfigError, match=told):
        await prompt_media([message], **given)


def test_pixels_are_kept_without_loss_and_equal_ones_are_one_medium() -> None:
    noise = pillow.effect_noise((20, 10), 90).convert("RGB")
    assert open_image(as_medium(noise)).tobytes() == noise.tobytes()
    assert as_medium(noise) == as_medium(noise.copy())
    assert open_image(as_medium(noise.convert("L"))).mode == "RGB"
    held = BytesIO()
    noise.save(held, format="JPEG")
    assert as_medium(held.getvalue()) == Medium("image", held.getvalue(), "image/jpeg")


def test_a_server_gets_one_placeholder_for_each_image_or_all_of_them() -> None:
    ids = [1, PAD, PAD, PAD, 2, PAD, PAD, PAD, 3]
    media = placed(1, 5)
    images = Images()
    collapsed, opened = server_media(request(ids, media), images)
    assert collapsed == [1, PAD, 2, PAD, 3]
    assert opened is not None
    assert [each.size for each in opened] == [(5, 3), (9, 3)]
    expanded, again = server_media(request(ids, media), images, expanded=True)
    assert (expanded, again) == (ids, opened)
    assert images.opened == 2
    assert server_media(request([1, 2], ()), images) == ([1, 2], None)


def test_a_trainer_gets_the_images_of_a_chain_in_order() -> None:
    media = placed(5, 1)
    assert [each.size for each in multi_modal_data(media, Images())["images"]] == [(9, 3), (5, 3)]
    assert multi_modal_data((), Images()) == {}
    with pytest.raises(MediaError, match="expected an image"):
        multi_modal_data([Placed(video(b"....ftyp"), 0, 1, PAD)], Images())


def test_a_row_that_was_cut_has_the_images_that_it_has_places_for() -> None:
    media = placed(1, 5, 9)

    def shown(length: int | None) -> int:
        return len(multi_modal_data(media, Images(), length=length).get("images", ()))

    assert [shown(length) for length in (None, 12, 9, 8, 5, 4, 1, 0)] == [3, 3, 2, 2, 1, 1, 0, 0]
    with pytest.raises(MediaError, match=r"a row of 6 tokens ends within .* at 5 to 8"):
        shown(6)
