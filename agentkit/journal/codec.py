r"""Turns, trajectories and tasks as JSON text, and back, without loss.

Token bytes are kept apart from the JSON: `Encoded.blobs` holds one compressed blob per chain, in the order of
`Trajectory.walk()`, without what a fork shares with its parent. So are the bytes of media: the JSON names them by
their SHA-256, `Encoded.media` has them. Text is written raw in UTF-8, never as `\u` escapes: two lone surrogates side
by side would come back from escapes as one character. So text with lone surrogates gives `bytes`, all other text `str`,
and SQLite keeps the two apart.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias, TypeVar

import cattrs
from attrs import frozen
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from agentkit.journal.blobs import pack_tokens, unpack_tokens
from agentkit.journal.errors import JournalError
from agentkit.journal.media import Fetch, attach_media, media_of_trajectory, media_of_turn, parts_tree
from agentkit.journal.opaque import pack, unpack
from agentkit.journal.prefixes import Tokens, shared_prefix, with_prefix, without_prefix
from agentkit.protocols import (
    CallFault,
    Chain,
    ChainDelta,
    Medium,
    Message,
    Observation,
    Span,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

Text: TypeAlias = "str | bytes"
"""Text for an SQLite column: `bytes` where it holds lone surrogates."""

T = TypeVar("T")

_NO_TOKENS: Tokens = (b"", b"", b"")

_FREE_FORM: "dict[type, tuple[str, ...]]" = {
    ToolCall: ("arguments",),
    Observation: ("metadata",),
    Task: ("data", "metadata"),
}
# Written only where there is something in it, so that text is as it always was.
_SPARSE: "dict[type, tuple[str, ...]]" = {Message: ("parts",), Observation: ("parts",)}


@frozen
class Encoded:
    """A record: its JSON, the compressed tokens of its chains, and a digest of both before compression.

    `media` are those that the JSON names; the digest covers them through their names.
    """

    record: Text
    blobs: tuple[bytes, ...]
    digest: bytes
    media: tuple[Medium, ...] = ()


def encode_text(text: str) -> Text:
    """`text` for a column: itself, or its UTF-8 with surrogates let through."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")
    return text


def decode_text(text: Text) -> str:
    """What `encode_text` was given."""
    return text if isinstance(text, str) else text.decode(errors="surrogatepass")


