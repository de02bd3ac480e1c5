"""What must hold of the record of every conversation, whatever was sampled and whatever the tools answered.

Each is a function of the subject, a conversation, and a number to choose with; the result says whether the conversation
reached what it asks about. One that does not hold raises Misaligned.
"""

from collections.abc import Sequence

from agentkit.journal.codec import Codec
from agentkit.protocols import Chain, ExitReason, SpanKind
from agentkit.testing.alignment.canonical import turns_anyhow
from agentkit.testing.alignment.conversations import Conversation
from agentkit.testing.alignment.play import Course, Played, play, sampled_logprobs
from agentkit.testing.alignment.report import expect, expect_same
from agentkit.testing.alignment.subject import Subject
from agentkit.tokens import join


def earlier_tokens_never_change(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Each prompt begins with all that the model was sent and sampled before, id for id."""
    turns, played = _played(subject, conversation, pick)
    if played is None or len(played.prompts) < 2:
        return False
    for number, (before, after) in enumerate(zip(played.prompts, played.prompts[1:], strict=False)):
        known = [*before, *turns[number]]
        expect_same(
            f"the prompt of turn {number + 1} does not begin with what the model knows",
            known,
            after[: len(known)],
            subject.tokenizer,
            headings=("sent and sampled", "sent next"),
        )
    return True


def every_token_has_mask_and_logprob(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """A chain has as many mask entries and log-probabilities as ids, and its spans tile it."""
    _, played = _played(subject, conversation, pick)
    for chain in () if played is None else played.trajectory.chains:
        lengths = (len(chain.ids), len(chain.response_mask), len(chain.logprobs))
        expect(len(set(lengths)) == 1, f"ids, mask and logprobs have {lengths} entries")
        ends = [0, *(span.stop for span in chain.spans)]
        starts = [*(span.start for span in chain.spans), len(chain)]
        expect(ends == starts, f"the spans end at {ends} and start at {starts}")
    return played is not None


def sampled_ids_are_kept_verbatim(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """What was sampled stands in the chain as it came, in one piece, once."""
    turns, played = _played(subject, conversation, pick)
    if played is None:
        return False
    chain = played.trajectory.chains[-1]
    found = [list(chain.ids[span.start : span.stop]) for span in chain.spans if span.kind is SpanKind.SAMPLED]
    made = [list(ids) for ids in turns[: len(played.prompts)] if ids]
    for number, (sampled, kept) in enumerate(zip(made, found, strict=False)):
        expect_same(f"turn {number}", sampled, kept, subject.tokenizer, headings=("sampled", "chain"))
    last = int(played.refused is None and len(played.prompts) > len(turns))
    expect(len(found) == len(made) + last, f"{len(made) + last} turns were sampled, the chain has {len(found)}")
    return True


def mask_is_one_where_sampled(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """The response mask is 1 in what the policy sampled, and 0 in all else."""
    turns, played = _played(subject, conversation, pick)
    if played is None:
        return False
    chain = played.trajectory.chains[-1]
    expected = [0] * len(chain)
    for number, prompt in enumerate(played.prompts):
        sampled = len(turns[number]) if number < len(turns) else 1
        expected[len(prompt) : len(prompt) + sampled] = [1] * sampled
    expect(list(chain.response_mask) == expected, f"expected {expected}, found {list(chain.response_mask)}")
    return True


def logprobs_are_the_engines(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """A log-probability is what the engine sent, 0.0 where nothing was sampled; a missing one is an error."""
    turns, played = _played(subject, conversation, pick)
    if played is None:
        return False
    chain = played.trajectory.chains[-1]
    for number, prompt in enumerate(played.prompts):
        ids = turns[number] if number < len(turns) else chain.ids[-1:].tolist()
        found = list(chain.logprobs[len(prompt) : len(prompt) + len(ids)])
        expect(found == list(sampled_logprobs(len(prompt), ids)), f"those of turn {number} are {found}")
    off = [t for t in range(len(chain)) if not chain.response_mask[t] and chain.logprobs[t] != 0.0]
    expect(not off, f"tokens {off} were not sampled and have one")
    if turns and turns[0]:
        short = play(subject, conversation, turns, Course(drops_a_logprob=0))
        reason, kept = short.trajectory.exit_reason, len(short.trajectory.chains[-1])
        expect(reason is ExitReason.MODEL_ERROR, f"one logprob too few ends a rollout as {reason}")
        expect(kept == len(played.prompts[0]), "of a chunk with a logprob too few something was kept")
    return True


def the_model_is_sent_the_chain(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """The prompt of a turn is the chain up to it: what is trained on is what the model saw."""
    _, played = _played(subject, conversation, pick)
    if played is None:
        return False
    chain = played.trajectory.chains[-1]
    for number, prompt in enumerate(played.prompts):
        where = f"turn {number}"
        expect_same(where, prompt, chain.ids[: len(prompt)].tolist(), subject.tokenizer, headings=("sent", "chain"))
    starts = [turn.start for turn in played.trajectory.turns]
    expect(starts == [len(prompt) for prompt in played.prompts], f"turns start at {starts}, not after their prompts")
    return True


def chunks_make_no_difference(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """However a turn is cut into chunks on its way here, the record is the same."""
    turns, played = _played(subject, conversation, 0)
    if played is None:
        return False
    again = play(subject, conversation, turns, Course(chunk=1 + pick % 5))
    expect_same("the chains differ", played.ids, again.ids, subject.tokenizer, headings=("in one", "in chunks"))
    expect(again.trajectory.chains == played.trajectory.chains, "mask, logprobs or spans differ")
    return True


def a_rewritten_history_opens_a_chain(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Where the history is replaced a new chain begins with the template's own prompt; the old one stays as it was."""
    turns, played = _played(subject, conversation, 0)
    if played is None or played.refused is not None:
        return False
    number = 1 + pick % len(conversation.exchanges)
    anew = tuple(conversation.opening)
    course = Course(rewrites_before=number, rewritten=anew)
    again = play(subject, conversation, turns, course)
    if again.refused is not None:  # what follows is appended to another turn than before
        return False
    expect(len(again.trajectory.chains) == 2, f"there are {len(again.trajectory.chains)} chains, expected 2")
    old, new = again.trajectory.chains
    kept = [*played.prompts[number - 1], *turns[number - 1]]
    expect_same("the old chain", kept, old.ids.tolist(), subject.tokenizer, headings=("as it was", "after"))
    prompt = subject.oracle.encode(anew, conversation.tools, generation_prompt=True)
    expect_same("the new chain", prompt, new.ids[: len(prompt)].tolist(), subject.tokenizer)
    return True


def the_record_reads_back(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Written to a journal and read again, or joined from what was appended turn by turn, the chains are the same."""
    _, played = _played(subject, conversation, pick)
    if played is None:
        return False
    chains = played.trajectory.chains
    codec = Codec()
    encoded = codec.encode_trajectory(played.trajectory)
    read = codec.decode_trajectory(encoded.record, encoded.blobs).chains
    for name, found in (("the journal", read), ("joined", join(played.deltas))):
        _expect_chains(name, chains, found, subject)
    return True


def a_failed_generation_leaves_no_trace(subject: Subject, conversation: Conversation, pick: int) -> bool:
    """Where a generation fails before its first token and is tried again, the record is as if it had not."""
    turns, played = _played(subject, conversation, 0)
    if played is None:
        return False
    again = play(subject, conversation, turns, Course(fails_before=pick % (len(turns) + 1)))
    _expect_chains("the chains", played.trajectory.chains, again.trajectory.chains, subject)
    return True


def _expect_chains(what: str, expected: Sequence[Chain], found: Sequence[Chain], subject: Subject) -> None:
    expect(len(expected) == len(found), f"{what}: {len(found)} chains, expected {len(expected)}")
    for one, other in zip(expected, found, strict=True):
        expect_same(what, one.ids.tolist(), other.ids.tolist(), subject.tokenizer, headings=("expected", "found"))
        expect(one == other, f"{what}: mask, logprobs or spans differ")


def _played(subject: Subject, conversation: Conversation, pick: int) -> tuple[list[tuple[int, ...]], Played | None]:
    """What was sampled, and what came of it; nothing where the policy was never asked."""
    turns = turns_anyhow(subject, conversation)
    played = play(subject, conversation, turns, Course(chunk=1 << (pick % 5)))
    return turns, played if played.prompts else None
