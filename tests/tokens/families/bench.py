"""A specimen under test: the renderers made for it, and what its template writes by itself.

Nothing here asks our encoder, splicer or certifier what is right: renders and ids are those of `transformers`, and
where a turn ends is told by the table below.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache, cached_property
from typing import Any

from attrs import evolve, frozen

from agentkit.errors import NotAppendable
from agentkit.protocols import Message, ToolCall, ToolSpec
from agentkit.testing.alignment import HFOracle, Subject, subject_of
from agentkit.tokens import HFTemplate, Mode, TemplateRenderer
from tests.vocabularies import Specimen, load, specimen_named

# The control tokens that end a turn, by line of models: as model cards and templates say, not as families.py does.
ENDS: Mapping[str, tuple[str, ...]] = {
    "qwen": ("<|im_end|>",),
    "kimi": ("<|im_end|>",),
    "hermes": ("<|im_end|>",),
    "smollm": ("<|im_end|>",),
    "deepseek": ("<｜end▁of▁sentence｜>",),
    "minimax": ("[e~[",),
    "llama": ("<|eot_id|>", "<|eom_id|>"),
    "gpt-oss": ("<|call|>", "<|return|>", "<|end|>"),
    "glm": ("<|user|>", "<|observation|>"),
    "mistral": ("</s>",),
    "zephyr": ("</s>",),
    "gemma": ("<end_of_turn>", "<turn|>", "<|tool_response>"),
    "phi": ("<|end|>",),
}
TOOLS = (
    ToolSpec(
        "bash",
        "Run a command.",
        {"type": "object", "properties": {"cmd": {"type": "string", "description": "It."}}, "required": ["cmd"]},
    ),
)
SYSTEM, ASKED = Message("system", "Be brief."), Message("user", "hi")


@frozen
class Truth:
    """What the template's own full render says of an append.

    `tail` follows the turn, `turn` is the turn with its stop token, or None where what stood before it, or what it
    said, is written otherwise afterwards; `why` says so.
    """

    prompt: list[int]
    tail: list[int]
    stop: int
    """What the template ends the turn with."""
    turn: list[int] | None
    why: str = ""


@frozen(eq=False)
class Bench:
    """A specimen, its `transformers` tokenizer and the renderers made of it."""

    specimen: Specimen
    hf: Any

    @cached_property
    def subject(self) -> Subject:
        """As training on whole chains wants it: what the template would rewrite is refused."""
        return subject_of(self.hf, **self.specimen.kwargs)

    @cached_property
    def kept(self) -> Subject:
        """The same with `keep_history`."""
        return evolve(self.subject, renderer=self._again(keep_history=True), keeps_history=True)

    @cached_property
    def silent(self) -> Subject:
        """The same for a policy that writes no reasoning."""
        quiet = evolve(self.renderer.family, reasons=False)
        return evolve(self.subject, renderer=self._again(family=quiet), reasons=False)

    @cached_property
    def unsystemed(self) -> Subject:
        """The same for conversations without a system message."""
        return evolve(self.subject, renderer=self._again(with_system=False), opens_with_system=False)

    def _again(self, **options: Any) -> TemplateRenderer:
        """Another renderer over the same tokenizer, which takes seconds to make."""
        family = options.pop("family", self.renderer.family)
        template = HFTemplate(self.hf, **self.specimen.kwargs)
        return TemplateRenderer(self.renderer.tokenizer, template, family, **options)

    @property
    def name(self) -> str:
        return self.specimen.name

    @property
    def renderer(self) -> TemplateRenderer:
        return renderer_of(self.subject)

    @property
    def oracle(self) -> HFOracle:
        found = self.subject.oracle
        assert isinstance(found, HFOracle)
        return found

    @cached_property
    def control(self) -> dict[str, int]:
        """Every added token by its text, as `transformers` lists them."""
        return {str(token): number for number, token in self.hf.added_tokens_decoder.items() if str(token).strip()}

    @cached_property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self.control.values())

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self.control, key=len, reverse=True))))

    @cached_property
    def shows_calls(self) -> bool:
        """Whether the template writes calls at all; one that raises for them is told as one that does."""
        said = self.turn(1, 1, content="said")
        try:
            return "argument 10" in self.text([ASKED, said, self.result(1, 0, "ok")], self.shown)
        except Exception:  # in its own words
            return True

    @cached_property
    def shows_reasoning(self) -> bool:
        """Whether the template writes the reasoning of the last turn."""
        said = Message("assistant", "said", reasoning="thought 1")
        return "thought 1" in self.text([ASKED, said], self.shown, generation_prompt=False)

    @cached_property
    def shown(self) -> tuple[ToolSpec, ...]:
        """The tools, where the template shows tools."""
        return TOOLS if self.subject.shows_tools else ()

    @cached_property
    def guarded(self) -> HFOracle:
        """The full renders of `transformers` with its own guard against control tokens in what is said."""
        hf = copy(self.hf)
        hf.chat_control_tokens = list(self.control)
        return HFOracle(_Guarded(hf), **self.specimen.kwargs)

    @property
    def plain(self) -> Callable[[str], list[int]]:
        """Encodes text behind a control token as if there were no control tokens."""
        return _plain(self.specimen.vocabulary, self.hf.backend_tokenizer, next(iter(self.control)))

    def opening(self) -> list[Message]:
        """How a conversation opens: with a system message, where the template takes one."""
        return [SYSTEM, ASKED] if self.subject.opens_with_system else [ASKED]

    def full(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The ids of the full render up to the next generation."""
        return list(self.oracle.encode(messages, tools, generation_prompt=True))

    def text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = True
    ) -> str:
        """The text of the full render."""
        return self.oracle.render(messages, tools, generation_prompt=generation_prompt)

    def controls_in(self, ids: Sequence[int]) -> list[int]:
        """The control tokens among `ids`, in order."""
        return [each for each in ids if each in self.control_ids]

    def stretches(self, text: str) -> list[tuple[str, str]]:
        """Each control token that `text` spells, and what stands between it and the next; the first is the start."""
        found = [("", 0, 0), *((each.group(), each.start(), each.end()) for each in self._controls.finditer(text))]
        starts = [start for _, start, _ in found[1:]]
        return [(each, text[end:stop]) for (each, _, end), stop in zip(found, [*starts, len(text)], strict=True)]

    def sampled(self, truth: Truth) -> list[int]:
        """A turn as it may be sampled: the template's own, else anything that ends with what a policy stops at."""
        stops_at = truth.stop if truth.stop in self.renderer.stop_ids else self.control["<|return|>"]
        return truth.turn or [0, stops_at]

    def turn(self, number: int, calls: int, *, content: str = "", reasoning: str | None = None) -> Message:
        """A turn with so many calls, that reasons where the generation prompt has begun to."""
        made = tuple(ToolCall(f"call{number:04}{i}", "bash", {"cmd": f"argument {number}{i}"}) for i in range(calls))
        if reasoning is None and self.renderer.certificate.mode is Mode.OPEN:
            reasoning = f"thought {number}"
        silent = calls and not (number != 1 and not self.shows_calls)
        return Message("assistant", content or ("" if silent else f"said {number}"), made, reasoning=reasoning)

    def result(self, turn: int, place: int, content: str) -> Message:
        """The answer to a call of `turn`."""
        return Message("tool", content, tool_call_id=f"call{turn:04}{place}", name="bash")

    def truth(
        self, before: Sequence[Message], action: Message, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Truth | str:
        """What the full render says, or why there is no telling. For texts that spell no control token."""
        try:
            prompt, full = self.full(before, tools), self.full([*before, action, *new], tools)
            text = self.text([*before, action, *new], tools)
        except Exception as error:  # the template refuses in its own words
            return f"{type(error).__name__}: {error}"
        said = [each for each in (action.reasoning if self.shows_reasoning else "", action.content) if each]
        said += [str(call.arguments["cmd"]) for call in action.tool_calls if self.shows_calls]
        place = text.rfind(said[-1])
        if place < 0:
            return f"{said[-1]!r} is left out"
        stop = next((each for each in self._controls.finditer(text, place) if each.group() in self._ends), None)
        if stop is None:
            return "no stop token stands after the turn"
        tail_text = text[stop.end() :]
        for message in new:
            inner = message.content.strip()
            if inner and inner not in tail_text and json.dumps(inner, ensure_ascii=False)[1:-1] not in tail_text:
                return f"{inner!r} is left out"
        nth = sum(1 for _ in self._controls.finditer(text, 0, stop.end()))
        places = [i for i, each in enumerate(full) if each in self.control_ids]
        end = places[nth - 1] + 1 + (len(places) - sum(1 for _ in self._controls.finditer(text)))
        told = Truth(prompt, full[end:], full[end - 1], None)
        assert full[end - 1] == self.control[stop.group()]
        if full[: len(prompt)] != prompt:
            return evolve(told, why="the prompt is written otherwise")
        turn = full[len(prompt) : end]
        body = text[len(self.text(before, tools)) : stop.start()]
        if missing := [each for each in said if each not in body]:
            return evolve(told, why=f"{missing[0]!r} is left out")
        if stop.group() == "<|end|>" and "<|return|>" in self._ends:
            return evolve(told, why="<|return|> becomes <|end|>")
        return evolve(told, turn=turn)

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(ENDS[self.specimen.family])


@cache
def _plain(vocabulary: str, whole: Any, mark: str) -> Callable[[str], list[int]]:
    """By a tokenizer with the same vocabulary and no added tokens. `vocabulary` tells it from others."""
    from tokenizers import Tokenizer

    del vocabulary
    controls = {token.content: number for number, token in whole.get_added_tokens_decoder().items()}
    backend = Tokenizer(whole.model)
    for part in ("normalizer", "pre_tokenizer"):
        if (found := getattr(whole, part)) is not None:
            setattr(backend, part, found)
    if any(number in backend.encode(text, add_special_tokens=False).ids for text, number in controls.items()):
        backend = _read_back(whole, set(controls))
    behind = whole.encode(mark + "a", add_special_tokens=False).ids[1:]
    if backend.encode("a", add_special_tokens=False).ids == behind:
        return lambda text: list(backend.encode(text, add_special_tokens=False).ids)
    # only the start of a text gets a dummy space: a newline, which merges with nothing there, takes it
    drop = len(backend.encode("\n", add_special_tokens=False).ids)
    return lambda text: list(backend.encode("\n" + text, add_special_tokens=False).ids[drop:])


def _read_back(whole: Any, controls: set[str]) -> Any:
    """A copy without control tokens, also where they are listed among the ordinary pieces; takes seconds."""
    from tokenizers import Tokenizer

    frame = json.loads(whole.to_str())
    frame["added_tokens"] = [each for each in frame["added_tokens"] if each["content"].isspace()]
    frame["post_processor"] = None
    model = frame["model"]
    for text in (controls & set(model["vocab"])) - {model.get("unk_token")}:
        if not text.isspace():
            del model["vocab"][text]
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    model["merges"] = [pair for pair in pairs if pair[0] + pair[1] in model["vocab"]]
    return Tokenizer.from_str(json.dumps(frame))


@cache
def bench_of(name: str) -> Bench:
    """The bench of a specimen. Its template writes one date: that today's is written is tested apart."""
    hf = copy(load(name))
    for asked, told in (("%d %b %Y", "31 Jan 2026"), ("%Y-%m-%d", "2026-01-31"), ("%d-%m-%Y", "31-01-2026")):
        hf.chat_template = hf.chat_template.replace(f'strftime_now("{asked}")', f'"{told}"')
    return Bench(specimen_named(name), hf)


@frozen
class _Guarded:
    """A tokenizer whose guard is up, where it encodes what it renders."""

    hf: Any

    def apply_chat_template(self, *args: Any, tokenize: bool, **kwargs: Any) -> Any:
        return self.hf.apply_chat_template(*args, tokenize=tokenize, sanitize_control_tokens=tokenize, **kwargs)


def renderer_of(subject: Subject) -> TemplateRenderer:
    """The renderer of a subject."""
    assert isinstance(subject.renderer, TemplateRenderer)
    return subject.renderer


def bridged(
    subject: Subject, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], sampled: Sequence[int]
) -> list[int] | str:
    """What a bridge appends after the turn, or what it refuses with."""
    try:
        close, rest = subject.renderer.bridge(action, new, tools, sampled=sampled)
    except NotAppendable as error:
        return str(error)
    return [*close, *rest]
