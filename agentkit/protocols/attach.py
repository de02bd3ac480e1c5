"""Media from files, bytes and Pillow images; their type is read from their first bytes, never from a name."""

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Protocol, TypeAlias, cast, runtime_checkable

from agentkit.errors import ConfigError
from agentkit.protocols.media import Kind, Medium


@runtime_checkable
class _Pillow(Protocol):
    """What is used of `PIL.Image.Image`."""

    mode: str
    save: Callable[..., object]


Source: TypeAlias = "bytes | bytearray | memoryview | str | os.PathLike[str]"
"""The bytes of a file, or its path."""

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (8, b"AVI ", "video/x-msvideo"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
)


def image(source: "Source | _Pillow", *, mime: str | None = None) -> Medium:
    """An image: the path of a file, its bytes, or a Pillow image (kept as PNG, without loss).

    PNG, JPEG, GIF, WebP and BMP are known by their first bytes; others need `mime`. A file is read now.

    Raises:
        ConfigError: there is no such file, or it is no image.
    """
    if not isinstance(source, bytes | bytearray | memoryview | str | os.PathLike) and isinstance(source, _Pillow):
        held = BytesIO()
        source.save(held, format="PNG")
        source = held.getvalue()
    return _medium("image", source, mime)


def video(source: Source, *, mime: str | None = None) -> Medium:
    """A video: the path of a file or its bytes. MP4, WebM and AVI are known by their first bytes. A file is read now.

    Raises:
        ConfigError: there is no such file, or it is no video.
    """
    return _medium("video", source, mime)


def audio(source: Source, *, mime: str | None = None) -> Medium:
    """A sound: the path of a file or its bytes. WAV, MP3, FLAC and Ogg are known by their first bytes. Read now.

    Raises:
        ConfigError: there is no such file, or it is no sound.
    """
    return _medium("audio", source, mime)


def _medium(kind: Kind, source: object, mime: str | None) -> Medium:
    data = _bytes(kind, source)
    found = mime or next((mime for at, signature, mime in _SIGNATURES if data.startswith(signature, at)), None)
    if found is None or not found.startswith(f"{kind}/"):
        raise ConfigError(
            f"expected the bytes of {_A[kind]}, found {found or 'an unknown type'} ({len(data)} bytes): "
            f"pass mime='{kind}/...' where it is one all the same"
        )
    return Medium(kind, data, found)


def _bytes(kind: Kind, source: object) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"{kind} takes a path or bytes, found {type(source).__name__}")
    path = cast("str | os.PathLike[str]", source)
    if isinstance(path, str) and path.startswith(("http://", "https://", "data:")):
        raise ConfigError(f"{kind} takes a path or bytes, found a URL ({path[:40]!r}): fetch it, and pass its bytes")
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
        raise ConfigError(f"{kind} {str(path)[:200]!r} cannot be read: {type(error).__name__}: {error}") from error


_A = {"image": "an image", "video": "a video", "audio": "a sound"}
