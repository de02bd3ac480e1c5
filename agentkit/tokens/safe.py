r"""Text from outside, encoded so that it can never become a control token (T5).

A chat template mixes text it trusts (its own control tokens) with text it does not (tool output, user text, names,
schemas). Before rendering, the untrusted text is escaped so that no control token's text can form in it or across its
edges; after rendering, whatever still reads as a control token is the template's own. The stretches between control
tokens are unescaped and encoded whole, since text that meets at a boundary merges ("\n" + "\n" is one token).

For a control token to form with the help of an untrusted piece, the piece must hold the token's first character, or
its last one, or lie inside the token altogether. So those characters, and one character of every piece that reads like
the inside of a control token, are swapped for private-use stand-ins. The stand-ins themselves may occur in a piece;
each is then written as a quote and another stand-in, which makes escaping reversible for every text and keeps one
character, the sentinel, that no piece can hold.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from agentkit.errors import ConfigError
from agentkit.protocols.media import text_of
from agentkit.protocols.messages import Json, Message, ToolCall, ToolSpec
from agentkit.protocols.tokens import Tokenizer

_QUOTE = 0x10F000  # private use, plane 16; the stand-ins follow it
_SURROGATES = re.compile("[\ud800-\udfff]")
_SHORT = 64  # stretches up to this length are mostly the template's own and worth remembering
_REMEMBERED = 4096
_OPENINGS = 64  # and so are the stretches of prompts, up to this length, which siblings share: 15 MB at most
_OPENING = 16_384
# Words of JSON schema itself: templates look for them, and they are no text from outside.
_SCHEMA_WORDS = (
    "type properties required items enum description default title format anyOf oneOf allOf additionalProperties "
    "minimum maximum object string number integer boolean array null nullable const examples"
)
_SPACE = re.compile(r"[^\S\x1c-\x1f]*")  # what Rust's regular expressions call white space, not Python's


@runtime_checkable
class Swallowing(Protocol):
    """A tokenizer with control tokens that take the white space beside them along."""

    @property
    def swallows(self) -> Mapping[str, tuple[bool, bool]]:
        """Whether a control token swallows white space (before it, after it); those that do neither are left out."""
        ...


@runtime_checkable
class KnowsStart(Protocol):
    """A tokenizer that encodes the start of a text in another way than what follows a control token."""

    def encode_start(self, text: str) -> Sequence[int]:
        """The ids of plain text at the very start."""
        ...


class SafeEncoder:
    """Escapes what goes into a chat template and encodes what comes out of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError if the tokenizer has no control token, or one this scheme cannot keep apart."""
        self._encode = tokenizer.encode
        self._encode_start = tokenizer.encode_start if isinstance(tokenizer, KnowsStart) else None
        self._ids = dict(tokenizer.control)
        self._swallows = dict(tokenizer.swallows) if isinstance(tokenizer, Swallowing) else {}
        texts = sorted(self._ids, key=len, reverse=True)
        if not texts or not texts[-1]:
            raise ConfigError(f"the tokenizer must have control tokens, none of them empty, found {texts!r}")
        alphabet = sorted(set("".join(texts)))
        if any(ord(char) >= _QUOTE for char in alphabet):
            raise ConfigError("a control token holds private-use characters that stand for others while rendering")
        self.sentinel = chr(_QUOTE + 1)
        """A character that no escaped text holds: marks a place in a rendering."""
        self._stand_ins = {char: chr(_QUOTE + 2 + i) for i, char in enumerate(alphabet)}
        self._originals = {stand_in: char for char, stand_in in self._stand_ins.items()}
        self._edges = sorted({text[0] for text in texts} | {text[-1] for text in texts})
        heads = {text[0] for text in texts}
        self._overlap = any(not heads.isdisjoint(text[1:]) for text in texts)
        self._insides = "\n".join(texts)
        self._fours = {text[i : i + 4] for text in texts for i in range(len(text) - 3)}
        self._longest = len(texts[0])
        self._controls = re.compile(_any_of(texts))
        count = 2 + len(alphabet)  # the quote, the sentinel, the stand-ins; as many stand for those after a quote
        reserved = f"{chr(_QUOTE)}-{chr(_QUOTE + count - 1)}"
        self._shift = count
        self._reserved = re.compile(f"[{reserved}]")
        quoted = f"{chr(_QUOTE + count)}-{chr(_QUOTE + 2 * count - 1)}"
        self._escaped = re.compile(f"{chr(_QUOTE)}([{quoted}])|([{reserved}])")
        self._schema_words = frozenset(_SCHEMA_WORDS.split())
        self._remembered: dict[str, tuple[int, ...]] = {}
        self._openings: dict[str, tuple[int, ...]] = {}

    def escape(self, text: str) -> str:
        """`text` with stand-ins wherever it could help a control token to form; lone surrogates become U+FFFD."""
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
            text = self._reserved.sub(self._quote, text)
        inner = text.strip()  # templates strip; what a strip leaves must be harmless too
        if inner and len(inner) <= self._longest and self._is_inside(inner):
            text = text.replace(inner[0], self._stand_ins[inner[0]], 1)
        for char in self._edges:
            if char in text:
                text = text.replace(char, self._stand_ins[char])
        return text

    def unescape(self, text: str) -> str:
        """The text that was escaped."""
        if text.isascii():
            return text
        for char in self._edges:  # nearly all there is; a stand-in that was in the text is none any more
            stand_in = self._stand_ins[char]
            if stand_in in text:
                text = text.replace(stand_in, char)
        return text if text.isascii() else self._escaped.sub(self._original, text)

    def _is_inside(self, text: str) -> bool:
        """Whether `text` is a piece of a control token: its ends mostly tell that it is none."""
        if len(text) > 3 and not (text[:4] in self._fours and text[-4:] in self._fours):
            return False
        return text in self._insides

    def _quote(self, found: re.Match[str]) -> str:
        return chr(_QUOTE) + chr(ord(found.group()) + self._shift)

    def _original(self, found: re.Match[str]) -> str:
        quoted = found.group(1)
        return chr(ord(quoted) - self._shift) if quoted else self._originals.get(found.group(2), "")

    def message(self, message: Message) -> Message:
        """`message` with everything but its role escaped; media stay as they are."""
        escape = self.escape
        parts = tuple(escape(part) if isinstance(part, str) else part for part in message.parts)
        return Message(
            message.role,
            text_of(parts) if parts else escape(message.content),
            tuple(
                ToolCall(escape(call.id), escape(call.name), _walk(call.arguments, escape))
                for call in message.tool_calls
            ),
            None if message.tool_call_id is None else escape(message.tool_call_id),
            None if message.name is None else escape(message.name),
            None if message.reasoning is None else escape(message.reasoning),
            parts,
        )

    def tool(self, tool: ToolSpec) -> ToolSpec:
        """`tool` with its name, description and schema escaped."""
        return ToolSpec(self.escape(tool.name), self.escape(tool.description), _walk(tool.parameters, self._word))

    def controls(self, rendered: str, start: int = 0) -> Iterator[re.Match[str]]:
        """The control tokens the template wrote from `start` on, in order."""
        return self._controls.finditer(rendered, start)

    def in_order(self, rendered: str, plain: str) -> str:
        """`rendered`, or where its parts stand in another order `plain`: the same with nothing escaped, if it is safe.

        It is where it reads the same control tokens one after another, and none of them can swallow a part of another.
        """
        if self._overlap or self._reserved.search(plain) or self.unescape(rendered) == plain:
            return rendered
        ours, theirs = ([found.group() for found in self.controls(text)] for text in (rendered, plain))
        return _SURROGATES.sub("\ufffd", plain) if ours == theirs else rendered

    def encode(self, rendered: str, *, opens: bool = False) -> list[int]:
        """The ids of rendered text: control tokens by their ids, the stretches between them as plain text, whole.

        Of a text that `opens` a chain the stretches are remembered: other rollouts begin with the same.
        """
        ids: list[int] = []
        position = 0
        for found in self._controls.finditer(rendered):
            text = found.group()
            before, after = self._swallows.get(text, (False, False)) if self._swallows else (False, False)
            stretch = rendered[position : found.start()]
            if before:
                stretch = _without_trailing_space(stretch)
            if stretch:
                ids.extend(self._stretch(stretch, opens) if position else self._start(stretch))
            ids.append(self._ids[text])
            position = found.end()
            if after:
                space = _SPACE.match(rendered, position)
                position = space.end() if space else position
        if position < len(rendered):
            stretch = rendered[position:]
            ids.extend(self._stretch(stretch, opens) if position else self._start(stretch))
        return ids

    def _start(self, text: str) -> Sequence[int]:
        return self._stretch(text) if self._encode_start is None else self._encode_start(self.unescape(text))

    def _stretch(self, text: str, opens: bool = False) -> Sequence[int]:
        if len(text) > _SHORT:
            return self._opening(text) if opens else self._encode(self.unescape(text))
        ids = self._remembered.get(text)
        if ids is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            ids = self._remembered[text] = tuple(self._encode(self.unescape(text)))
        return ids

    def _opening(self, text: str) -> Sequence[int]:
        ids = self._openings.get(text)
        if ids is None:
            ids = tuple(self._encode(self.unescape(text)))
            if len(self._openings) >= _OPENINGS:
                self._openings.clear()
            if len(text) <= _OPENING:
                self._openings[text] = ids
        return ids

    def _word(self, text: str) -> str:
        return text if text in self._schema_words else self.escape(text)


def _any_of(texts: Sequence[str]) -> str:
    """A regular expression for the longest of `texts`, letter by letter: an alternative for each would try all."""
    rest: dict[str, list[str]] = {}
    for text in texts:
        if text:
            rest.setdefault(text[0], []).append(text[1:])
    parts = [re.escape(first) + (_any_of(ends) if any(ends) else "") for first, ends in rest.items()]
    if len(parts) == 1 and all(texts):
        return parts[0]
    return f"(?:{'|'.join(parts)}){'' if all(texts) else '?'}"


def _without_trailing_space(text: str) -> str:
    space = _SPACE.match(text[::-1])
    return text[: len(text) - space.end()] if space else text


def _walk(mapping: Mapping[str, Json], escape: Callable[[str], str]) -> dict[str, Json]:
    return {escape(key): _walk_value(value, escape) for key, value in mapping.items()}


def _walk_value(value: Json, escape: Callable[[str], str]) -> Json:
    if isinstance(value, str):
        return escape(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return _walk(value, escape)
    if isinstance(value, Sequence):
        return [_walk_value(item, escape) for item in value]
    return value
