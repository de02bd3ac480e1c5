r"""A small, real, byte-level tokenizer without dependencies: for demos, tests and scripted models.

It behaves like the tokenizers of large models where that matters. Every byte has an id, so that all text can be
encoded; frequent runs of bytes have one too, and they cross the boundaries at which people like to cut text ("\n\n",
" the", ":\n    ", half an emoji), so encoding two pieces apart differs from encoding them together. Encoding takes the
longest run that fits, from left to right: one pass of one regular expression.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

_CONTROL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip

_WORDS = """
the and you that for are with not this have from can but what all was were will your when which there their about how if
out has more would them then some could time than other into only its over also after use two our work first well way
even new want because any these give day most us is in to of it be as at so we he by or on do an my up no go me
answer call city code count data date error false file find function get help line list message name none null number
object output path print question reason result return role run search self set show start step stop string system task
test text think tool true type user value wait word write assistant arguments class content def else end import int key
let len next open read say str sum try while zero one three four five six seven eight nine ten hundred thousand people
"""

_PIECES = """
th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic ne ea
ra ce li ch ll be ma si om ur ing ion ent tion ally ness ment able est ers ize ly ted
// == != -> => :: () [] {} "" '' ", ": {" "} }, [" "] (" ") ): </ /> <| |> ... --- ``` ## ** __ _id .py .txt http://
"""

_RUNS = (
    "\n\n", "\n\n\n", "\n\n\n\n", "  ", "    ", "        ", "                ", "\t\t", "\r\n", "\r\n\r\n", "\n ",
    "\n  ",
    "\n    ", "\n        ", ".\n", ".\n\n", ":\n", ":\n\n", ",\n", ">\n", "}\n", "]\n", ")\n", "\"\n", ". ", ", ", ": ",
    "; ", " (", " \"", "\": ", "\": \"", "\", \"", "{\"name\": \"", "\", \"arguments\": {", "\"}}", "}}\n", " = ",
    " + ",
    "user\n", "assistant\n", "system\n", "):\n    ", ":\n    ", ";\n", " {\n", "\n- ", "\n# ",
)  # fmt: skip

_UTF8_RUNS = (
    b"\xc3\xa9", b"\xc3\xa8", b"\xc3\xbc", b"\xc3\xb6", b"\xc3\xa4", b"\xc3\x9f", b"\xcc\x81", b"\xe2\x80",
    b"\xe2\x80\x99",
    b"\xe2\x80\x9c", b"\xe2\x80\x9d", b"\xe4\xbd\xa0", b"\xe5\xa5\xbd", b"\xe4\xbd", b"\xf0\x9f", b"\xf0\x9f\x98",
    b"\xef\xbf\xbd",
)  # fmt: skip


def _runs() -> Iterable[bytes]:
    for text in (*_RUNS, *_PIECES.split()):
        yield text.encode()
    for word in _WORDS.split():
        for text in (word, f" {word}", word.capitalize(), f" {word.capitalize()}"):
            yield text.encode()
    for number in range(100):
        yield f"{number:02}".encode()
    yield from _UTF8_RUNS


class ByteTokenizer:
    """A `Tokenizer` of about 1,100 ids: 256 bytes, frequent runs, and the control tokens of several chat formats."""

    def __init__(self) -> None:
        runs = [run for run in dict.fromkeys(_runs()) if len(run) > 1]
        table = [bytes([byte]) for byte in range(256)] + runs
        self._id_of = {run.decode("latin-1"): index for index, run in enumerate(table)}
        self._control = MappingProxyType({text: len(table) + index for index, text in enumerate(_CONTROL)})
        self._bytes_of = [*table, *(text.encode() for text in _CONTROL)]
        self._longest_run = re.compile(_trie_pattern(self._id_of), re.DOTALL)

    def __len__(self) -> int:
        """The size of the vocabulary, control tokens included."""
        return len(self._bytes_of)

    @property
    def control(self) -> Mapping[str, int]:
        """The control tokens by their text."""
        return self._control

    def encode(self, text: str) -> list[int]:
        """The ids of `text` as plain text; a lone surrogate is encoded as U+FFFD. O(len(text))."""
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raw = re.sub("[\ud800-\udfff]", "\ufffd", text).encode()
        id_of = self._id_of
        return [id_of[run] for run in self._longest_run.findall(raw.decode("latin-1"))]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are no UTF-8, and ids outside the vocabulary, read as U+FFFD."""
        table, size = self._bytes_of, len(self._bytes_of)
        return b"".join([table[i] if 0 <= i < size else b"\xff" for i in ids]).decode("utf-8", "replace")


class _Node:
    __slots__ = ("children", "ends")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.ends = False


def _trie_pattern(words: Iterable[str]) -> str:
    """A pattern that matches the longest of `words` that fits: their common beginnings are tried once."""
    root = _Node()
    for word in words:
        node = root
        for char in word:
            node = node.children.setdefault(char, _Node())
        node.ends = True
    branches = [re.escape(char) + _rest_pattern(child) for char, child in root.children.items() if child.children]
    return "|".join([*branches, "."])  # a byte that starts no run stands alone


def _rest_pattern(node: _Node) -> str:
    if not node.children:
        return ""
    branches = "|".join(re.escape(char) + _rest_pattern(child) for char, child in node.children.items())
    return f"(?:{branches}){'?' if node.ends else ''}"
