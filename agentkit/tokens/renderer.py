"""Messages to token ids: the first prompt, and what leads from a sampled turn to the next prompt.

The bridge never renders the history: `splice` cuts it out of a short conversation that ends like the real one. Whether
the template's full render really equals "what stood there, then this" is asked of the template once, by `certify`.
"""

from array import array
from collections.abc import Sequence
from copy import copy
from datetime import datetime
from string import ascii_lowercase
from typing import Protocol, runtime_checkable

from attrs import evolve

from agentkit.errors import AgentkitError, ConfigError, NotAppendable
from agentkit.protocols.messages import Json, Message, ToolCall, ToolSpec
from agentkit.protocols.tokens import ChatTemplate, Tokenizer
from agentkit.tokens.bytelevel import ByteTokenizer
from agentkit.tokens.certificate import Certificate
from agentkit.tokens.certify import Certifier, certified
from agentkit.tokens.families import CHATML
from agentkit.tokens.family import Family, known
from agentkit.tokens.probes import asking
from agentkit.tokens.safe import SafeEncoder
from agentkit.tokens.situations import Mode, Reasoning, Roles, Situation
from agentkit.tokens.splice import OPENINGS, Splicer
from agentkit.tokens.templates import chatml

_A_DAY = datetime(2000, 1, 1)


@runtime_checkable
class Dated(Protocol):
    """A template that may read the clock."""

    def dated(self, now: datetime) -> ChatTemplate:
        """The same template for which it is always `now`."""
        ...


