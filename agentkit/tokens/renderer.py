"""Messages to token ids: the first prompt, and what leads from a sampled turn to the next prompt.

The bridge never renders the history. It renders a short conversation that ends like the real one, [system, user, the
sampled turn, the new messages], with the real calls and tools, and keeps what the template writes after the turn's stop
token. What stands before the stop was sampled and is in the chain already, verbatim. The cut falls on a control token,
so no token can reach across it. Whether the template's full render really equals "what stood there, then this" is
asked of the template once, by `certify`.
"""

from collections.abc import Sequence

from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols.messages import Message, ToolCall, ToolSpec
from agentkit.protocols.tokens import ChatTemplate, Tokenizer
from agentkit.tokens.bytelevel import ByteTokenizer
from agentkit.tokens.certify import STANDARD_KINDS, Certifier, Roles, describe, kind_of
from agentkit.tokens.family import CHATML, Family
from agentkit.tokens.safe import SafeEncoder
from agentkit.tokens.templates import chatml

_OPENINGS = ((Message("system", "."), Message("user", ".")), (Message("user", "."),))


class TemplateRenderer:
    """A `Renderer` over any tokenizer and chat template; its family says how turns end.

    `rewrites` says in words which continuations the template does not allow; for those `bridge` raises.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, family: Family) -> None:
        """Asks the template what it allows, which takes milliseconds.

        Raises:
            ConfigError: tokenizer, template and family do not fit together.
        """
        self._tokenizer = tokenizer
        self._template = template
        self._family = family
        self._stop_ids = family.stop_ids(tokenizer)
        self._stop_texts = frozenset(text for text in family.stops if text in tokenizer.control)
        self._close = () if family.stop_is_header else (tokenizer.control[family.close],)
        self._safe = SafeEncoder(tokenizer)
        self._tools: tuple[Sequence[ToolSpec], _Tools] | None = None
        self._opening = next(filter(self._is_accepted, _OPENINGS), _OPENINGS[0])
        roles: Roles = tuple(message.role for message in self._opening)
        self._certifier = Certifier(self._render_plain, self._cut, self._tail_plain, roles)
        self._check_escapes()
        self.rewrites = tuple(
            f"after {describe(kind)}{', with reasoning' if reasoned else ''}: {difference}"
            for reasoned in ((False, True) if family.reasons else (False,))
            for kind in STANDARD_KINDS
            if (difference := self._certifier.difference(kind, reasoned=reasoned)) is not None
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer this renderer encodes with."""
        return self._tokenizer

    @property
    def family(self) -> Family:
        """How the turns of this policy end."""
        return self._family

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn when sampled."""
        return self._stop_ids

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The ids of the full rendering up to where the policy starts to sample. O(all text)."""
        return self._safe.encode(self._render(messages, self._prepared(tools).tools, True))

    def bridge(
        self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], *, last_id: int | None
    ) -> tuple[Sequence[int], list[int]]:
        """The ids that close the sampled turn, and those that lead on to the next generation. O(new text and tools).

        Raises:
            NotAppendable: the template would rewrite what is already in the chain, or goes on in another way than the
                stop token the policy sampled.
        """
        kind = kind_of(new)
        for reasoned in {action.reasoning is not None, self._family.reasons}:
            difference = self._certifier.difference(kind, reasoned=reasoned)
            if difference is not None:
                raise NotAppendable(
                    f"the {self._family.name} template cannot append {describe(kind)} "
                    f"{'where turns may hold reasoning' if reasoned else 'to a turn without reasoning'}: {difference}"
                )
        rest = self._safe.encode(self._tail(action, new, tools))
        is_closed = last_id in self._stop_ids
        if not self._family.stop_is_header:
            return ((), rest) if is_closed else (self._close, rest)
        if is_closed:
            if rest[0] != last_id:
                raise NotAppendable(
                    f"the policy ended its turn with {self._tokenizer.decode([last_id or 0])!r}, "
                    f"the {self._family.name} template goes on with {self._tokenizer.decode(rest[:1])!r}"
                )
            del rest[0]
        return (), rest

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids with control tokens kept, without a final stop token."""
        end = len(ids) - 1 if ids and ids[-1] in self._stop_ids else len(ids)
        return self._tokenizer.decode(ids[:end])

    def _render(self, messages: Sequence[Message], escaped_tools: Sequence[ToolSpec], generation_prompt: bool) -> str:
        escaped = [self._safe.message(message) for message in messages]
        return self._template(escaped, escaped_tools, generation_prompt=generation_prompt)

    def _render_plain(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool) -> str:
        return self._template(messages, tools, generation_prompt=generation_prompt)

    def _tail_plain(self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        return self._safe.unescape(self._tail(action, new, tools))

    def _is_accepted(self, opening: Sequence[Message]) -> bool:
        try:
            self._render(opening, (), True)
        except Exception:  # the template is the user's code: some refuse a system message, each in its own words
            return False
        return True

    def _tail(self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        prepared = self._prepared(tools)
        escaped = [*prepared.opening, *map(self._safe.message, (_outline(action, new), *new))]
        rendered = self._template(escaped, prepared.tools, generation_prompt=True)
        return rendered[self._after_stops(rendered, prepared.opening_stops) :]

    def _prepared(self, tools: Sequence[ToolSpec]) -> "_Tools":
        if self._tools is not None and self._tools[0] is tools:
            return self._tools[1]
        escaped = tuple(self._safe.tool(tool) for tool in tools)
        opening = tuple(map(self._safe.message, self._opening))
        prepared = _Tools(escaped, opening, self._count_stops(self._template(opening, escaped, generation_prompt=True)))
        if isinstance(tools, tuple):  # cannot change under us
            self._tools = (tools, prepared)
        return prepared

    def _count_stops(self, rendered: str) -> int:
        return sum(found.group() in self._stop_texts for found in self._safe.controls(rendered))

    def _after_stops(self, rendered: str, opening_stops: int) -> int:
        seen = 0
        for found in self._safe.controls(rendered):
            if found.group() in self._stop_texts:
                if seen == opening_stops:
                    return found.start() if self._family.stop_is_header else found.end()
                seen += 1
        raise ConfigError(
            f"the template writes none of {sorted(self._stop_texts)!r} after a turn: "
            f"family {self._family.name!r} does not fit it"
        )

    def _cut(self, rendered: str, prompt: str) -> int:
        return self._after_stops(rendered, self._count_stops(prompt))

    def _check_escapes(self) -> None:
        """Render text that reads like control tokens, escaped and not: the template must treat both alike."""
        text = f"x {' '.join(self._tokenizer.control)} \U0010f000\U0010f001 x"
        messages = (*self._opening[:-1], Message("user", text), Message("assistant", "."), Message("user", text))
        tools = (ToolSpec("probe", text, {"type": "object", "properties": {}}),)
        plain = self._render_plain(messages, tools, True)
        escaped = self._safe.unescape(self._render(messages, tuple(map(self._safe.tool, tools)), True))
        if plain != escaped:
            raise ConfigError("the template changes private-use characters, so text in it cannot be made safe")


class _Tools:
    """Tools and the opening of the short context, escaped, and how many stops the two render to."""

    __slots__ = ("opening", "opening_stops", "tools")

    def __init__(self, tools: tuple[ToolSpec, ...], opening: tuple[Message, ...], opening_stops: int) -> None:
        self.tools = tools
        self.opening = opening
        self.opening_stops = opening_stops


def _outline(action: Message, new: Sequence[Message]) -> Message:
    """What the text after a turn can depend on: that it said something, and the ids and names of its calls.

    What it said is left out, so that a bridge costs no more for a long turn. A call is added for every tool message
    without one: some templates refuse an answer to a call that did not parse.
    """
    calls = {call.id: call.name for call in action.tool_calls}
    for message in new:
        if message.role == "tool" and message.tool_call_id is not None:
            calls.setdefault(message.tool_call_id, message.name or "unknown")
    return Message(
        "assistant",
        "." if action.content.strip() else "",
        tuple(ToolCall(call_id, name) for call_id, name in calls.items()),
        reasoning=None if action.reasoning is None else ".",
    )


def byte_chatml() -> TemplateRenderer:
    """A renderer that needs nothing: `ByteTokenizer` and the ChatML template."""
    return TemplateRenderer(ByteTokenizer(), chatml, CHATML)
