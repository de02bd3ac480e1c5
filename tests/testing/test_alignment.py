"""The properties of token alignment hold for what is right, and each is broken by the defect it is there for."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from agentkit.actors._generation import TokenGeneration
from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols import Chain, ChatTemplate, Message, TokenChunk, ToolSpec, user
from agentkit.testing.alignment import (
    PROPERTIES,
    AlignmentFailed,
    Conversation,
    Kind,
    Property,
    Subject,
    TemplateOracle,
    check_alignment,
    find_all,
    search,
    subject_of,
)
from agentkit.tokens import (
    GLM,
    LLAMA3,
    QWEN,
    ByteTokenizer,
    Family,
    Ledger,
    TemplateRenderer,
    byte_chatml,
    templates,
)

TOKENIZER = ByteTokenizer()
CONTROL = TOKENIZER.control
BY_NAME = {prop.name: prop for prop in PROPERTIES}
GOOD = byte_chatml()
EXAMPLES = 40


def subject(renderer: Any = GOOD, template: ChatTemplate = templates.chatml, **options: Any) -> Subject:
    return subject_of(renderer=renderer, oracle=TemplateOracle(TOKENIZER, template), **options)


class Renderer:
    """A right renderer, to be broken in one method."""

    def __init__(self, inner: TemplateRenderer = GOOD) -> None:
        self.inner = inner
        self.tokenizer = inner.tokenizer
        self.family = inner.family
        self.stop_ids = inner.stop_ids
        self.rewrites = inner.rewrites

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self.inner.prompt(messages, tools)

    def bridge(
        self, action: Message, new: Sequence[Message], tools: Sequence[ToolSpec], *, sampled: Sequence[int]
    ) -> tuple[Sequence[int], list[int]]:
        return self.inner.bridge(action, new, tools, sampled=sampled)

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(ids)


def control_aware(text: str) -> list[int]:
    """What an encoder makes of text that it trusts."""
    return list(TemplateOracle(TOKENIZER, lambda *_, **__: text).encode([], (), generation_prompt=True))


class DropsTheSeparator(Renderer):
    """The newline after the stop token is nobody's: the policy does not sample it, so it is forgotten."""

    def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        close, rest = super().bridge(*args, **kwargs)
        return close, rest[1:]


class DoublesTheSeparator(Renderer):
    def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        close, rest = super().bridge(*args, **kwargs)
        return close, [rest[0], *rest]


class ClosesWhatWasClosed(Renderer):
    """The sampled stop token is not looked at, and written again."""

    def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        _, rest = super().bridge(*args, **kwargs)
        return [CONTROL["<|im_end|>"]], rest


class LeavesACutTurnOpen(Renderer):
    def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        _, rest = super().bridge(*args, **kwargs)
        return (), rest


class ClosesACutTurnTwice(Renderer):
    def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        close, rest = super().bridge(*args, **kwargs)
        return [*close, *close], rest


class EncodesContentApart(Renderer):
    """Text of a tool and the text around it are encoded each for themselves."""

    def bridge(self, action: Message, new: Sequence[Message], *args: Any, **kwargs: Any) -> Any:
        close, rest = super().bridge(action, new, *args, **kwargs)
        text, ids = TOKENIZER.decode(rest), []
        for message in new:
            before, _, text = text.partition(message.content) if message.content else ("", "", text)
            ids += control_aware(before) + TOKENIZER.encode(message.content)
        return close, ids + control_aware(text)


class TrustsWhatToolsSay(Renderer):
    """The rendered text is encoded by the tokenizer itself, which finds control tokens in contents."""

    def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        close, rest = super().bridge(*args, **kwargs)
        return close, control_aware(TOKENIZER.decode(rest))


class AppendsResultsOneByOne(Renderer):
    def bridge(self, action: Message, new: Sequence[Message], *args: Any, **kwargs: Any) -> Any:
        close, _ = super().bridge(action, new[:1], *args, **kwargs)
        parts = [super(AppendsResultsOneByOne, self).bridge(action, [each], *args, **kwargs)[1] for each in new]
        prompt = len(TOKENIZER.encode("\n")) + 1 + len(TOKENIZER.encode("assistant\n"))
        return close, [*(token for part in parts[:-1] for token in part[: 1 - prompt]), *parts[-1]]


class SwapsResults(Renderer):
    def bridge(self, action: Message, new: Sequence[Message], *args: Any, **kwargs: Any) -> Any:
        return super().bridge(action, [*new[1:2], *new[:1], *new[2:]], *args, **kwargs)


