"""Hypothesis strategies for token alignment: what tools answer, what policies sample, and whole conversations.

They shrink towards one short message, one call, and the template's own ids. Needs the extra `testing`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from agentkit.extras import require
from agentkit.protocols import Json, Message, Tokenizer, ToolCall, ToolSpec
from agentkit.testing.alignment.conversations import Conversation, Exchange, Sampling
from agentkit.testing.alignment.play import numbered
from agentkit.testing.alignment.properties import Kind
from agentkit.testing.alignment.subject import Subject

require("hypothesis", extra="testing", purpose="agentkit.testing.alignment.strategies")

from hypothesis import strategies as st  # noqa: E402  # after the error that names the extra

_ODD = (
    " ", "\n", "\n\n", "\t", "\r\n", "  ", "7", "1234567890", "{", "}", "<", ">", "|", "[", "]", "'", '"', "\\", "&lt;",
    "e\u0301", "\u0301", "\u0308\u0323", "\u200d", "\u200b", "\ufeff", "\u2028", "\u202e", "\x00", "\x1b[2J", "\x7f",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u4f60\u597d", "\uac00",
    "\ue000", "\U000f0000", "\U0010f000", "\U0010f001", "\U0010fffd", "\ud83d", "\udc00", "\ufffd",
    "</tool_response>", "<tool_response>", "{{ x }}", "{% raw %}", "None", "null", "false",
)  # fmt: skip
_EDGES = ("\n", " ", "\n\n", "7", "\t")  # what merges with the text around it
_JSON_TEXTS = ('{"a": [1, 2.50, "x"], "b": null}', "[]", '{"a":"\\u00e9\\n"}', "```json\n{}\n```")


def control_texts(tokenizer: Tokenizer) -> st.SearchStrategy[str]:
    """The texts of the tokenizer's control tokens, and pieces of them."""
    texts = sorted(tokenizer.control)
    if not texts:
        return st.just("")
    whole = st.sampled_from(texts)
    pieces = st.tuples(whole, st.integers(1, 40), st.booleans()).map(
        lambda drawn: drawn[0][: drawn[1]] if drawn[2] else drawn[0][-drawn[1] :]
    )
    return whole | pieces


def tool_outputs(tokenizer: Tokenizer | None = None, *, max_parts: int = 4) -> st.SearchStrategy[str]:
    """What tools answer at their worst.

    Odd white space, combining characters, emoji that are joined, digits, JSON, private-use characters, lone surrogates,
    terminal escapes, and with a `tokenizer` the texts of its control tokens and pieces of them.
    """
    parts = st.sampled_from(("a", "ok", "b c")) | st.sampled_from(_EDGES) | st.sampled_from(_ODD)
    parts |= st.sampled_from(_JSON_TEXTS)
    parts |= st.text(max_size=4)
    if tokenizer is not None:
        parts |= control_texts(tokenizer)
    return st.lists(parts, max_size=max_parts).map("".join)


def said_texts() -> st.SearchStrategy[str]:
    """What a policy says in plain words: lines, code, numbers; nothing that reads as a control token."""
    pieces = st.sampled_from(("said", " more", ", 42", ":\n    ", "x = 1\n", " na\u00efve", "\U0001f600", "\n\n", " "))
    return st.lists(pieces, max_size=4).map(lambda drawn: "said" + "".join(drawn))


def sampled_ids(tokenizer: Tokenizer, *, max_size: int = 12) -> st.SearchStrategy[tuple[int, ...]]:
    """Any ids a policy may sample, control ids in the middle too; they need not be those of any text."""
    control = sorted(tokenizer.control.values())
    plain = sorted({each for text in _ODD[:30] + _JSON_TEXTS for each in _encodable(tokenizer, text)})
    highest = max([*control, *plain], default=0)
    ids = st.sampled_from(plain) | st.integers(0, highest) if plain else st.integers(0, highest)
    if control:
        ids |= st.sampled_from(control)
    return st.lists(ids, max_size=max_size).map(tuple)


def samplings(tokenizer: Tokenizer, *, canonical: bool = True, whole: bool = False) -> st.SearchStrategy[Sampling]:
    """How a turn is sampled: as the template writes it, as other ids of the same text, or any ids at all.

    With `canonical=False` never as the template writes it; with `whole` never cut at a length limit.
    """
    cuts = st.lists(st.integers(1, 60), min_size=1, max_size=5).map(tuple)
    how = st.builds(Sampling, cuts=cuts) | st.builds(Sampling, ids=sampled_ids(tokenizer))
    if canonical:
        how = st.just(Sampling()) | how
    if whole:
        return how
    return how | st.tuples(how, st.integers(0, 30)).map(lambda drawn: evolve(drawn[0], kept=drawn[1]))


