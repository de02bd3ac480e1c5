"""The text between a sampled turn and the next generation, cut out of a short conversation that ends like the real one.

The short conversation is [system, user, the turn in outline, the new messages], with real tools and the ids and
names of the real calls. In the outline stands a sentinel that no text from outside can hold; the first stop the
template writes behind the last sentinel is where the turn ends. What stands before it was sampled and is in the chain
already; what stands after it is the splice. Cutting there, never by length, keeps the separator in, and a control token
at the seam keeps tokens from reaching across it.
"""

from collections.abc import Sequence
from typing import TypeAlias

from attrs import evolve, field, frozen

from agentkit.errors import NotAppendable
from agentkit.protocols.messages import Message, ToolCall, ToolSpec
from agentkit.protocols.tokens import ChatTemplate
from agentkit.tokens.safe import SafeEncoder
from agentkit.tokens.situations import Roles, kind_of

OPENINGS = ((Message("system", "."), Message("user", ".")), (Message("user", "."),))
"""How a conversation may open, the likeliest first."""

_REMEMBERED = 8
_Key: TypeAlias = "tuple[Roles, tuple[str, ...]]"


@frozen
class Cut:
    """Where a turn ends in a rendering: the stop found there, whether it opens what comes next, and what comes next.

    `rest` starts after a stop that ends the turn, and with a stop that is a header.
    """

    stop: str
    is_header: bool
    rest: str


@frozen
class Splicer:
    """Cuts splices out of one template. `endings` and `headers` are the stops its tokenizer knows."""

    template: ChatTemplate
    safe: SafeEncoder
    opening: tuple[Message, ...]
    """The messages of the short conversation before the turn, escaped."""
    endings: frozenset[str]
    headers: frozenset[str]
    shows_calls: bool = True
    """Whether the template writes calls; one that does not is told that the turn said something."""
    _asked: list[tuple[Sequence[ToolSpec], dict[_Key, Sequence[ToolSpec]]]] = field(factory=list, eq=False, repr=False)

    def over(self, template: ChatTemplate) -> "Splicer":
        """The same for another template of the family."""
        return evolve(self, template=template)

    def splice(self, action: Message, new: Sequence[Message], escaped_tools: Sequence[ToolSpec]) -> Cut:
        """What follows `action` when `new` was said since, its text still escaped. O(new text and tools called).

        Most templates show the tools before all else, where they make no difference to what follows a turn, and showing
        all of them takes longer than the rest. So a template is asked once for these tools, these of them called and
        these roles following, whether it writes the same with those alone that are called; then it gets no others.
        """
        outline = self._outline(action, new)
        messages = [*self.opening, outline, *map(self.safe.message, new)]
        asked = self._asked_with(escaped_tools) if len(escaped_tools) > 1 else None
        if asked is None:
            return self._cut_behind(messages, escaped_tools)
        called = {call.name for call in outline.tool_calls}
        few = tuple(tool for tool in escaped_tools if tool.name in called) or tuple(escaped_tools[:1])
        key = (kind_of(new), tuple(tool.name for tool in few))
        if key in asked:
            return self._cut_behind(messages, asked[key])
        cut = self._cut_behind(messages, escaped_tools)
        asked[key] = few if self._is_cut_behind(messages, few, cut) else escaped_tools
        return cut

    def _asked_with(self, tools: Sequence[ToolSpec]) -> dict[_Key, Sequence[ToolSpec]] | None:
        """What was found out about `tools`; None the first time that they are seen: they may be new each time."""
        for seen, asked in self._asked:
            if seen is tools:
                return asked
        self._asked.append((tools, {}))
        del self._asked[:-_REMEMBERED]
        return None

    def _is_cut_behind(self, messages: Sequence[Message], tools: Sequence[ToolSpec], cut: Cut) -> bool:
        try:
            return self._cut_behind(messages, tools) == cut
        except Exception:  # the template is the user's code, and may refuse these tools
            return False

    def _cut_behind(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Cut:
        rendered = self.template(messages, tools, generation_prompt=True)
        return self.cut(rendered, rendered.rfind(self.safe.sentinel))

    def cut(self, rendered: str, place: int) -> Cut:
        """Where the turn that holds `place` ends.

        Raises:
            NotAppendable: the template shows nothing of the turn, or writes no stop after it.
        """
        if place < 0:
            raise NotAppendable("the template does not write what the turn holds")
        for found in self.safe.controls(rendered, place):
            if found.group() in self.endings:
                return Cut(found.group(), False, rendered[found.end() :])
            if found.group() in self.headers:
                return Cut(found.group(), True, rendered[found.start() :])
        raise NotAppendable(f"the template writes none of {sorted(self.endings | self.headers)!r} after a turn")

    def _outline(self, action: Message, new: Sequence[Message]) -> Message:
        """What the text after a turn can depend on: that it said something, or the ids and names of its calls.

        What it said is left out, so that a bridge costs no more for a long turn, and so is what stands beside calls:
        some templates move it behind their results. A call is added for every result without one: some templates
        refuse an answer to a call that did not parse.
        """
        calls = {call.id: call.name for call in action.tool_calls}
        for message in new:
            if message.role == "tool" and (message.tool_call_id is not None or not action.tool_calls):
                calls.setdefault(message.tool_call_id or "", message.name or "unknown")
        if not calls:
            return Message("assistant", self.safe.sentinel)
        escape, marked = self.safe.escape, {"x": self.safe.sentinel}
        made = (ToolCall(escape(call_id), escape(name), marked) for call_id, name in calls.items())
        return Message("assistant", "" if self.shows_calls else self.safe.sentinel, tuple(made))
