"""Media in messages and observations: what is in them, what is not, and what they cost."""

import pickle
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, ToolError
from agentkit.protocols import Medium, Message, Observation, Task, audio, image, user, video

PNG = b"\x89PNG\r\n\x1a\n" + b"secret pixels" * 20
PICTURE = image(PNG)


def test_message_of_text_and_media_reads_in_order() -> None:
    said = user("What is ", PICTURE, "this?")
    assert (said.content, said.parts, said.media) == ("What is this?", ("What is ", PICTURE, "this?"), (PICTURE,))
    assert user(PICTURE).content == ""


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4))
def test_texts_alone_are_a_plain_message(texts: list[str]) -> None:
    assert user(*texts) == Message("user", "".join(texts))
    assert Observation.of(*texts) == Observation("".join(texts))


def test_observation_hands_its_media_to_the_message() -> None:
    seen = Observation.of("The page now:", PICTURE, done=True, metadata={"url": "x"})
    assert (seen.content, seen.done, seen.metadata) == ("The page now:", True, {"url": "x"})
    assert seen.message() == user("The page now:", PICTURE)
    answer = Observation("The page now:", call_id="c", name="look", parts=seen.parts).message()
    assert answer == Message("tool", "The page now:", (), "c", "look", None, seen.parts)


def test_values_with_media_pickle_and_hash() -> None:
    said = user("a", PICTURE)
    again = pickle.loads(pickle.dumps(said))
    assert again == said
    assert again.media[0].digest == PICTURE.digest
    assert len({PICTURE, image(PNG), image(PNG + b"x")}) == 2


def test_bytes_of_media_are_in_no_repr() -> None:
    texts = [repr(PICTURE), repr(user("a", PICTURE)), repr(Observation.of(PICTURE)), repr(Task("t", [user(PICTURE)]))]
    for text in texts:
        assert "secret" not in text
        assert PICTURE.digest.hex()[:12] in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Message("user", "b", parts=("a", PICTURE)), "content must be the texts of parts"),
        (lambda: Message("user", "a", parts=("a",)), "texts alone"),
        (lambda: Message("user", "a", parts=["a", PICTURE]), "tuple of texts and media"),  # type: ignore[arg-type]
        (lambda: Message("user", "a", parts=("a", PNG)), "tuple of texts and media"),  # type: ignore[arg-type]
        (lambda: Message("assistant", "a", parts=("a", PICTURE)), "no media"),
        (lambda: user("a", PNG), "tuple of texts and media"),  # type: ignore[arg-type]
        (lambda: image(b"<svg>"), "unknown type"),
        (lambda: image(b"RIFF....WAVE"), "audio/wav"),
        (lambda: image("https://host/a.png"), "fetch it"),
        (lambda: image("/nowhere/a.png"), "cannot be read"),
        (lambda: image("a\0b"), "cannot be read"),
        (lambda: image(7), "path or bytes, found int"),  # type: ignore[arg-type]
        (lambda: Medium("image", b"x", "audio/wav"), "mime type of that kind"),
        (lambda: Medium("smell", b"x", "smell/rose"), "a medium has a kind"),  # type: ignore[arg-type]
        (lambda: Medium("image", "x", "image/png"), "found 'image', str"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_medium_or_does_not_fit_is_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make()  # type: ignore[operator]
    assert "secret" not in str(caught.value)


def test_observation_that_does_not_fit_is_the_tools_fault() -> None:
    with pytest.raises(ToolError, match="content must be the texts of parts"):
        Observation("b", parts=("a", PICTURE))


@pytest.mark.parametrize(
    ("made", "mime"),
    [
        (image(PNG), "image/png"),
        (image(b"\xff\xd8\xff\xe0"), "image/jpeg"),
        (image(b"GIF89a"), "image/gif"),
        (image(b"RIFF\0\0\0\0WEBP"), "image/webp"),
        (image(bytearray(b"<svg/>"), mime="image/svg+xml"), "image/svg+xml"),
        (audio(b"RIFF\0\0\0\0WAVE"), "audio/wav"),
        (audio(memoryview(b"ID3\x04")), "audio/mpeg"),
        (video(b"\0\0\0\x18ftypmp42"), "video/mp4"),
        (video(b"\x1a\x45\xdf\xa3"), "video/webm"),
    ],
)
def test_type_is_read_from_the_first_bytes(made: Medium, mime: str) -> None:
    assert (made.mime, made.kind) == (mime, mime.partition("/")[0])


def test_file_is_read_when_the_medium_is_made(tmp_path: Path) -> None:
    path = tmp_path / "shot.jpg"  # its name lies
    path.write_bytes(PNG)
    shown = (image(path), image(str(path)))
    path.unlink()
    assert shown == (PICTURE, PICTURE)


def test_pillow_image_is_kept_without_loss() -> None:
    pillow = pytest.importorskip("PIL.Image")
    noise = pillow.frombytes("RGB", (5, 4), bytes(range(60)))
    kept = image(noise)
    assert kept.mime == "image/png"
    assert pillow.open(BytesIO(kept.data)).tobytes() == noise.tobytes()
