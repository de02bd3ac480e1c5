"""Looks for a conversation for which a property does not hold, and makes it as small as can be."""

from collections.abc import Iterator, Sequence
from typing import cast

from attrs import frozen

from agentkit.extras import require
from agentkit.testing.alignment.conversations import Conversation
from agentkit.testing.alignment.properties import PROPERTIES, Property
from agentkit.testing.alignment.report import AlignmentFailed, Counterexample, Misaligned
from agentkit.testing.alignment.subject import Subject

_SHRINKS = 200  # conversations tried to make a counterexample smaller


@frozen
class Finding:
    """What came of one property: a counterexample, or none among `reached` of `tried` conversations."""

    prop: Property
    tried: int
    reached: int
    counterexample: Counterexample | None = None


def search(subject: Subject, prop: Property, *, examples: int = 30, seed: int = 0) -> Finding:
    """Try `prop` on so many conversations. The same seed tries the same ones.

    Raises:
        MissingExtraError: hypothesis is not installed.
    """
    require("hypothesis", extra="testing", purpose="an alignment test")
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    from agentkit.testing.alignment.strategies import conversations_for  # hypothesis is needed only to search

    seen = [0, 0]
    failing: set[tuple[str, int]] = set()
    failing_at = [0]
    worst: list[tuple[Conversation, str]] = []

    def note(case: tuple[str, int], conversation: Conversation, difference: str) -> None:
        failing_at[0] = failing_at[0] or seen[0]
        failing.add(case)
        worst[:] = [(conversation, difference)]

    @seeded(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),  # slow templates are no fault
    )
    @given(conversations_for(prop.kind, subject), st.integers(0, 99))
    def holds(conversation: Conversation, pick: int) -> None:
        seen[0] += 1
        case = (str(conversation), pick)
        if failing and seen[0] > failing_at[0] + _SHRINKS and case not in failing:
            return  # small enough
        try:
            seen[1] += _opens(subject, conversation) and prop.check(subject, conversation, pick)
        except Misaligned as error:
            note(case, conversation, str(error))
            raise
        except Exception as error:  # whatever code of the user's raises is what was looked for
            note(case, conversation, f"{type(error).__name__}: {error}")
            raise

    try:
        holds()
    except Exception:  # the last one that hypothesis runs is the smallest
        if not worst:
            raise
        ((conversation, difference),) = worst
        found = Counterexample(prop.name, prop.says, conversation, difference, prop.advice, seed)
        return Finding(prop, seen[0], seen[1], found)
    return Finding(prop, seen[0], seen[1])


def _opens(subject: Subject, conversation: Conversation) -> bool:
    """Whether the template takes what the conversation opens with; else no rollout comes to its first turn."""
    try:
        subject.oracle.render(conversation.opening, conversation.tools, generation_prompt=True)
    except Exception:  # the template is the user's code
        return False
    return True


def find_all(
    subject: Subject, *, properties: Sequence[Property] = PROPERTIES, examples: int = 30, seed: int = 0
) -> Iterator[Finding]:
    """What comes of each property, one after another."""
    for prop in properties:
        yield search(subject, prop, examples=examples, seed=seed)


def check_alignment(
    subject: Subject, *, properties: Sequence[Property] = PROPERTIES, examples: int = 30, seed: int = 0
) -> None:
    """Try each property on so many conversations; not inside an event loop.

    Raises:
        AlignmentFailed: one does not hold; its message has the smallest conversation found, both sides, and what to do.
    """
    for finding in find_all(subject, properties=properties, examples=examples, seed=seed):
        if finding.counterexample is not None:
            raise AlignmentFailed(finding.counterexample)
