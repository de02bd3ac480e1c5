"""What must hold between a chain and the template's own full render, which is made without our renderer.

Each is a function of the subject, a conversation, and a number to choose with; the result says whether the conversation
reached what it asks about. One that does not hold raises Misaligned.
"""

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attrs import evolve

from agentkit.protocols import Message
from agentkit.testing.alignment.canonical import Missing, canonical_turn, sampled_turns, turns_anyhow
from agentkit.testing.alignment.conversations import Conversation, Sampling
from agentkit.testing.alignment.play import Played, play
from agentkit.testing.alignment.report import Misaligned, expect, expect_same
from agentkit.testing.alignment.subject import Subject


def the_chain_is_the_full_render(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Where the policy writes what the template would, the chain is the template's own full render, id for id."""
    del pick
    turns = sampled_turns(subject, conversation)
    if isinstance(turns, Missing):
        if not (turns.is_rewrite and subject.keeps_history):
            return _expect_refusal(subject, conversation, turns)
        turns = turns_anyhow(subject, conversation)
    played = play(subject, conversation, turns)
    if played.refused is not None:
        return _expect_declared(subject, played)
    full = _full(subject, _silent(conversation) if subject.keeps_history else conversation)
    if full is None:
        return False
    if subject.keeps_history:  # what was said stays as it was sampled: what is new must be the template's
        bridge = played.ids[played.trajectory.turns[-2].stop :]
        full, played_ids = full[-len(bridge) :], bridge
    else:
        played_ids = played.ids
    expect_same("the chain is not the template's full render", full, played_ids, subject.tokenizer)
    return True


def results_of_a_turn_go_in_together(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Several results of one turn are appended as the template writes them side by side, in their order."""
    return the_chain_is_the_full_render(subject, conversation, pick)


def the_bridge_does_not_depend_on_the_sample(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Whatever ids a turn was sampled as, all that is appended after it is the same."""
    del pick
    canonical = _as_the_template_writes(conversation)
    turns, other = sampled_turns(subject, canonical), sampled_turns(subject, conversation)
    if isinstance(turns, Missing) or isinstance(other, Missing) or turns == other:
        return False
    one, two = play(subject, canonical, turns), play(subject, conversation, other)
    expect(one.refused == two.refused, f"one is refused, the other not: {one.refused!r}, {two.refused!r}")
    for number, (before, after) in enumerate(zip(_bridges(one, turns), _bridges(two, other), strict=True)):
        what = f"what follows turn {number} differs"
        expect_same(what, before, after, subject.tokenizer, headings=("as the template writes it", "as sampled"))
    return bool(_bridges(one, turns))


def control_tokens_are_those_of_the_full_render(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """However a turn's text was split into tokens, the control tokens of the chain are those of the full render."""
    del pick
    turns = sampled_turns(subject, conversation)
    if isinstance(turns, Missing) or subject.keeps_history:
        return False
    played = play(subject, conversation, turns)
    full = _full(subject, conversation)
    if played.refused is not None or full is None:
        return False
    control = frozenset(subject.tokenizer.control.values())
    one, other = ([each for each in ids if each in control] for ids in (full, played.ids))
    expect_same("the control tokens differ", one, other, subject.tokenizer)
    return True


def content_forges_no_control_token(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """However a tool's output reads, the control tokens appended with it are those of a harmless output."""
    del pick
    turns = turns_anyhow(subject, _harmless(conversation))
    played, harmless = play(subject, conversation, turns), play(subject, _harmless(conversation), turns)
    control = frozenset(subject.tokenizer.control.values())
    expect(played.refused == harmless.refused, f"refused for what a tool said: {played.refused or harmless.refused}")
    for number, pair in enumerate(zip(_bridges(harmless, turns), _bridges(played, turns), strict=True)):
        one, other = ([each for each in ids if each in control] for ids in pair)
        what = f"the control tokens that follow turn {number} depend on what the tool said"
        expect_same(what, one, other, subject.tokenizer, headings=("harmless output", "this output"))
    return bool(_bridges(played, turns))


def a_prompt_is_what_the_template_writes(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """A whole conversation given as a prompt has the ids that the tokenizer's own library makes of it."""
    del pick
    full = _full(subject, conversation)
    if full is None:
        return False
    prompt = subject.renderer.prompt(conversation.messages, conversation.tools)
    expect_same("the prompt differs", full, prompt, subject.tokenizer, headings=("template", "renderer"))
    return True


def content_reads_as_the_template_writes_it(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Decoded, a chain says what the template writes, hostile content included, not a character more or less."""
    del pick
    try:
        ids = subject.oracle.encode(conversation.messages, conversation.tools, generation_prompt=True)
        prompt = subject.renderer.prompt(conversation.messages, conversation.tools)
    except Misaligned:
        raise
    except Exception as error:
        return _both_refuse(subject, conversation, error)
    one, other = (_legible(subject, subject.tokenizer.decode(list(each))) for each in (ids, prompt))
    if one != other:
        at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
        raise Misaligned(f"the template writes {one[at : at + 60]!r}\nthe prompt reads    {other[at : at + 60]!r}")
    return True


def separators_stand_once(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Between a stop token and the next control token stands what the template writes there, once."""
    del pick
    turns = sampled_turns(subject, conversation)
    if isinstance(turns, Missing):
        return False
    played = play(subject, conversation, turns)
    control = frozenset(subject.tokenizer.control.values())
    for number, bridge in enumerate(_bridges(played, turns)):
        canonical = canonical_turn(subject, _as_the_template_writes(conversation), number)
        full = _full(subject, evolve(conversation, exchanges=conversation.exchanges[: number + 1]))
        if isinstance(canonical, Missing) or full is None:
            continue
        start = len(subject.oracle.encode(conversation.before(number), conversation.tools, generation_prompt=True))
        one, other = (_up_to(control, ids) for ids in (full[start + len(canonical) :], bridge))
        expect_same(f"after the stop token of turn {number}", one, other, subject.tokenizer)
    return bool(_bridges(played, turns))


def a_cut_turn_is_closed_once(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """A turn cut at a length limit is closed by tokens with mask 0, one stop token among them, and goes on the same."""
    number = pick % len(conversation.exchanges)
    whole = evolve(conversation, exchanges=conversation.exchanges[: number + 1])
    turns = sampled_turns(subject, whole)
    if isinstance(turns, Missing):
        return False
    *body, stop = turns[number]
    kept = body[: pick // 7 % (len(body) + 1)]
    one, cut = play(subject, whole, turns), play(subject, whole, [*turns[:-1], kept])
    if one.refused is not None or cut.refused is not None:
        return False
    expected, found = [stop, *_bridges(one, turns)[-1]], _bridges(cut, [*turns[:-1], kept])[-1]
    extra = max(0, len(found) - len(expected))
    expect_same(f"what follows the cut turn {number}", expected, found[extra:], subject.tokenizer)
    closing = found[:extra]
    stops = [each for each in closing if each in subject.renderer.stop_ids]
    expect(not stops, f"a cut turn is closed twice: by {subject.tokenizer.decode(closing)!r}, then by a stop token")
    chain = cut.trajectory.chains[-1]
    after = cut.trajectory.turns[number].stop if kept else len(cut.prompts[number])
    expect(not any(chain.response_mask[after : after + extra + 1]), "a token that closes a cut turn has mask 1")
    return True


def the_same_question_has_one_answer(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """A renderer keeps nothing from call to call: the same conversation always has the same ids."""
    turns = turns_anyhow(subject, conversation)
    one = play(subject, conversation, turns)
    other = evolve(conversation, opening=(Message("user", f"something else {pick}"),), tools=())
    try:
        subject.renderer.prompt(other.messages, ())
    except Exception:  # this one the template refuses
        return False
    two = play(subject, conversation, turns)
    expect_same("the chains differ", one.ids, two.ids, subject.tokenizer, headings=("at first", "later"))
    return True


def the_work_is_that_of_the_new_text(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """What a bridge encodes does not grow with what was said and sampled before it."""
    del pick
    first = conversation.exchanges[0]
    longer = evolve(conversation, opening=(Message("user", "said " * 4000),))
    turns = sampled_turns(subject, evolve(conversation, exchanges=(first,)))
    if isinstance(turns, Missing):
        return False
    ids = [list(turns[0])]
    body = ids[0][:-1] or list(subject.tokenizer.encode("a"))
    long_ids = [[*(body * (4000 // len(body) + 1)), *ids[0][-1:]]]
    costs = []
    for talk, sampled in ((conversation, ids), (longer, long_ids)):
        once = evolve(talk, exchanges=(first,))
        with _encoded_chars(subject.tokenizer) as opened:
            subject.renderer.prompt(once.opening, once.tools)
        with _encoded_chars(subject.tokenizer) as all_of_it:
            played = play(subject, once, sampled)
        if played.refused is not None:
            return False
        costs.append(all_of_it[0] - opened[0] * (1 + bool(once.tools)))  # an agent tries its tools once
    expect(
        costs[1] <= costs[0] + 2000,
        f"a bridge encodes {costs[1]} characters after a long conversation, {costs[0]} after a short one",
    )
    return True


def refusals_were_declared(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """What a bridge refuses, the certificate of the renderer had said before."""
    del pick
    turns = sampled_turns(subject, conversation)
    if isinstance(turns, Missing):
        if not turns.is_refusal:
            return _expect_refusal(subject, conversation, turns)
        turns = turns_anyhow(subject, conversation)
    played = play(subject, conversation, turns)
    return _expect_declared(subject, played) if played.refused is not None else True


def _expect_refusal(subject: Subject, conversation: Conversation, missing: Missing) -> bool:
    """Where the template rewrites what it wrote, the bridge must not go on as if it did not."""
    if not missing.is_rewrite or subject.keeps_history:
        return False
    sampled = Sampling(ids=tuple(subject.tokenizer.encode("said")))
    anyhow = evolve(conversation, exchanges=tuple(evolve(each, sampling=sampled) for each in conversation.exchanges))
    turns = sampled_turns(subject, anyhow)
    if isinstance(turns, Missing):
        return False
    played = play(subject, anyhow, turns)
    expect(played.refused is not None, f"the bridge appends, but {missing.why}: no chain can be the full render")
    return _expect_declared(subject, played)


def _expect_declared(subject: Subject, played: Played) -> bool:
    refused = played.refused or ""
    expect(not played.is_broken, refused)
    expect(not subject.is_certified, f"the renderer says that nothing is rewritten, yet its bridge refuses: {refused}")
    return True


def _silent(conversation: Conversation) -> Conversation:
    """`conversation` without what stands beside the last calls: some templates move it behind their results.

    Where history is kept it stays where it was sampled, and what follows is what follows the calls alone.
    """
    *earlier, last = conversation.exchanges
    if last.said.tool_calls:
        last = evolve(last, said=evolve(last.said, content=""))
    return evolve(conversation, exchanges=(*earlier, last))


def _full(subject: Subject, conversation: Conversation) -> list[int] | None:
    """The full render, or nothing where the template refuses it, or where content spells control tokens.

    There `transformers` makes control tokens of content, which is what the renderer must not do.
    """
    try:
        full = subject.oracle.encode(conversation.messages, conversation.tools, generation_prompt=True)
        plain = subject.oracle.encode(_harmless(conversation).messages, conversation.tools, generation_prompt=True)
    except Exception:  # the template is the user's code
        return None
    control = frozenset(subject.tokenizer.control.values())
    if [each for each in full if each in control] != [each for each in plain if each in control]:
        return None
    return list(full)


def _harmless(conversation: Conversation) -> Conversation:
    """`conversation` with a letter for each result that says anything."""
    exchanges = []
    for exchange in conversation.exchanges:
        new = (
            evolve(message, content="x") if message.role == "tool" and message.content.strip() else message
            for message in exchange.new
        )
        exchanges.append(evolve(exchange, new=tuple(new)))
    return evolve(conversation, exchanges=tuple(exchanges))


def _as_the_template_writes(conversation: Conversation) -> Conversation:
    exchanges = tuple(evolve(exchange, sampling=Sampling()) for exchange in conversation.exchanges)
    return evolve(conversation, exchanges=exchanges)


def _bridges(played: Played, turns: Sequence[Sequence[int]]) -> list[list[int]]:
    """What stands between each turn and the next."""
    pairs = zip(played.prompts, played.prompts[1:], strict=False)
    return [list(after[len(before) + len(turns[number]) :]) for number, (before, after) in enumerate(pairs)]


def _up_to(control: frozenset[int], ids: Sequence[int]) -> list[int]:
    end = next((place for place, each in enumerate(ids) if each in control), len(ids))
    return list(ids[: end + 1])


def _both_refuse(subject: Subject, conversation: Conversation, error: Exception) -> bool:
    try:
        subject.renderer.prompt(conversation.messages, conversation.tools)
    except Exception:  # each in its own words
        return False
    raise Misaligned(f"the template refuses ({error}), the renderer does not")


def _legible(subject: Subject, text: str) -> str:
    text = unicodedata.normalize("NFC", text)
    return text if subject.keeps_text else "".join(text.split())


@contextmanager
def _encoded_chars(tokenizer: Any) -> Iterator[list[int]]:
    """Counts the characters that `tokenizer.encode` is given, by watching its calls: it is in use already."""
    code = type(tokenizer).encode.__code__
    count = [0]

    def watch(frame: FrameType, event: str, arg: object) -> None:
        del arg
        if event == "call" and frame.f_code is code:
            count[0] += len(frame.f_locals[code.co_varnames[1]])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield count
    finally:
        sys.setprofile(before)