class Codec:
    """Encodes and decodes records. Holds generated converters, so make one and keep it; safe to share by threads."""

    def __init__(self) -> None:
        self._converter = _converter()

    def encode_turn(self, turn: Turn, deltas: Sequence[ChainDelta] = ()) -> Encoded:
        """A turn, and one blob per delta; the digest covers all of the deltas."""
        record = _dumps(self._converter.unstructure(turn))
        pieces = [delta.piece for delta in deltas]
        places = _dumps(self._converter.unstructure(list(deltas)))
        return Encoded(record, tuple(map(_blob, pieces)), _digest(record, pieces, places), media_of_turn(turn))

    def decode_turn(self, record: Text, fetch: "Fetch | None" = None) -> Turn:
        """The turn that `encode_turn` was given; `fetch` gives the bytes of a medium by its SHA-256.

        Raises:
            JournalError: the record is damaged or not of this form, or a medium is missing.
        """
        return self._structure(attach_media(_loads(record), record, fetch), Turn)

    def encode_trajectory(self, trajectory: Trajectory) -> Encoded:
        """A trajectory with those of its sub-agents; one blob per chain, in the order of `walk()`."""
        chains = [chain for each in trajectory.walk() for chain in each.chains]
        shared = [shared_prefix(each.chains, n) for each in trajectory.walk() for n in range(len(each.chains))]
        tree = self._converter.unstructure(trajectory)
        _note_shared(tree, shared[::-1])
        record = _dumps(tree)
        blobs = tuple(pack_tokens(*without_prefix(chain, n)) for chain, n in zip(chains, shared, strict=True))
        return Encoded(record, blobs, _digest(record, chains), media_of_trajectory(trajectory))

    def decode_trajectory(
        self, record: Text, blobs: "Sequence[bytes | None]", fetch: "Fetch | None" = None
    ) -> Trajectory:
        """The trajectory that `encode_trajectory` was given; a chain whose blob is None is left without its tokens.

        `fetch` gives the bytes of a medium by its SHA-256.

        Raises:
            JournalError: the record is damaged, not of this form, the number of blobs is another, or a medium is
                missing.
        """
        tree, rest = attach_media(_loads(record), record, fetch), list(blobs)
        rest.reverse()
        _attach(tree, rest)
        if rest:
            raise JournalError(f"a trajectory has {len(rest)} more blobs of tokens than chains")
        return self._structure(tree, Trajectory)

    def grade_blame(self, record: Text) -> str | None:
        """The blame of the grade in the record of a trajectory, without decoding the rest.

        Raises:
            JournalError: the record is damaged.
        """
        try:
            blame: str | None = (_loads(record)["grade"] or {}).get("blame")
        except (KeyError, TypeError, AttributeError) as error:
            raise JournalError(f"a trajectory has no grade of this form: {error!r}") from error
        return blame

    def task_digest(self, task: Task) -> bytes:
        """What is asked (messages, data, budget) as a digest that is the same in every process.

        Of values that JSON cannot hold only the type counts: a repr may name an address.
        """
        tree = self._converter.unstructure(task)
        asked = {name: _steady(tree[name]) for name in ("messages", "data", "budget")}
        text = json.dumps(asked, sort_keys=True, default=_number)
        return sha256(text.encode()).digest()

    def encode_task(self, task: Task) -> Text:
        """A task."""
        return _dumps(self._converter.unstructure(task))

    def decode_task(self, record: Text, fetch: "Fetch | None" = None) -> Task:
        """The task that `encode_task` was given; `fetch` gives the bytes of a medium by its SHA-256.

        Raises:
            JournalError: the record is damaged or not of this form, or a medium is missing.
        """
        return self._structure(attach_media(_loads(record), record, fetch), Task)

    def encode_piece(self, piece: Chain) -> Text:
        """Spans and parent of a piece of a chain; its tokens are a blob of their own."""
        return _dumps(self._converter.unstructure(piece))

    def decode_piece(self, record: Text, blob: bytes) -> Chain:
        """The piece that `encode_piece` and its blob were made from.

        Raises:
            JournalError: the record or the blob is damaged.
        """
        tree = _loads(record)
        return self._structure({**tree, "tokens": unpack_tokens(blob)}, Chain)

    def _structure(self, tree: Any, kind: type[T]) -> T:
        try:
            return self._converter.structure(tree, kind)
        except JournalError:
            raise
        except Exception as error:  # cattrs, attrs validators and our own values raise many kinds
            raise JournalError(f"a record is no {kind.__name__} of this version: {error!r}") from error


def _blob(chain: Chain) -> bytes:
    return pack_tokens(chain.id_bytes, chain.mask_bytes, chain.logprob_bytes)


def _digest(record: Text, chains: Sequence[Chain], *more: Text) -> bytes:
    state = sha256()
    for text in (record, *more):
        state.update(text.encode() if isinstance(text, str) else text)
    for chain in chains:
        for part in (chain.id_bytes, chain.mask_bytes, chain.logprob_bytes):
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
    return state.digest()


def _dumps(tree: Any) -> Text:
    return encode_text(json.dumps(tree, ensure_ascii=False, separators=(",", ":"), default=_number))


def _steady(packed: Any) -> Any:
    if isinstance(packed, Mapping):
        if set(packed) == {"$opaque"}:
            type_name, _, plain = packed["$opaque"]
            return [type_name, plain]
        return {key: _steady(item) for key, item in packed.items()}
    return [_steady(item) for item in packed] if isinstance(packed, list | tuple) else packed