class TemplateRenderer:
    """A `Renderer` over any tokenizer and chat template; its family says how turns end.

    What the template allows is asked when the renderer is built: `certificate` is the report, `rewrites` says in words
    what it would change in a chain. A bridge that is not certified raises, unless `keep_history` makes of the template
    one that keeps what it rendered: history then stays as the policy saw and sampled it, and only what follows a turn
    is the template's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        family: Family,
        *,
        keep_history: bool = False,
        with_system: bool = True,
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        """Asks the template what it allows, with `tools` if there are any, which takes milliseconds to a second.

        `with_system=False` says that no conversation has a system message, which some templates move about.

        Raises:
            ConfigError: tokenizer, template and family do not fit together.
        """
        held = (
            template.dated(_A_DAY) if isinstance(template, Dated) else template
        )  # two answers are compared, not times
        self._tokenizer = tokenizer
        self._template = held
        self._family = family
        self._stop_ids = family.stop_ids(tokenizer)
        self._headers = known(family.headers, tokenizer)
        self._safe = SafeEncoder(tokenizer)
        self._keeps = keep_history
        self._with_system = with_system
        self._tools: tuple[Sequence[ToolSpec], tuple[ToolSpec, ...]] | None = None
        self._ask = asking(held)
        openings = OPENINGS if with_system else OPENINGS[1:]
        accepted = tuple(filter(self._is_accepted, openings)) or openings[:1]
        opening = accepted[0]
        self._splicer = Splicer(
            held,
            self._safe,
            tuple(map(self._safe.message, opening)),
            known(family.endings, tokenizer),
            self._headers,
            self._does_show_calls(opening),
        )
        self._mode = self._find_mode(opening)
        self._check_escapes(opening)
        self._sorts = self._does_sort(opening)
        roles: tuple[Roles, ...] = tuple(tuple(message.role for message in each) for each in accepted)
        moves = held is not template
        self._certifier = Certifier(tokenizer, held, family, self._splicer, self._mode, roles, moves)
        self._template = template
        self._splicer = self._splicer.over(template)
        self.certificate = certified(self._certifier, tuple(tools))
        """What the template allows, case by case."""
        self.rewrites = self.certificate.rewrites
        """In words, what the template changes in text that is in a chain already; empty where chains can grow."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer this renderer encodes with."""
        return self._tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The chat template, as it was given."""
        return self._template

    @property
    def family(self) -> Family:
        """How the turns of this policy end."""
        return self._family

    @property
    def keeps_history(self) -> bool:
        """Whether history stays as the policy saw it where the template would rewrite it."""
        return self._keeps

    @property
    def holds_one_call(self) -> bool:
        """Whether the template takes one call in a turn and refuses two."""
        reasoning = Reasoning.SOME if self._mode is Mode.OPEN else Reasoning.NONE
        one, two = Situation(("tool",), reasoning, tools=True), Situation(("tool", "tool"), reasoning, tools=True)
        return self._certifier.ask(one).is_tail_exact and not self._certifier.ask(two).is_tail_exact

    @property
    def close_id(self) -> int | None:
        """The id a turn ends with in the template, None where the stop opens the next turn."""
        return self._tokenizer.control[self._family.close] if self._family.close else None

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn when sampled."""
        return self._stop_ids

    def dated(self, now: datetime) -> "TemplateRenderer":
        """The same renderer for a template whose clock stands at `now`; itself where the template reads no clock."""
        fixed = self._template.dated(now) if isinstance(self._template, Dated) else self._template
        return self if fixed is self._template else self.over(fixed)

    def over(self, template: ChatTemplate) -> "TemplateRenderer":
        """The same renderer for a template that writes the same around what messages say: nothing is asked again."""
        twin = copy(self)
        twin._template = template
        twin._splicer = self._splicer.over(template)
        return twin

    def certify(self, tools: Sequence[ToolSpec] = ()) -> Certificate:
        """What the template allows when it shows these tools: the report for an agent. Cached by content."""
        return certified(self._certifier, tuple(tools))

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The ids of the full rendering up to where the policy starts to sample. O(all text).

        Raises:
            ConfigError: the template refuses the conversation, or there is a system message, and the renderer was built
                for conversations without.
        """
        if not self._with_system and any(message.role == "system" for message in messages):
            raise ConfigError(
                "the conversation has a system message, the renderer was built with_system=False: leave one of them out"
            )
        escaped = [self._safe.message(message) for message in messages]
        try:
            rendered = self._template(escaped, self._escaped(tools), generation_prompt=True)
        except AgentkitError:
            raise
        except Exception as error:  # the template is the user's code, and refuses in its own words
            raise ConfigError(
                f"the {self._family.name} template refuses the conversation ({', '.join(m.role for m in messages)}): "
                f"{type(error).__name__}: {error}"
            ) from error
        if self._sorts:
            plain = self._template(messages, tools, generation_prompt=True)
            return self._safe.encode(self._safe.in_order(rendered, plain), opens=True)
        return self._safe.encode(rendered, opens=True)

    def bridge(
        self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], *, sampled: Sequence[int]
    ) -> tuple[Sequence[int], list[int]]:
        """The ids that close the sampled turn, and those that lead on to the next generation. O(new text and tools).

        Raises:
            NotAppendable: the template would rewrite what is already in the chain, or goes on in another way than the
                stop token the policy sampled.
        """
        self._check_certified(action, new, tools)
        try:
            cut = self._splicer.splice(action, new, self._escaped(tools))
        except AgentkitError:
            raise
        except Exception as error:  # the template is the user's code, and refuses in its own words
            raise NotAppendable(
                f"the {self._family.name} template refuses what was said: {type(error).__name__}: {error}"
            ) from error
        last_id = sampled[-1] if len(sampled) else None
        is_closed = last_id in self._stop_ids
        if cut.is_header:
            rest = self._safe.encode(cut.rest)
            if is_closed:
                self._check_stop(last_id, rest[0])
                return (), rest[1:]
            return self._end_of_thought(sampled), rest
        rest = self._safe.encode(cut.stop + cut.rest)  # the stop is encoded with it: what follows may depend on it
        if is_closed:
            if self._headers and self._is_header(last_id):
                self._check_stop(last_id, rest[0])
            return (), rest[1:]
        if last_id == rest[0]:  # cut right behind what the template ends a turn with, though it stops no generation
            return (), rest[1:]
        return (*self._end_of_thought(sampled), rest[0]), rest[1:]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids with control tokens kept, without a final stop token."""
        end = len(ids) - 1 if ids and ids[-1] in self._stop_ids else len(ids)
        return self._tokenizer.decode(ids[:end])

    def _check_certified(self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        for situation in Situation.of(action, new, mode=self._mode, reasons=self._family.reasons, tools=bool(tools)):
            finding = self._certifier.ask(situation)
            if finding.is_exact or (self._keeps and self._is_tail_exact(situation)):
                continue
            raise NotAppendable(
                f"the {self._family.name} template cannot append {situation.said}: {finding.difference}; "
                "keep_history=True keeps what the policy saw, Agent(on_rewrite='new_chain') starts a new chain"
                if finding.is_tail_exact
                else f"the {self._family.name} template cannot append {situation.said}: {finding.difference}"
            )

    def _is_tail_exact(self, situation: Situation) -> bool:
        """Whether what follows the turn can be told: where text stands beside the calls, it stays where it stands."""
        silent = evolve(situation, talks=False)
        return self._certifier.ask(situation).is_tail_exact or self._certifier.ask(silent).is_tail_exact

    def _check_stop(self, sampled: int | None, written: int) -> None:
        if sampled != written:
            raise NotAppendable(
                f"the policy ended its turn with {self._tokenizer.decode([sampled or 0])!r}, "
                f"the {self._family.name} template goes on with {self._tokenizer.decode([written])!r}"
            )

    def _is_header(self, token_id: int | None) -> bool:
        return any(self._tokenizer.control[text] == token_id for text in self._headers)

    def _end_of_thought(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """What closes a thought that the turn was cut in; nothing where it was cut elsewhere."""
        thought = self._family.thought
        if thought is None:
            return ()
        closers = [closer for closer in (thought.closes, self._family.close) if closer]
        control = self._tokenizer.control
        if all(text in control for text in (thought.opens, *closers)):  # then only such a token opens or closes one
            ids = array("i", sampled)
            opened, closed = _last(ids, control[thought.opens]), max(_last(ids, control[each]) for each in closers)
        else:
            text = self._tokenizer.decode(list(sampled))
            opened, closed = text.rfind(thought.opens), max(map(text.rfind, closers))
        if opened > closed or (closed < 0 and self._mode is Mode.OPEN):
            return tuple(self._safe.encode(thought.cut))
        return ()

    def _escaped(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        if self._tools is not None and self._tools[0] is tools:
            return self._tools[1]
        escaped = tuple(self._safe.tool(tool) for tool in tools)
        if isinstance(tools, tuple):  # cannot change under us
            self._tools = (tools, escaped)
        return escaped

    def _is_accepted(self, opening: Sequence[Message]) -> bool:
        try:
            self._ask(opening, True)
        except Exception:  # the template is the user's code: some refuse a system message, each in its own words
            return False
        return True

    def _does_show_calls(self, opening: Sequence[Message]) -> bool:
        call = Message("assistant", "", (ToolCall("probe0000", "probe", {"x": self._safe.sentinel}),))
        result = Message("tool", ".", tool_call_id="probe0000", name="probe")
        try:
            return self._safe.sentinel in self._ask((*opening, call, result), True)
        except Exception:  # the template is the user's code: one that refuses calls is certified to
            return True

    def _find_mode(self, opening: Sequence[Message]) -> Mode:
        """Whether the generation prompt opens a thought, holds an empty one, or leaves it to the policy."""
        thought = self._family.thought
        if thought is None or not self._is_accepted(opening):
            return Mode.FREE
        whole, bare = self._ask(opening, True), self._ask(opening, False)
        added = whole[len(bare) :] if whole.startswith(bare) else whole[-80:]
        opened, closed = added.rfind(thought.opens), added.rfind(thought.closes)
        if closed > opened:
            return Mode.CLOSED
        return Mode.OPEN if opened >= 0 else Mode.FREE

    def _does_sort(self, opening: Sequence[Message]) -> bool:
        """Whether the order of what is written hangs on how keys are spelt: those that are escaped sort elsewhere."""
        keys = [*ascii_lowercase, *(f"{text[0]}a" for text in self._tokenizer.control)]
        types: dict[str, Json] = {key: {"type": "string"} for key in keys}
        tools = (ToolSpec("probe", "A probe.", {"type": "object", "properties": types}),)
        call = Message("assistant", "", (ToolCall("probe0000", "probe", dict.fromkeys(keys, "x")),))
        result = Message("tool", ".", tool_call_id="probe0000", name="probe")
        return any(self._does_escaping_show((*opening, *said), tools) for said in ((), (call, result)))

    def _does_escaping_show(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        escaped, escaped_tools = list(map(self._safe.message, messages)), tuple(map(self._safe.tool, tools))
        try:
            plain = self._template(messages, tools, generation_prompt=True)
            return self._safe.unescape(self._template(escaped, escaped_tools, generation_prompt=True)) != plain
        except Exception:  # the template is the user's code, and may refuse tools, or calls
            return False

    def _check_escapes(self, opening: Sequence[Message]) -> None:
        """Render text that reads like control tokens, escaped and not: the template must treat both alike."""
        text = f"x {' '.join(self._tokenizer.control)} \U0010f000\U0010f001 x"
        messages = (*opening[:-1], Message("user", text), Message("assistant", "."), Message("user", text))
        tools = (ToolSpec("probe", text, {"type": "object", "properties": {}}),)
        plain = self._template(messages, tools, generation_prompt=True)
        escaped = [self._safe.message(message) for message in messages]
        safe = self._template(escaped, tuple(map(self._safe.tool, tools)), generation_prompt=True)
        if plain != self._safe.unescape(safe):
            raise ConfigError("the template changes private-use characters, so text in it cannot be made safe")


def _last(ids: "array[int]", token_id: int) -> int:
    """Where `token_id` stands last, -1 where it does not."""
    return next((place for place in range(len(ids) - 1, -1, -1) if ids[place] == token_id), -1)


def byte_chatml() -> TemplateRenderer:
    """A renderer that needs nothing: `ByteTokenizer` and the ChatML template."""
    return TemplateRenderer(ByteTokenizer(), chatml, CHATML)