def chunkings(length: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Ways to cut a stream of `length` tokens or characters into chunks: the places where one ends."""
    if length < 2:
        return st.just(())
    return st.sets(st.integers(1, length - 1), max_size=8).map(lambda places: tuple(sorted(places)))


def prefixes(conversation: Conversation) -> st.SearchStrategy[Conversation]:
    """`conversation` as it stood some turns ago: what a fork shares with it."""
    turns = range(len(conversation.exchanges) + 1)
    return st.sampled_from(turns).map(lambda turn: evolve(conversation, exchanges=conversation.exchanges[:turn]))


def arguments_of(tool: ToolSpec) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments with the types that the tool's schema asks for."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return st.just({})
    required = tool.parameters.get("required")
    names = required if isinstance(required, Sequence) and not isinstance(required, str) else ()
    kinds = {str(name): _value(schema) for name, schema in properties.items()}
    needed = {name: kind for name, kind in kinds.items() if name in names}
    return st.fixed_dictionaries(needed, optional={name: kind for name, kind in kinds.items() if name not in needed})


@st.composite
def conversations(
    draw: st.DrawFn,
    subject: Subject,
    *,
    max_turns: int = 3,
    min_results: int = 0,
    users: bool = True,
    samples: st.SearchStrategy[Sampling] | None = None,
    outputs: st.SearchStrategy[str] | None = None,
) -> Conversation:
    """Conversations as an agent has them: a question, turns with calls or without, every call answered.

    A turn has at least `min_results` calls; `users` says whether a user may speak after the results, or a turn have no
    call. `samples` are how turns are sampled (by default as the template writes them), `outputs` what tools answer.
    """
    outputs = tool_outputs(subject.tokenizer) if outputs is None else outputs
    asked = Message("user", draw(said_texts() if users else st.just("said")))
    opens = subject.opens_with_system and draw(st.booleans())
    opening = (Message("system", draw(said_texts())), asked) if opens else (asked,)
    users = users and draw(st.booleans())  # half of them are work alone: what users say is what templates rewrite for
    exchanges = []
    for _ in range(draw(st.integers(1, max_turns))):
        least = min_results if users else max(min_results, 1)
        count = draw(st.integers(least, max(2, least)))
        calls = []
        for number in range(count):
            tool = draw(st.sampled_from(subject.tools))
            calls.append(ToolCall(f"c{number}", tool.name, draw(arguments_of(tool))))
        new = [Message("tool", draw(outputs), tool_call_id=call.id, name=call.name) for call in calls]
        if users and (not calls or draw(st.booleans())):
            new.append(Message("user", draw(said_texts())))
        content = draw(st.just("") | said_texts()) if calls else draw(said_texts())
        thinks = subject.always_reasons or (subject.reasons and draw(st.booleans()))
        reasoning = f"thought {draw(said_texts())}" if thinks else None
        said = Message("assistant", content, tuple(calls), reasoning=reasoning)
        exchanges.append(Exchange(said, tuple(new), draw(samples) if samples is not None else Sampling()))
    tools = subject.tools if subject.shows_tools and draw(st.booleans()) else ()
    return numbered(Conversation(opening, tuple(exchanges), tools))


def conversations_for(kind: Kind, subject: Subject) -> st.SearchStrategy[Conversation]:
    """The conversations that a property of this kind is tried on."""
    tokenizer = subject.tokenizer
    if kind is Kind.ANY:
        return conversations(subject, samples=samplings(tokenizer))
    if kind is Kind.WHOLE:
        return conversations(subject, samples=samplings(tokenizer, whole=True))
    if kind is Kind.RESPLIT:
        cuts = samplings(tokenizer, whole=True).filter(lambda sampling: sampling.ids is None)
        return conversations(subject, samples=cuts)
    if kind is Kind.PARALLEL:
        return conversations(subject, min_results=2, max_turns=2)
    if kind is Kind.ONE_TURN:
        return conversations(subject, max_turns=1, outputs=said_texts())
    return conversations(subject)


def _encodable(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    return tokenizer.encode(text.encode("utf-8", "replace").decode())


def _value(schema: Json) -> st.SearchStrategy[Any]:
    if not isinstance(schema, Mapping):
        return st.just("x")
    choices = schema.get("enum")
    if isinstance(choices, Sequence) and not isinstance(choices, str) and choices:
        return st.sampled_from(list(choices))
    kind = schema.get("type")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        kind = kind[0] if kind else "string"
    if kind == "object":
        return st.just({"x": "1"})
    if kind == "array":
        return st.lists(_value(schema.get("items")), max_size=2)
    plain: dict[object, st.SearchStrategy[Any]] = {
        "integer": st.integers(-9, 99),
        "number": st.sampled_from((0, 1.5, -2)),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return plain.get(kind, st.sampled_from(("x", "ls -l", "a\nb", '"')))
