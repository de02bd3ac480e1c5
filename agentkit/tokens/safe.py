r"""Text from outside, encoded so that it can never become a control token (T5).

A chat template mixes text it trusts (its own control tokens) with text it does not (tool output, user text, names,
schemas). Before rendering, the untrusted text is escaped so that no control token's text can form in it or across its
edges; after rendering, whatever still reads as a control token is the template's own. The stretches between control
tokens are unescaped and encoded whole, since text that meets at a boundary merges ("\n" + "\n" is one token).

For a control token to form with the help of an untrusted piece, the piece must hold the token's first character, or
its last one, or lie inside the token altogether. So those characters, and one character of every piece that reads like
the inside of a control token, are swapped for private-use stand-ins. The stand-ins themselves may occur in a piece;
they are then prefixed with a quote, which makes escaping reversible for every text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from agentkit.errors import ConfigError
from agentkit.protocols.messages import Json, Message, ToolCall, ToolSpec
from agentkit.protocols.tokens import Tokenizer

_QUOTE = 0x10F000  # private use, plane 16; the stand-ins follow it
_SURROGATES = re.compile("[\ud800-\udfff]")
_SHORT = 64  # stretches up to this length are mostly the template's own and worth remembering
_REMEMBERED = 4096
# Words of JSON schema itself: templates look for them, and they are no text from outside.
_SCHEMA_WORDS = (
    "type properties required items enum description default title format anyOf oneOf allOf additionalProperties "
    "minimum maximum object string number integer boolean array null"
)


class SafeEncoder:
    """Escapes what goes into a chat template and encodes what comes out of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError if the tokenizer has no control token, or one this scheme cannot keep apart."""
        self._encode = tokenizer.encode
        self._ids = dict(tokenizer.control)
        texts = sorted(self._ids, key=len, reverse=True)
        if not texts or not texts[-1]:
            raise ConfigError(f"the tokenizer must have control tokens, none of them empty, found {texts!r}")
        alphabet = sorted(set("".join(texts)))
        if any(ord(char) >= _QUOTE for char in alphabet):
            raise ConfigError("a control token holds private-use characters that stand for others while rendering")
        self._stand_ins = {char: chr(_QUOTE + 1 + i) for i, char in enumerate(alphabet)}
        self._originals = {stand_in: char for char, stand_in in self._stand_ins.items()}
        self._edges = sorted({text[0] for text in texts} | {text[-1] for text in texts})
        self._insides = "\n".join(texts)
        self._longest = len(texts[0])
        self._controls = re.compile("|".join(re.escape(text) for text in texts))
        reserved = f"{chr(_QUOTE)}-{chr(_QUOTE + len(alphabet))}"
        self._reserved = re.compile(f"[{reserved}]")
        self._escaped = re.compile(f"{chr(_QUOTE)}([{reserved}])|([{reserved}])")
        self._schema_words = frozenset(_SCHEMA_WORDS.split())
        self._remembered: dict[str, tuple[int, ...]] = {}

    def escape(self, text: str) -> str:
        """`text` with stand-ins wherever it could help a control token to form; lone surrogates become U+FFFD."""
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
            text = self._reserved.sub(lambda found: chr(_QUOTE) + found.group(), text)
        inner = text.strip()  # templates strip; what a strip leaves must be harmless too
        if inner and len(inner) <= self._longest and inner in self._insides:
            text = text.replace(inner[0], self._stand_ins[inner[0]], 1)
        for char in self._edges:
            if char in text:
                text = text.replace(char, self._stand_ins[char])
        return text

    def unescape(self, text: str) -> str:
        """The text that was escaped."""
        if text.isascii():
            return text
        return self._escaped.sub(lambda found: found.group(1) or self._originals.get(found.group(2), ""), text)

    def message(self, message: Message) -> Message:
        """`message` with everything but its role escaped."""
        escape = self.escape
        return Message(
            message.role,
            escape(message.content),
            tuple(
                ToolCall(escape(call.id), escape(call.name), _walk(call.arguments, escape))
                for call in message.tool_calls
            ),
            None if message.tool_call_id is None else escape(message.tool_call_id),
            None if message.name is None else escape(message.name),
            None if message.reasoning is None else escape(message.reasoning),
        )

    def tool(self, tool: ToolSpec) -> ToolSpec:
        """`tool` with its name, description and schema escaped."""
        return ToolSpec(self.escape(tool.name), self.escape(tool.description), _walk(tool.parameters, self._word))

    def controls(self, rendered: str) -> Iterator[re.Match[str]]:
        """The control tokens the template wrote, in order."""
        return self._controls.finditer(rendered)

    def encode(self, rendered: str) -> list[int]:
        """The ids of rendered text: control tokens by their ids, the stretches between them as plain text, whole."""
        ids: list[int] = []
        position = 0
        for found in self._controls.finditer(rendered):
            if found.start() > position:
                ids.extend(self._stretch(rendered[position : found.start()]))
            ids.append(self._ids[found.group()])
            position = found.end()
        if position < len(rendered):
            ids.extend(self._stretch(rendered[position:]))
        return ids

    def _stretch(self, text: str) -> Sequence[int]:
        if len(text) > _SHORT:
            return self._encode(self.unescape(text))
        ids = self._remembered.get(text)
        if ids is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            ids = self._remembered[text] = tuple(self._encode(self.unescape(text)))
        return ids

    def _word(self, text: str) -> str:
        return text if text in self._schema_words else self.escape(text)


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
