"""Whether a chat template lets a chain grow, found out by asking the template itself.

For each case (which roles follow a sampled turn, with or without reasoning, text beside calls, tools, odd contents) the
template's own full renderings before and after are compared: everything up to the generation must stand unchanged, the
sampled turn must still say what it said, and what follows must be what the bridge would append. The first difference is
kept as text; no difference means exact.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol, runtime_checkable

from attrs import field, frozen

from agentkit.errors import NotAppendable
from agentkit.protocols.messages import Message, ToolCall, ToolSpec
from agentkit.protocols.tokens import ChatTemplate, Tokenizer
from agentkit.tokens.certificate import Cell, Certificate, Finding, Verdict
from agentkit.tokens.family import Family
from agentkit.tokens.probes import PROBE_TOOLS
from agentkit.tokens.situations import Mode, Reasoning, Role, Roles, Situation, standard
from agentkit.tokens.splice import Splicer

ODD_CONTENTS: tuple[tuple[str, str], ...] = (
    ("plain", "ok"),
    ("empty", ""),
    ("leading space", " ok"),
    ("leading newline", "\nok"),
    ("leading blank line", "\n\nok"),
    ("leading digit", "7 ok"),
    ("combining mark", "\u0301e\u0301"),
    ("emoji", "\U0001f469\u200d\U0001f469 ok"),
    ("trailing newline", "ok\n"),
    ("trailing blank lines", "ok\n\n\n"),
    ("trailing space", "ok "),
    ("JSON", '{"a": [1, "b"]}'),
)
"""Tool outputs that meet the text around them in odd ways; the thirteenth holds the family's own control tokens."""

_REASONING, _CONTENT, _ARGUMENT = "probe reasoning", "probe content", "probe argument"
_HISTORIES: tuple[Roles, ...] = ((), ("user",), ("tool",))
_EXACT = Finding(Verdict.EXACT)


@runtime_checkable
class Identified(Protocol):
    """A template that can be told from others."""

    @property
    def identity(self) -> str:
        """Equal only for templates that render alike."""
        ...


@runtime_checkable
class Whole(Protocol):
    """A tokenizer that also shows what it makes of trusted text, control tokens found in it."""

    def encode_whole(self, text: str) -> Sequence[int]:
        """The ids the tokenizer itself gives."""
        ...


