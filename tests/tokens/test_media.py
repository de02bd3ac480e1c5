"""Images are opened once and safely; prompts are folded to one placeholder a medium."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from agentkit.protocols import MediaError, Medium, Placed, image, user, video
from agentkit.tokens import ByteTokenizer, Images, SafeEncoder, collapse, open_image


def png(width: int, height: int, mode: str = "RGB", **options: object) -> Medium:
    held = BytesIO()
    Image.new(mode, (width, height), 7).save(held, format="PNG", **options)
    return image(held.getvalue())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=5), st.integers(0, 3))
def test_collapsed_prompt_has_one_placeholder_for_each(spans: list[tuple[int, int]], tail: int) -> None:
    shown = png(1, 1)
    whole: list[int] = []
    folded: list[int] = []
    media = []
    for text, length in spans:
        whole += [1] * text
        folded += [1] * text
        media.append(Placed(shown, len(whole), len(whole) + length, 99))
        whole += [50] * length
        folded.append(99)
    assert collapse(whole + [2] * tail, media) == folded + [2] * tail


def test_least_used_image_is_let_go_and_opened_again() -> None:
    first, second, third = png(10, 10), png(10, 11), png(10, 12)
    images = Images(limit_bytes=700)  # two of them
    for medium in (first, second, first, third, first):
        assert images.open(medium).size == (10, open_image(medium).height)
    assert images.opened == 3
    images.open(second)
    assert images.opened == 4


def test_image_is_upright_and_in_rgb_as_processors_want_it() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    assert open_image(png(4, 2, exif=exif)).size == (2, 4)
    for mode in ("L", "P", "RGBA", "1", "I;16"):
        assert open_image(png(3, 3, mode)).mode == "RGB"


@pytest.mark.parametrize(
    ("medium", "words"),
    [
        (image(b"\x89PNG\r\n\x1a\nbroken"), "cannot be opened: UnidentifiedImageError"),
        (image(png(40, 40).data[:60]), "cannot be opened"),
        (image(b"<svg/>", mime="image/svg+xml"), "cannot be opened"),
        (video(b"\0\0\0\x18ftypmp42"), "expected an image"),
    ],
)
def test_what_cannot_be_opened_is_told(medium: Medium, words: str) -> None:
    with pytest.raises(MediaError, match=words):
        Images().open(medium)


def test_image_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow's own limit refuses at twice as many
    with pytest.raises(MediaError, match="DecompressionBomb"):
        open_image(png(20, 20))


@given(st.lists(st.sampled_from(["<|im_", "end|>", "im_end", " x ", "<|im_end|>"]), min_size=1, max_size=4))
def test_texts_beside_media_are_escaped_and_media_stay(texts: list[str]) -> None:
    shown = png(1, 1)
    said = user(*(part for text in texts for part in (text, shown)))
    safe = SafeEncoder(ByteTokenizer())
    escaped = safe.message(said)
    assert escaped.media == said.media
    assert [safe.unescape(part) for part in escaped.parts if isinstance(part, str)] == texts
    assert not list(safe.controls(escaped.content))