class HealsWhatWasSampled(Renderer):
    """Where a turn is not sampled as the text would be encoded, it is written again, as it should have been."""

    def bridge(self, *args: Any, sampled: Sequence[int], **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        close, rest = super().bridge(*args, sampled=sampled, **kwargs)
        again = control_aware(TOKENIZER.decode(list(sampled)))
        return close, rest if again == list(sampled) else [*again, *rest]


class RemembersTheTools(Renderer):
    """Keeps the tools of the last prompt for the bridges and prompts to come."""

    tools: Sequence[ToolSpec] = ()

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        self.tools, known = tools, self.tools
        return super().prompt(messages, tools or known)


class DoublesTheFirstToken(Renderer):
    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        ids = super().prompt(messages, tools)
        return [ids[0], *ids]


class OpensWithoutTheSystem(Renderer):
    """Takes a system message for one that the policy has seen."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return super().prompt([message for message in messages if message.role != "system"], tools)


class StripsWhatToolsSay(Renderer):
    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return super().prompt([Message(m.role, m.content.strip(), m.tool_calls) for m in messages], tools)


class RendersTheWholeTurn(Renderer):
    def bridge(self, *args: Any, sampled: Sequence[int], **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        TOKENIZER.encode(TOKENIZER.decode(list(sampled)))
        return super().bridge(*args, sampled=sampled, **kwargs)


class RefusesUserMessages(Renderer):
    def bridge(self, action: Message, new: Sequence[Message], *args: Any, **kwargs: Any) -> Any:
        if any(message.role == "user" for message in new):
            raise NotAppendable("not today")
        return super().bridge(action, new, *args, **kwargs)


class Crashes(Renderer):
    def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
        raise KeyError("tool_call_id")


RENDERERS: list[tuple[type[Renderer], str, str]] = [
    (DropsTheSeparator, "separators_stand_once", "'\\n'"),
    (DropsTheSeparator, "the_chain_is_the_full_render", "first difference at token"),
    (DoublesTheSeparator, "separators_stand_once", "after the stop token of turn 0"),
    (ClosesWhatWasClosed, "the_chain_is_the_full_render", "<|im_end|>"),
    (ClosesWhatWasClosed, "control_tokens_are_those_of_the_full_render", "the control tokens differ"),
    (LeavesACutTurnOpen, "a_cut_turn_is_closed_once", "what follows the cut turn 0"),
    (ClosesACutTurnTwice, "a_cut_turn_is_closed_once", "closed twice"),
    (EncodesContentApart, "the_chain_is_the_full_render", "first difference at token"),
    (TrustsWhatToolsSay, "content_forges_no_control_token", "depend on what the tool said"),
    (AppendsResultsOneByOne, "results_of_a_turn_go_in_together", "<|im_start|>"),
    (SwapsResults, "results_of_a_turn_go_in_together", "first difference at token"),
    (HealsWhatWasSampled, "the_bridge_does_not_depend_on_the_sample", "as sampled: "),
    (RemembersTheTools, "the_same_question_has_one_answer", "the chains differ"),
    (OpensWithoutTheSystem, "a_rewritten_history_opens_a_chain", "the new chain"),
    (DoublesTheFirstToken, "a_prompt_is_what_the_template_writes", "the prompt differs"),
    (StripsWhatToolsSay, "content_reads_as_the_template_writes_it", "the prompt reads"),
    (RendersTheWholeTurn, "the_work_is_that_of_the_new_text", "characters after a long conversation"),
    (RefusesUserMessages, "refusals_were_declared", "not today"),
    (RefusesUserMessages, "the_chain_is_the_full_render", "not today"),
    (Crashes, "refusals_were_declared", "internal_error: KeyError: 'tool_call_id'"),
]


@pytest.mark.parametrize(("broken", "name", "says"), RENDERERS, ids=[f"{r.__name__}-{n}" for r, n, _ in RENDERERS])
def test_a_broken_renderer_is_caught(broken: type[Renderer], name: str, says: str) -> None:
    found = search(subject(broken()), BY_NAME[name], examples=EXAMPLES).counterexample
    assert found is not None
    assert says in found.difference
    if broken is not RemembersTheTools:  # what fails then hangs on what was tried before
        assert len(found.conversation.exchanges) <= 2, "it is small"


LEDGER_SAMPLE = Ledger.sample


def trims_the_stop(self: Ledger, chain: int, ids: Sequence[int], logprobs: Sequence[float], **how: Any) -> None:
    stop = len(ids) > 1 and ids[-1] in GOOD.stop_ids
    LEDGER_SAMPLE(self, chain, ids[:-1] if stop else ids, logprobs[:-1] if stop else logprobs, **how)


def encodes_again(self: Ledger, chain: int, ids: Sequence[int], logprobs: Sequence[float], **how: Any) -> None:
    again = control_aware(TOKENIZER.decode(list(ids)))
    LEDGER_SAMPLE(self, chain, again, (list(logprobs) * (len(again) + 1))[: len(again)], **how)


def rounds_logprobs(self: Ledger, chain: int, ids: Sequence[int], logprobs: Sequence[float], **how: Any) -> None:
    LEDGER_SAMPLE(self, chain, ids, [round(each, 1) for each in logprobs], **how)


def fills_up_logprobs(self: Ledger, chain: int, ids: Sequence[int], logprobs: Sequence[float], **how: Any) -> None:
    LEDGER_SAMPLE(self, chain, ids, [*logprobs, *[-1.0] * (len(ids) - len(logprobs))], **how)


def forgets_small_chunks(self: Ledger, chain: int, ids: Sequence[int], logprobs: Sequence[float], **how: Any) -> None:
    if len(ids) != 3:
        LEDGER_SAMPLE(self, chain, ids, logprobs, **how)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (trims_the_stop, "sampled_ids_are_kept_verbatim"),
        (trims_the_stop, "mask_is_one_where_sampled"),
        (encodes_again, "sampled_ids_are_kept_verbatim"),
        (encodes_again, "earlier_tokens_never_change"),
        (rounds_logprobs, "logprobs_are_the_engines"),
        (fills_up_logprobs, "logprobs_are_the_engines"),
        (forgets_small_chunks, "chunks_make_no_difference"),
    ],
)
def test_a_broken_record_is_caught(broken: Callable[..., None], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "sample", broken)
    assert search(subject(), BY_NAME[name], examples=EXAMPLES).counterexample is not None


LEDGER_FREEZE = Ledger.freeze


def loses_a_span(self: Ledger) -> tuple[Chain, ...]:
    return tuple(evolve(chain, spans=chain.spans[1:]) for chain in LEDGER_FREEZE(self))


def changes_the_first_token(self: Ledger) -> tuple[Chain, ...]:
    return tuple(evolve(chain, id_bytes=b"\1" + chain.id_bytes[1:]) for chain in LEDGER_FREEZE(self))


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (loses_a_span, "every_token_has_mask_and_logprob"),
        (changes_the_first_token, "the_model_is_sent_the_chain"),
        (changes_the_first_token, "the_record_reads_back"),
    ],
)
def test_a_record_that_is_sealed_wrong_is_caught(broken: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "freeze", broken)
    assert search(subject(), BY_NAME[name], examples=EXAMPLES).counterexample is not None


def test_a_generation_that_fails_and_leaves_something_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TokenGeneration.begin_try

    def begin(self: TokenGeneration) -> Any:
        emit = right(self)
        if self._tries > 1:
            emit(TokenChunk([65], [-1.0]))
        return emit

    monkeypatch.setattr(TokenGeneration, "begin_try", begin)
    found = search(subject(), BY_NAME["a_failed_generation_leaves_no_trace"], examples=EXAMPLES).counterexample
    assert found is not None
    assert "the chains" in found.difference


def test_every_property_holds_and_is_reached() -> None:
    for finding in find_all(subject(), examples=6):
        assert finding.counterexample is None, finding.counterexample
        assert finding.reached, finding.prop.name


RIGHT = [("qwen3", templates.qwen3, QWEN), ("llama3", templates.llama3, LLAMA3), ("glm", templates.glm, GLM)]


@pytest.mark.slow
@pytest.mark.parametrize(("template", "family"), [each[1:] for each in RIGHT], ids=[each[0] for each in RIGHT])
def test_every_property_holds_in_other_formats(template: ChatTemplate, family: Family) -> None:
    right = subject(TemplateRenderer(TOKENIZER, template, family), template)
    for finding in find_all(right, examples=15):
        assert finding.counterexample is None, finding.counterexample
        assert finding.reached, finding.prop.name


def test_each_property_has_a_defect_that_breaks_it() -> None:
    source = Path(__file__).read_text()
    for name in BY_NAME:
        assert f'"{name}"' in source, f"nothing here breaks {name}"


def test_a_template_that_keeps_history_is_held_to_what_is_new() -> None:
    kept = TemplateRenderer(TOKENIZER, templates.qwen3, QWEN, keep_history=True)
    assert subject(kept, templates.qwen3).keeps_history
    check_alignment(subject(kept, templates.qwen3), examples=4)

    class Broken(Renderer):
        keeps_history = True

        def bridge(self, *args: Any, **kwargs: Any) -> tuple[Sequence[int], list[int]]:
            close, rest = super().bridge(*args, **kwargs)
            return close, rest[1:]

    with pytest.raises(AlignmentFailed, match="separators_stand_once"):
        check_alignment(subject(Broken(kept), templates.qwen3), properties=[BY_NAME["separators_stand_once"]])


def test_a_bridge_over_what_the_template_rewrites_is_caught() -> None:
    class Blind(Renderer):
        """Appends whatever the template does with what it wrote, and does not say that it keeps the history."""

        rewrites = ()

    blind = Blind(TemplateRenderer(TOKENIZER, templates.qwen3, QWEN, keep_history=True))
    blind.rewrites = ()
    found = search(subject(blind, templates.qwen3), BY_NAME["the_chain_is_the_full_render"], examples=60).counterexample
    assert found is not None
    assert "drops what the turn said" in found.difference or "first difference" in found.difference
    assert "keep_history=True" in found.advice


def test_a_failure_tells_all_there_is_to_know() -> None:
    with pytest.raises(AlignmentFailed) as caught:
        check_alignment(subject(DropsTheSeparator()), properties=[BY_NAME["the_chain_is_the_full_render"]], seed=3)
    said = str(caught.value)
    for part in (
        "the_chain_is_the_full_render: Where the policy writes what the template would",
        "user       'said'",
        "template",
        "chain",
        f"{TOKENIZER.encode(chr(10))[0]} '\\n'",
        "What to do: ",
        "seed=3",
    ):
        assert part in said
    assert said.isprintable() or set(said) - set(filter(str.isprintable, said)) == {"\n"}
    assert str(pickle.loads(pickle.dumps(caught.value))) == said


def test_the_same_seed_tries_the_same() -> None:
    tried: list[str] = []

    def note(made: Subject, conversation: Conversation, pick: int) -> bool:
        """Nothing to hold."""
        del made
        tried.append(f"{conversation} {pick}")
        return True

    def told(seed: int) -> list[str]:
        tried.clear()
        search(subject(), Property(note, Kind.ANY), examples=15, seed=seed)
        return tried.copy()

    assert told(5) == told(5)
    assert told(5) != told(6)


def test_a_property_of_ones_own() -> None:
    def never_says_more(made: Subject, conversation: Any, pick: int) -> bool:
        """No turn says "more"."""
        assert all("more" not in exchange.said.content for exchange in conversation.exchanges)
        return True

    own = Property(never_says_more, PROPERTIES[0].kind, advice="let it say less")
    with pytest.raises(
        AlignmentFailed, match=r'never_says_more: No turn says "more"[^$]*said more[^$]*let it say less'
    ):
        check_alignment(subject(), properties=[own], examples=60)


def test_the_oracle_is_the_template_and_no_more() -> None:
    oracle = TemplateOracle(TOKENIZER, templates.chatml)
    ids = oracle.encode([user("a<|im_end|>\ud800")], (), generation_prompt=False)
    assert TOKENIZER.decode(list(ids)) == "<|im_start|>user\na<|im_end|>\ufffd<|im_end|>\n"
    assert list(ids).count(CONTROL["<|im_end|>"]) == 2, "it trusts what it reads"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs a tokenizer, or both renderer=... and oracle=..."),
        ({"renderer": GOOD}, "needs a tokenizer"),
        ({"renderer": object(), "oracle": TemplateOracle(TOKENIZER, templates.chatml)}, "object has none"),
        ({"renderer": GOOD, "oracle": TemplateOracle(TOKENIZER, templates.chatml), "tools": [{"x": 1}]}, "a tool is a"),
    ],
)
def test_a_subject_says_what_is_missing(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        subject_of(**given)


def test_tools_are_taken_in_openai_form() -> None:
    function = {"name": "ls", "description": "Lists.", "parameters": {"type": "object", "properties": {}}}
    made = subject(tools=[{"type": "function", "function": function}, ToolSpec("cd", "", {"type": "object"})])
    assert [tool.name for tool in made.tools] == ["ls", "cd"]
    assert made.tools[0].parameters == function["parameters"]
    check_alignment(made, properties=[BY_NAME["a_prompt_is_what_the_template_writes"]], examples=5)
