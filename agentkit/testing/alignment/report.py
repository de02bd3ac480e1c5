"""What a failed property says: the first difference, side by side, in ids and in text."""

from collections.abc import Sequence

from attrs import frozen

from agentkit.protocols import Tokenizer
from agentkit.testing.alignment.conversations import Conversation

_BEFORE, _AFTER = 3, 4
_WIDTH = 34


class Misaligned(AssertionError):
    """A property does not hold; the message says where, and what stands there instead."""


class TemplateRewrites(AssertionError):
    """The template changes text that is in a chain already, so no chain can be its full render."""


@frozen
class Counterexample:
    """The smallest conversation that was found for which a property does not hold."""

    prop: str
    says: str
    conversation: Conversation
    difference: str
    advice: str
    seed: int

    def __str__(self) -> str:
        said = "\n".join(f"    {line}" for line in str(self.conversation).splitlines())
        found = "\n".join(f"    {line}" for line in self.difference.splitlines())
        return (
            f"{self.prop}: {self.says}\n  It does not hold for\n{said}\n  because\n{found}\n"
            f"  What to do: {self.advice}\n  The same again: seed={self.seed}"
        )


class AlignmentFailed(AssertionError):
    """A property does not hold for this renderer; `counterexample` is the smallest conversation found."""

    def __init__(self, counterexample: Counterexample) -> None:
        super().__init__(str(counterexample))
        self.counterexample = counterexample

    def __reduce__(self) -> "tuple[type[AlignmentFailed], tuple[Counterexample]]":
        return type(self), (self.counterexample,)


def expect_same(
    what: str,
    expected: Sequence[int],
    found: Sequence[int],
    tokenizer: Tokenizer,
    *,
    headings: tuple[str, str] = ("template", "chain"),
) -> None:
    """Raises Misaligned with both sides around the first difference, unless both are the same."""
    one, other = list(expected), list(found)
    if one == other:
        return
    raise Misaligned(f"{what}\n{side_by_side(one, other, tokenizer, headings)}")


def expect(holds: bool, what: str) -> None:
    """Raises Misaligned that says `what` unless it holds."""
    if not holds:
        raise Misaligned(what)


def side_by_side(expected: Sequence[int], found: Sequence[int], tokenizer: Tokenizer, headings: tuple[str, str]) -> str:
    """A table of the tokens around the first difference."""
    shorter = min(len(expected), len(found))
    at = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    lines = [
        f"first difference at token {at} ({headings[0]}: {len(expected)} tokens, {headings[1]}: {len(found)})",
        f"{'token':>8}  {headings[0]:<{_WIDTH}}  {headings[1]}",
    ]
    for place in range(max(0, at - _BEFORE), min(max(len(expected), len(found)), at + _AFTER)):
        left, right = (_token(ids, place, tokenizer) for ids in (expected, found))
        mark = "" if left == right else "  <"
        lines.append(f"{place:>8}  {left:<{_WIDTH}}  {right}{mark}")
    return "\n".join(lines)


def _token(ids: Sequence[int], place: int, tokenizer: Tokenizer) -> str:
    if place >= len(ids):
        return "-"
    text = repr(tokenizer.decode([ids[place]]))
    return f"{ids[place]} {text if len(text) <= 24 else text[:22] + '..'}"