@frozen(eq=False)
class Certifier:
    """Asks one template. `openings` are the roles that a conversation may open with, the likeliest first.

    `moves` says that the template reads the clock; the one asked has its clock held.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    family: Family
    splicer: Splicer
    mode: Mode
    openings: tuple[Roles, ...]
    moves: bool = False
    _found: dict[Situation, Finding] = field(factory=dict, init=False)

    @property
    def key(self) -> str | None:
        """What the answers depend on, or None where the template cannot be told from others."""
        if not isinstance(self.template, Identified):
            return None
        encode = self.tokenizer.encode_whole if isinstance(self.tokenizer, Whole) else self.tokenizer.encode
        text = "\n".join(content for _, content in ODD_CONTENTS)
        ids = list(self.tokenizer.encode(text)), list(encode(f"{text}{self.family.stops[0]}{text}"))
        control = sorted(self.tokenizer.control.items())
        return repr((self.template.identity, self.family, self.openings, self.moves, control, ids))

    def ask(self, situation: Situation) -> Finding:
        """What the template does in `situation`. Worked out once."""
        if situation not in self._found:
            self._found[situation] = self._worst(situation, PROBE_TOOLS if situation.tools else ())
        return self._found[situation]

    def certificate(self, tools: Sequence[ToolSpec]) -> Certificate:
        """The whole matrix, the probe's tools replaced by `tools` if there are any."""
        shown = tuple(tools) or PROBE_TOOLS
        cells: list[Cell] = []
        for situation in standard(self.mode, reasons=self.family.reasons):
            finding = self._worst(situation, shown) if tools and situation.tools else self.ask(situation)
            cells.append(Cell(_named(situation), situation, finding))
        reasoning = Reasoning.SOME if self.mode is Mode.OPEN else Reasoning.NONE
        plain = {cell.situation: cell.finding for cell in cells}
        for has_tools in (False, True):
            for name, contents in self._odd_contents():
                roles: Roles = ("tool", "tool") if len(contents) > 1 else ("tool",)
                situation = Situation(roles, reasoning, tools=has_tools)
                finding = plain[situation]
                if finding.verdict is not Verdict.REFUSED:
                    finding = self._odd(situation, contents, shown if has_tools else ()) or finding
                cells.append(Cell(name, situation, finding))
        return Certificate(self.family.name, self.mode, self.moves, tuple(cells), self.splicer.shows_calls)

    def _odd_contents(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for name, content in ODD_CONTENTS:
            yield f"a result with {name} content", (content,)
        thought = self.family.thought
        controls = [*self.family.stops, *((thought.opens, thought.closes) if thought else ())]
        yield "a result with control tokens as text", ("".join(controls),)
        yield "two empty results", ("", "")

    def _worst(self, situation: Situation, tools: Sequence[ToolSpec]) -> Finding:
        worst = _EXACT
        for opening in self.openings:
            # How a conversation opens changes what templates write before it, hardly what they do later.
            for earlier in _HISTORIES if opening == self.openings[0] else ((),):
                finding = self._try(situation, tools, opening, earlier)
                if finding.verdict is Verdict.REFUSED:
                    return finding
                worst = finding if worst.is_exact else worst
        return worst

    def _try(self, situation: Situation, tools: Sequence[ToolSpec], opening: Roles, earlier: Roles) -> Finding:
        if earlier == ("tool",) and "tool" not in situation.roles:
            # A template that knows no results can still take what users say.
            with_results = Situation(("tool",), situation.reasoning, tools=situation.tools)
            if self.ask(with_results).verdict is Verdict.REFUSED:
                return _EXACT
        try:
            return self._compare(situation, tools, opening, earlier)
        except Exception as error:  # the template is the user's code, and refuses in its own words
            return Finding(Verdict.REFUSED, f"the template refuses: {type(error).__name__}: {error}")

    def _compare(self, situation: Situation, tools: Sequence[ToolSpec], opening: Roles, earlier: Roles) -> Finding:
        name = (tools or PROBE_TOOLS)[0].name
        history = [_message(role, 7, name) for role in opening]
        if earlier:
            calls = earlier.count("tool")
            history.append(self._turn(situation, 1, calls, name))
            history += [_message(role, 10 + i, name) for i, role in enumerate(earlier)]
        action = self._turn(situation, 2, situation.roles.count("tool") + situation.unanswered, name)
        new = [_message(role, 20 + i, name) for i, role in enumerate(situation.roles)]
        before = self.template(history, tools, generation_prompt=True)
        after = self.template([*history, action, *new], tools, generation_prompt=True)
        said = self._said(action)
        place = after.rfind(said[-1])
        if place < 0:
            return Finding(Verdict.REFUSED, f"the template leaves out {said[-1]!r}, which the turn holds")
        cut = self.splicer.cut(after, place)
        if (difference := self._tail_difference(action, new, tools, cut.rest)) is not None:
            return Finding(Verdict.REFUSED, difference)
        if not after.startswith(before):
            return Finding(Verdict.REWRITTEN, _first_difference(before, after))
        body = after[len(before) : len(after) - len(cut.rest)]
        alone = self.template([*history, action], tools, generation_prompt=False)[len(before) :]
        for each in said:
            if each in body:
                continue
            if each in alone:
                return Finding(Verdict.REWRITTEN, _first_difference(alone, body))
            if each == _CONTENT or self.mode is Mode.OPEN:
                return Finding(Verdict.REWRITTEN, f"the template leaves out {each!r}, which the turn held")
        opens = self.family.thought.opens if self.family.thought else ""
        if action.reasoning == "" and opens and opens in alone and opens not in body:
            return Finding(Verdict.REWRITTEN, _first_difference(alone, body))
        return self._compare_stops(alone, cut.stop, said[-1])

    def _turn(self, situation: Situation, number: int, calls: int, name: str) -> Message:
        reasoning = {Reasoning.NONE: None, Reasoning.EMPTY: "", Reasoning.SOME: _REASONING}[situation.reasoning]
        made = (ToolCall(_call_id(number, i), name, {"x": f"{_ARGUMENT} {number}{i}"}) for i in range(calls))
        is_said = situation.talks or not calls or not self.splicer.shows_calls
        return Message("assistant", _CONTENT if is_said else "", tuple(made), reasoning=reasoning)

    def _said(self, action: Message) -> list[str]:
        """What the turn said, as far as the policy must have sampled it and the template can write it."""
        said = [text for text in (action.reasoning, action.content) if text]
        return said + [str(call.arguments["x"]) for call in action.tool_calls if self.splicer.shows_calls]

    def _compare_stops(self, alone: str, stop: str, marker: str) -> Finding:
        try:
            written = self.splicer.cut(alone, alone.rfind(marker))
        except NotAppendable:  # nothing closes the last turn of a conversation that is over
            return _EXACT
        if not written.is_header and written.stop != stop:
            return Finding(Verdict.REWRITTEN, f"where {written.stop!r} stood, the template now writes {stop!r}")
        return _EXACT

    def _tail_difference(
        self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], full: str
    ) -> str | None:
        safe = self.splicer.safe
        spliced = safe.unescape(self.splicer.splice(action, new, tuple(map(safe.tool, tools))).rest)
        if full != spliced:
            return f"what follows a turn hangs on more than the turn: {_first_difference(spliced, full)}"
        position = 0
        for message in new:
            place = full.find(message.content, position)
            if place < 0:
                return f"the template leaves out {message.content!r}, or moves it"
            position = place + len(message.content)
        return None

    def _odd(self, situation: Situation, contents: Sequence[str], tools: Sequence[ToolSpec]) -> Finding | None:
        """What is wrong with these contents where others would do, or None."""
        try:
            difference = self._odd_difference(situation, contents, tools)
        except Exception as error:  # the template is the user's code, and refuses in its own words
            difference = f"the template refuses: {type(error).__name__}: {error}"
        return None if difference is None else Finding(Verdict.REFUSED, difference)

    def _odd_difference(self, situation: Situation, contents: Sequence[str], tools: Sequence[ToolSpec]) -> str | None:
        name = (tools or PROBE_TOOLS)[0].name
        safe = self.splicer.safe
        history = [_message(role, 7, name) for role in self.openings[0]]
        action = self._turn(situation, 2, len(contents), name)
        new = [Message("tool", content, tool_call_id=_call_id(2, i), name=name) for i, content in enumerate(contents)]
        conversation = [*history, action, *new]
        plain = self.template(conversation, tools, generation_prompt=True)
        full = self.splicer.cut(plain, plain.rfind(self._said(action)[-1])).rest
        escaped_tools = tuple(map(safe.tool, tools))
        spliced = safe.unescape(self.splicer.splice(action, new, escaped_tools).rest)
        if full != spliced:
            return f"what follows a turn hangs on more than the turn: {_first_difference(spliced, full)}"
        escaped = self.template(list(map(safe.message, conversation)), escaped_tools, generation_prompt=True)
        if safe.unescape(escaped) != plain:
            return f"escaped text is rendered in another way: {_first_difference(plain, safe.unescape(escaped))}"
        is_benign = not any(control in content for content in contents for control in self.tokenizer.control)
        if is_benign and isinstance(self.tokenizer, Whole):
            ours, theirs = safe.encode(escaped), list(self.tokenizer.encode_whole(plain))
            if ours != theirs:
                at = _place(ours, theirs)
                return f"the tokenizer itself gives {theirs[at : at + 5]} where this gives {ours[at : at + 5]}"
        return None


