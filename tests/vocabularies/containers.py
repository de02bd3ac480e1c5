"""Readers of the containers that vocabularies come in: tiktoken's ranks, tekken, SentencePiece models, GGUF."""

import base64
import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from attrs import frozen


class PieceKind(IntEnum):
    """What a piece is; SentencePiece and GGUF number them alike."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@frozen
class Piece:
    """One token of a vocabulary that is written as text; its id is its place."""

    text: str
    score: float
    kind: PieceKind


def read_ranks(path: Path) -> dict[bytes, int]:
    """The tokens of a file in tiktoken's format, and the rank, which is the id, of each."""
    ranks: dict[bytes, int] = {}
    for line in path.read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


@frozen
class Tekken:
    """A vocabulary in Mistral's tekken format: its first `controls` ids are control tokens, then come the ranks."""

    ranks: dict[bytes, int]
    pattern: str
    controls: int


def read_tekken(path: Path) -> Tekken:
    """A tekken file of the kind that does not name its control tokens."""
    whole = json.loads(path.read_bytes())
    config = whole["config"]
    count = config["default_num_special_tokens"]
    ranks = {
        base64.b64decode(entry["token_bytes"]): entry["rank"]
        for entry in whole["vocab"][: config["default_vocab_size"] - count]
    }
    return Tekken(ranks, config["pattern"], count)


def read_sentencepiece(path: Path) -> list[Piece]:
    """The pieces of a SentencePiece model: field 1 of its protobuf message, each with text, score and kind."""
    pieces: list[Piece] = []
    for number, value in _fields(path.read_bytes()):
        if number == 1 and isinstance(value, bytes):
            found = dict(_fields(value))
            text, score = found[1], found.get(2, b"\0\0\0\0")
            assert isinstance(text, bytes)
            assert isinstance(score, bytes)
            kind = PieceKind(int(found.get(3, PieceKind.NORMAL)))  # type: ignore[arg-type]
            pieces.append(Piece(text.decode(), struct.unpack("<f", score)[0], kind))
    return pieces


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        match tag & 7:
            case 0:
                yield tag >> 3, varint()
            case 1 | 2 | 5 as wire:
                size = {1: 8, 5: 4}.get(wire) or varint()
                yield tag >> 3, message[at : at + size]
                at += size
            case wire:
                raise ValueError(f"protobuf wire type {wire} at byte {at}")


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_gguf(path: Path) -> dict[str, object]:
    """The metadata of a GGUF file; what follows it, the tensors, may be missing."""
    data = path.read_bytes()
    at = 0

    def take(layout: str) -> tuple[object, ...]:
        nonlocal at
        values = struct.unpack_from(f"<{layout}", data, at)
        at += struct.calcsize(f"<{layout}")
        return values

    def read(kind: int) -> object:
        nonlocal at
        if kind == _STRING:
            (size,) = struct.unpack_from("<Q", data, at)
            at += 8 + size
            return data[at - size : at].decode()
        if kind == _ARRAY:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            return take(f"{count}{_SCALARS[inner]}") if inner in _SCALARS else [read(inner) for _ in range(count)]
        return take(_SCALARS[kind])[0]

    magic, version, _, entries = struct.unpack_from("<4sIQQ", data)
    if magic != b"GGUF" or version < 2:
        raise ValueError(f"{path} is not GGUF 2 or later: {magic!r} {version}")
    at = 24
    found: dict[str, object] = {}
    for _ in range(entries):
        name = str(read(_STRING))
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        found[name] = read(kind)
    return found


def gguf_pieces(metadata: dict[str, object]) -> list[Piece]:
    """The vocabulary in the metadata of a GGUF file."""
    texts = metadata["tokenizer.ggml.tokens"]
    assert isinstance(texts, list)
    scores = metadata.get("tokenizer.ggml.scores", [0.0] * len(texts))
    kinds = metadata["tokenizer.ggml.token_type"]
    return [Piece(text, score, PieceKind(kind)) for text, score, kind in zip(texts, scores, kinds, strict=True)]  # type: ignore[call-overload]
