"""Vocabularies as the tokenizers library reads them: byte-level BPE, and BPE over text in the way of SentencePiece."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from tests.vocabularies.containers import Piece, PieceKind

Json: TypeAlias = dict[str, Any]


@frozen
class Control:
    """A token that is found in text as it stands, before anything else is.

    Attributes:
        text: how it is written.
        special: whether decoding may skip it and `split_special_tokens` splits it.
        rstrip: whether it swallows the white space after it.
    """

    text: str
    special: bool = True
    rstrip: bool = False


def byte_bpe(
    ranks: Mapping[bytes, int], pattern: str, *, normalizer: Json | None = None, first: Sequence[str] = ()
) -> Json:
    """A byte-level BPE out of ranks, as tiktoken encodes with them; tokens of `first` have the ids before them."""
    spelled = {token: spell(token) for token in ranks}
    vocabulary = {text: i for i, text in enumerate(first)}
    vocabulary |= {text: len(first) + ranks[token] for token, text in spelled.items()}
    merges = [(spelled[left], spelled[right]) for left, right in merges_of(ranks)]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    model = {"vocab": vocabulary, "merges": merges, "ignore_merges": True}
    return byte_level(model, [split, byte_level_step()], normalizer=normalizer)


def byte_level(model: Json, pre_tokenizers: Sequence[Json], *, normalizer: Json | None = None) -> Json:
    """A byte-level BPE whose vocabulary is spelled already."""
    pre_tokenizer = {"type": "Sequence", "pretokenizers": pre_tokenizers}
    return _document(model, normalizer=normalizer, pre_tokenizer=pre_tokenizer, decoder=byte_level_step())


def byte_level_step(*, words: bool = False) -> Json:
    """The step that spells bytes, after it cut text into words in the way of GPT-2 if `words`."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words}


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every way to put a token together from two others: in the order of the ranks of whole, left and right."""
    found: list[tuple[int, int, int, bytes, bytes]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def spell(token: bytes) -> str:
    """A token's bytes as the letters that byte-level vocabularies write them with."""
    return token.decode("latin-1").translate(_LETTERS)


def _letters() -> dict[int, str]:
    """Bytes that print stand for themselves; the others are the letters from U+0100 on."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printed)
    return {byte: chr(byte) for byte in printed} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


_LETTERS = _letters()


def text_bpe(pieces: Sequence[Piece], merges: Sequence[tuple[str, str]] | None = None, *, prefix: bool) -> Json:
    """A BPE over text in which "▁" is the space and bytes stand in for what has no piece.

    Args:
        pieces: the vocabulary, by id.
        merges: the merges in their order; None: those that the scores of the pieces imply.
        prefix: whether a "▁" is put before each stretch of text, as in the models of Llama 2 and Mistral.
    """
    space: Json = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizers = [{"type": "Prepend", "prepend": "▁"}, space]
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _document(
        {
            "vocab": {piece.text: i for i, piece in enumerate(pieces)},
            "merges": scored_merges(pieces) if merges is None else merges,
            "unk_token": next(piece.text for piece in pieces if piece.text == "<unk>"),
            "fuse_unk": True,
            "byte_fallback": True,
        },
        normalizer={"type": "Sequence", "normalizers": normalizers} if prefix else space,
        pre_tokenizer=None if prefix else _split_at_spaces(),
        decoder={"type": "Sequence", "decoders": decoders},
    )


def scored_merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others: the best score first, then by the ids of left and right."""
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    found: list[tuple[float, int, int, str, str]] = []
    for piece in pieces:
        if piece.kind is PieceKind.NORMAL:
            for cut in range(1, len(piece.text)):
                left, right = piece.text[:cut], piece.text[cut:]
                if left in ids and right in ids:
                    found.append((-piece.score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def with_controls(backend: Json, controls: Iterable[Control], *, bos: str | None = None) -> Json:
    """The same backend with control tokens: those it has keep their ids, the others get the next ones, in order.

    Args:
        backend: what `byte_bpe` or `text_bpe` gave.
        controls: the control tokens.
        bos: the one that `encode(..., add_special_tokens=True)` puts first.
    """
    ids = dict(backend["model"]["vocab"])
    added: list[Json] = []
    for control in controls:
        number = ids.setdefault(control.text, len(ids))
        flags = {"single_word": False, "lstrip": False, "rstrip": control.rstrip, "normalized": False}
        added.append({"id": number, "content": control.text, **flags, "special": control.special})
    after = backend["post_processor"] if bos is None else _starting_with(bos, ids[bos])
    return backend | {"added_tokens": sorted(added, key=lambda each: each["id"]), "post_processor": after}


def _starting_with(bos: str, number: int) -> Json:
    first, one, other = (
        {"SpecialToken": {"id": bos, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [first, one],
        "pair": [first, one, first, other],
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }


def _split_at_spaces() -> Json:
    return {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def _document(model: Json, *, normalizer: Json | None, pre_tokenizer: Json | None, decoder: Json) -> Json:
    defaults = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "BPE", **defaults, **model},
    }
