"""Which conversation a request goes on with, when each comes with its whole history: the deepest match wins.

The histories seen so far are a tree of messages, one for each set of tools and options. A request is walked down from
the root; the deepest place on its way that holds something is what it goes on with, and the messages behind it are new.

What counts as the same message:

- role and content, as text, character by character, media by their bytes, and the name (of an answer only where its
  call is not there);
- calls in their order: the name, and the arguments as JSON values (the order of keys, white space and escapes do not
  count, nor does 1 against 1.0; `true` is not 1);
- ids of calls only for which call an answer belongs to, never by their spelling: clients replace them;
- reasoning only where the request has it: most clients leave that of earlier turns out. A request without it goes on
  with the newest of several turns that differ in nothing else.

Tools and options (of the template, say) count by value, tools in their order.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Generic, TypeVar

from attrs import frozen

from agentkit.protocols.messages import Json, Message, ToolSpec

V = TypeVar("V")

_EXACT = 2**53  # whole numbers up to here are the same as floats
_NO_REASONING = b""


@frozen
class Found(Generic[V]):
    """What was noted at the deepest match, and how many of the messages it covers."""

    value: V
    depth: int


class _Node(Generic[V]):
    __slots__ = ("children", "noted", "number")

    def __init__(self) -> None:
        self.children: dict[bytes, dict[bytes, _Node[V]]] = {}
        """By message without its reasoning, then by reasoning."""
        self.noted: list[V] = []
        """What was noted last, or nothing."""
        self.number = -1
        """How recent that is."""


class Histories(Generic[V]):
    """Notes by history. A look-up costs O(messages of the request), whatever else has been noted."""

    def __init__(self) -> None:
        self._roots: dict[bytes, _Node[V]] = {}
        self._count = 0

    def note(
        self,
        messages: Sequence[Message],
        value: V,
        *,
        tools: Sequence[ToolSpec] = (),
        options: Mapping[str, Json] | None = None,
    ) -> None:
        """Keep `value` for the history `messages`; what was noted for the very same is replaced."""
        node = self._roots.setdefault(_setting(tools, options), _Node())
        for said, reasoning in _keys(messages):
            node = node.children.setdefault(said, {}).setdefault(reasoning, _Node())
        node.noted = [value]
        node.number = self._count
        self._count += 1

    def find(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        options: Mapping[str, Json] | None = None,
    ) -> Found[V] | None:
        """What was noted for the longest beginning of `messages`, None where nothing was. Of several, the newest."""
        root = self._roots.get(_setting(tools, options))
        alive = [] if root is None else [root]
        best = _newest(alive)
        depth = 0
        for at, (said, reasoning) in enumerate(_keys(messages), start=1):
            alive = [child for node in alive for child in _children(node, said, reasoning)]
            if not alive:
                break
            if (newest := _newest(alive)) is not None:
                best, depth = newest, at
        return None if best is None else Found(best.noted[0], depth)


def _newest(nodes: "Sequence[_Node[V]]") -> "_Node[V] | None":
    noted = [node for node in nodes if node.noted]
    return max(noted, key=lambda node: node.number) if noted else None


def _children(node: "_Node[V]", said: bytes, reasoning: bytes) -> "Sequence[_Node[V]]":
    children = node.children.get(said, {})
    if reasoning == _NO_REASONING:
        return list(children.values())
    return [children[reasoning]] if reasoning in children else []


def _keys(messages: Sequence[Message]) -> Iterator[tuple[bytes, bytes]]:
    """Each message as (what it says without its reasoning, its reasoning)."""
    places: dict[str, int] = {}  # of calls, by their ids: the last of an id that is used twice
    count = 0
    for message in messages:
        answers: Json = message.tool_call_id
        name: Json = message.name
        if message.tool_call_id in places:
            answers, name = places[message.tool_call_id], None
        calls: list[Json] = []
        for call in message.tool_calls:
            places[call.id] = count
            count += 1
            calls.append([call.name, call.arguments])
        shown: list[Json] = [
            part if isinstance(part, str) else [part.mime, part.digest.hex()] for part in message.parts
        ]
        said = _digest([message.role, message.content, calls, answers, name, shown])
        yield said, _digest(message.reasoning) if message.reasoning else _NO_REASONING


def _setting(tools: Sequence[ToolSpec], options: Mapping[str, Json] | None) -> bytes:
    return _digest([[[tool.name, tool.description, tool.parameters] for tool in tools], options or {}])


def _digest(value: Json) -> bytes:
    text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode(errors="surrogatepass")).digest()


def _plain(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