@frozen(eq=False)
class _Question:
    """A certifier and tools, hashed by what the answer depends on."""

    key: str
    certifier: Certifier
    tools: tuple[ToolSpec, ...]

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


def certified(certifier: Certifier, tools: tuple[ToolSpec, ...]) -> Certificate:
    """The certificate for `tools`, worked out once for all templates and tokenizers of the same content."""
    key = certifier.key
    if key is None:
        return certifier.certificate(tools)
    shown = [(tool.name, tool.description, repr(tool.parameters)) for tool in tools]
    return _answered(_Question(repr((key, shown)), certifier, tools))


@lru_cache(maxsize=64)
def _answered(question: _Question) -> Certificate:
    return question.certifier.certificate(question.tools)


def _named(situation: Situation) -> str:
    new = " and ".join(f"a {role} message" for role in situation.roles)
    held = "" if situation.reasoning is Reasoning.NONE else f", with {situation.reasoning}"
    return f"after {new}{held}{', text beside the calls' if situation.talks else ''}"


def _call_id(turn: int, place: int) -> str:
    return f"probe00{turn}{place}"


def _message(role: Role, number: int, name: str) -> Message:
    if role == "tool":
        return Message("tool", f"probe result {number}", tool_call_id=_call_id(number // 10, number % 10), name=name)
    return Message(role, f"probe {role} {number}")


def _place(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _first_difference(expected: str, found: str) -> str:
    at = _place(expected, found)
    at -= len(expected[max(0, at - 20) : at].split("\n")[-1])  # so that a tag is not shown from its middle
    return f"where {expected[at : at + 40]!r} stood, the template now writes {found[at : at + 40]!r}"
