"""The turn that a template itself would have a policy sample, cut out of its full render.

Of the full render with everything that follows, the turn is what stands between the generation prompt and the first
stop token after it, that token included. There is no such turn where the template changes the prompt once the turn is
in the past, or where the first token of the turn merges with the prompt's last one: no policy could have sampled that.
"""

import unicodedata
from collections.abc import Sequence

from attrs import frozen

from agentkit.protocols import Message
from agentkit.testing.alignment.conversations import Conversation, Sampling, resplit
from agentkit.testing.alignment.oracles import printable
from agentkit.testing.alignment.subject import Subject


@frozen
class Missing:
    """Why there is no such turn; `stop` is what seems to end it, `is_rewrite` says that what was written is changed."""

    why: str
    stop: int
    is_rewrite: bool = False
    is_refusal: bool = False


def canonical_turn(subject: Subject, conversation: Conversation, turn: int) -> "tuple[int, ...] | Missing":
    """The ids of turn number `turn` as the template writes it, its stop token included, or why there are none."""
    stops = subject.renderer.stop_ids
    before = conversation.before(turn)
    exchange = conversation.exchanges[turn]
    after = [*before, exchange.said, *exchange.new]
    try:
        prompt_text = subject.oracle.render(before, conversation.tools, generation_prompt=True)
        prompt = list(subject.oracle.encode(before, conversation.tools, generation_prompt=True))
        text = subject.oracle.render(after, conversation.tools, generation_prompt=True)
        ids = list(subject.oracle.encode(after, conversation.tools, generation_prompt=True))
    except Exception as error:  # the template is the user's code, and refuses in its own words
        return Missing(f"the template refuses: {type(error).__name__}: {error}", min(stops), is_refusal=True)
    ends = [each for each in ids if each in stops][sum(each in stops for each in prompt) :]
    stop = ends[0] if ends else min(stops)
    if not text.startswith(prompt_text):
        return Missing("the template writes the prompt otherwise once the turn is in the past", stop, is_rewrite=True)
    if ids[: len(prompt)] != prompt:
        return Missing("the turn's first token merges with the prompt's last one", stop)
    end = next((place for place in range(len(prompt), len(ids)) if ids[place] in stops), None)
    if end is None:
        return Missing("the template writes no stop token after the turn", stop)
    body = tuple(ids[len(prompt) : end + 1])
    if _drops(subject, conversation, exchange.said, before, prompt_text, subject.tokenizer.decode(body)):
        return Missing("the template drops what the turn said once something follows it", stop, is_rewrite=True)
    return body


def sampled_turns(subject: Subject, conversation: Conversation) -> "list[tuple[int, ...]] | Missing":
    """What is sampled in each turn of `conversation`, as its samplings say."""
    turns: list[tuple[int, ...]] = []
    for number, exchange in enumerate(conversation.exchanges):
        ids = canonical_turn(subject, conversation, number)
        sampling = exchange.sampling
        if isinstance(ids, Missing):
            if sampling.ids is None:
                return ids
            ids = (ids.stop,)
        turns.append(_sampled(subject, ids, sampling))
    return turns


def turns_anyhow(subject: Subject, conversation: Conversation) -> list[tuple[int, ...]]:
    """What is sampled in each turn, in plain words where the template has no such turn."""
    turns: list[tuple[int, ...]] = []
    for number, exchange in enumerate(conversation.exchanges):
        ids = canonical_turn(subject, conversation, number)
        if isinstance(ids, Missing):
            ids = (*subject.tokenizer.encode("said"), ids.stop)
        turns.append(_sampled(subject, ids, exchange.sampling))
    return turns


def _sampled(subject: Subject, canonical: Sequence[int], sampling: Sampling) -> tuple[int, ...]:
    *body, stop = canonical
    if sampling.ids is not None:
        body = [each for each in sampling.ids if each not in subject.renderer.stop_ids]
    elif sampling.cuts:
        body = resplit(subject.tokenizer, body, sampling.cuts)
    return (*body, stop) if sampling.kept is None else tuple(body[: sampling.kept])


def _drops(
    subject: Subject, conversation: Conversation, said: Message, before: list[Message], prompt: str, body: str
) -> bool:
    """Whether the template writes what the turn says while it is the last, and not in `body`, once it is not."""
    try:
        alone = subject.oracle.render([*before, said], conversation.tools, generation_prompt=False)
    except Exception:  # it takes no conversation that ends with the policy's turn
        return False
    texts = [_dense(text) for text in (printable(said).reasoning or "", printable(said).content)]
    return any(text in _dense(alone[len(prompt) :]) and text not in _dense(body) for text in texts)


def _dense(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).split())
