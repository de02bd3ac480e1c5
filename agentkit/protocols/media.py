"""What is shown beside text: images, videos and sounds in messages, and where in a prompt they stand."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

from attrs import frozen

from agentkit.errors import ConfigError

Kind: TypeAlias = Literal["image", "video", "audio"]
KINDS: tuple[Kind, ...] = ("image", "video", "audio")


class MediaError(ConfigError):
    """Media cannot be shown: they cannot be read, or the prompt has not one place of the right length for each."""


@frozen(repr=False)
class Medium:
    """An image, a video or a sound, as the bytes of its file (`data`) and their type (`mime`, as `image/png`).

    Make one with `image`, `video` or `audio`. Its repr is short and never shows the bytes.
    """

    kind: Kind
    data: bytes
    mime: str

    def __attrs_post_init__(self) -> None:
        kind, data, mime = cast(
            "tuple[object, object, object]", (self.kind, self.data, self.mime)
        )  # as user code has it
        is_of_kind = kind in KINDS and isinstance(mime, str) and mime.startswith(f"{kind}/")
        if not is_of_kind or not isinstance(data, bytes):
            size = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
            raise ConfigError(
                f"a medium has a kind ({', '.join(KINDS)}), bytes, and a mime type of that kind, found {kind!r:.100}, "
                f"{size} and {mime!r:.100}"
            )

    def __repr__(self) -> str:
        return f"<{self.mime}, {len(self.data)} bytes, sha256 {self.digest.hex()[:12]}>"

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of `data`: 32 bytes, worked out once."""
        return sha256(self.data).digest()


Part: TypeAlias = "str | Medium"
"""A piece of a message."""


def check_parts(content: str, parts: object) -> None:
    """See that `parts` hold media, and that their texts, put one after another, are `content`.

    Raises:
        ConfigError: they do not.
    """
    if not isinstance(parts, tuple) or not all(isinstance(part, str | Medium) for part in parts):
        kinds = [type(part).__name__ for part in parts] if isinstance(parts, tuple) else type(parts).__name__
        raise ConfigError(f"parts must be a tuple of texts and media, found {kinds}: make media with image(...)")
    if all(isinstance(part, str) for part in parts):
        raise ConfigError(f"parts must hold a medium, found texts alone: leave parts out, found {parts!r:.200}")
    if text_of(parts) != content:
        raise ConfigError(f"content must be the texts of parts one after another, found {content!r:.200}")


def text_of(parts: "Iterable[Part]") -> str:
    """The texts of `parts`, one after another."""
    return "".join(part for part in parts if isinstance(part, str))


@frozen
class Placed:
    """The ids `start <= t < stop` of a prompt stand for `medium`.

    `placeholder` is the id that a template writes for a medium not yet expanded, as servers want it that expand
    prompts themselves.
    """

    medium: Medium
    start: int
    stop: int
    placeholder: int


@runtime_checkable
class PlacesMedia(Protocol):
    """A renderer whose messages may hold media."""

    def place(self, ids: Sequence[int], media: Sequence[Medium]) -> tuple[Placed, ...]:
        """Where in rendered `ids` each of `media` stands, in the order of the ids. O(ids).

        Raises:
            MediaError: there is not one place for each, or one is not as long as its medium.
        """
        ...