def _number(value: object) -> int | float:
    """A number of another library (numpy, torch) in a field typed as a number."""
    if isinstance(value, SupportsIndex):
        return int(value.__index__())
    if isinstance(value, SupportsFloat):
        return float(value.__float__())
    raise TypeError(f"cannot write a {type(value).__name__}: {value!r:.200}")


def _loads(record: Text) -> Any:
    try:
        return json.loads(decode_text(record))
    except ValueError as error:  # of JSON and of UTF-8
        raise JournalError(f"a record is damaged: {error}") from error


def _note_shared(trajectory: Any, reversed_shared: list[int]) -> None:
    for chain in trajectory["chains"]:
        if shared := reversed_shared.pop():
            chain["shared"] = shared
    for child in trajectory["children"]:
        _note_shared(child, reversed_shared)


def _attach(trajectory: Any, reversed_blobs: "list[bytes | None]") -> None:
    """Put the tokens where the chains of the record expect them, in the order of `walk()`."""
    try:
        held: list[Tokens] = []
        for chain in trajectory["chains"]:
            blob = reversed_blobs.pop()
            tokens = _NO_TOKENS if blob is None else unpack_tokens(blob)
            if blob is not None and "shared" in chain:
                tokens = with_prefix(held, chain["parent"], chain["shared"], tokens)
            held.append(tokens)
            chain["tokens"] = tokens
        for child in trajectory["children"]:
            _attach(child, reversed_blobs)
    except (KeyError, TypeError, IndexError) as error:
        raise JournalError(f"a trajectory does not fit its blobs of tokens: {error!r}") from error


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    free_form = (_FREE_FORM | _SPARSE).__contains__

    # by predicate, not by class: the latter resolves all annotations, and `Json` cannot be resolved everywhere
    @converter.register_unstructure_hook_factory(free_form)
    def _unstructure(kind: Any) -> Any:
        return make_dict_unstructure_fn(kind, converter, **_overrides(kind))

    @converter.register_structure_hook_factory(free_form)
    def _structure(kind: Any) -> Any:
        return make_dict_structure_fn(kind, converter, **_overrides(kind))

    converter.register_structure_hook(ToolCall | CallFault, _attempt_hook(converter))
    converter.register_unstructure_hook(Chain, lambda chain: _chain_tree(chain, converter))
    converter.register_structure_hook(Chain, lambda tree, _: _chain(tree, converter))
    return converter


def _overrides(kind: type) -> Any:
    free = {name: override(unstruct_hook=pack, struct_hook=_unpack_hook) for name in _FREE_FORM.get(kind, ())}
    shown = override(omit_if_default=True, unstruct_hook=parts_tree, struct_hook=_made_parts)
    return free | dict.fromkeys(_SPARSE.get(kind, ()), shown)


def _made_parts(value: Any, _: object) -> Any:
    return value  # `attach_media` has made them


def _unpack_hook(value: Any, _: object) -> Any:
    return unpack(value)


def _attempt_hook(converter: cattrs.Converter) -> Callable[[Any, Any], ToolCall | CallFault]:
    def structure(tree: Any, _: Any) -> ToolCall | CallFault:
        kind: type[ToolCall | CallFault] = CallFault if "status" in tree else ToolCall
        return converter.structure(tree, kind)

    return structure


def _chain_tree(chain: Chain, converter: cattrs.Converter) -> dict[str, Any]:
    return {"spans": [converter.unstructure(span) for span in chain.spans], "parent": chain.parent}


def _chain(tree: Any, converter: cattrs.Converter) -> Chain:
    parent = tree["parent"]
    spans = converter.structure(tree["spans"], tuple[Span, ...])
    ids, mask, logprobs = tree["tokens"]
    return Chain(ids, mask, logprobs, spans, None if parent is None else (int(parent[0]), int(parent[1])))
