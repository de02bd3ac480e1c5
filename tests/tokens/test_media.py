"""Images are opened once and safely; prompts are folded to one placeholder a medium."""

from collections.abc import Sequence
from io import BytesIO

import pytest
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from PIL import Image

from agentkit.protocols import MediaError, Medium, Message, Placed, ToolSpec, image, user, video
from agentkit.tokens import ByteTokenizer, Images, Ledger, SafeEncoder, byte_chatml, collapse, open_image
from agentkit.tokens.branches import Branches, Prompt, Spoken


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


@define
class Places:
    """Every id of 100 or more stands for a medium of as many tokens as it has bytes, and 8 follows it."""

    stop_ids: frozenset[int] = frozenset({1})

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return [each for message in messages for each in (7, *self._shown(message))]

    def bridge(self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], *, sampled: Sequence[int]):
        return (), self.prompt(new, tools)

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def place(self, ids: Sequence[int], media: Sequence[Medium]) -> tuple[Placed, ...]:
        starts = [at for at, each in enumerate(ids) if each >= 100 and (at == 0 or ids[at - 1] < 100)]
        return tuple(Placed(medium, at, at + len(medium.data), 100) for at, medium in zip(starts, media, strict=True))

    def _shown(self, message: Message) -> list[int]:
        return [each for medium in message.media for each in (*[100] * len(medium.data), 8)]


small = st.builds(lambda n: Medium("image", bytes(n), "image/png"), st.integers(1, 4))
said = st.lists(small, max_size=2).map(lambda media: user("x", *media))


class Trees(RuleBasedStateMachine):
    """Chains that grow, fork and are asked again; the oracle carries along the whole conversation of each place."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.renderer = Places()
        self.branches = Branches(self.ledger, self.renderer, max_tokens=400)
        self.places: list[tuple[Prompt, list[Medium]]] = []

    @rule(messages=st.lists(said, min_size=1, max_size=2))
    def open(self, messages: list[Message]) -> None:
        self.note(self.branches.open(messages, ()), [medium for message in messages for medium in message.media])

    @precondition(lambda self: self.places)
    @rule(data=st.data(), messages=st.lists(said, min_size=1, max_size=2), sampled=st.integers(0, 2))
    def go_on(self, data: st.DataObject, messages: list[Message], sampled: int) -> None:
        prompt, media = data.draw(st.sampled_from(self.places))
        prompt = self.branches.again(prompt)
        ids = [3] * sampled
        self.ledger.sample(prompt.chain, ids, [0.0] * sampled, turn=0)
        spoken = Spoken(prompt.chain, prompt.length, prompt.length + sampled, 0, Message("assistant", ""))
        after = self.branches.extend(spoken, messages, ())
        self.note(after, [*media, *(medium for message in messages for medium in message.media)])

    def note(self, prompt: Prompt | None, media: list[Medium]) -> None:
        if prompt is not None:
            self.places.append((prompt, media))

    @invariant()
    def every_place_shows_what_its_conversation_does(self) -> None:
        for prompt, media in self.places:
            ids = list(self.ledger.view(prompt.chain))[: prompt.length]
            placed = self.branches.media(prompt)
            assert [each.medium for each in placed] == media
            assert placed == self.renderer.place(ids, media)


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)


def test_media_before_a_renderer_that_shows_none_are_an_error() -> None:
    branches = Branches(ledger := Ledger(), byte_chatml(), max_tokens=1000)
    with pytest.raises(MediaError, match="renderer shows no media, found <image/png"):
        branches.open([user("x", png(1, 1))], ())
    assert len(ledger) == 0
    prompt = branches.open([user("x")], ())
    assert prompt is not None
    ledger.sample(prompt.chain, [3], [0.0], turn=0)
    spoken = Spoken(prompt.chain, prompt.length, prompt.length + 1, 0, Message("assistant", "."))
    with pytest.raises(MediaError, match="renderer shows no media"):
        branches.extend(spoken, [user("y", png(1, 1))], ())
    assert ledger.length(prompt.chain) == prompt.length + 1
