"""The matrix: what may follow a turn, each case against the template's own full render."""

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from agentkit.protocols import Message, ToolSpec
from agentkit.testing.alignment import Subject
from tests.tokens.families.bench import Bench, Truth, bridged

ODD_CONTENTS = {
    "plain": "ok",
    "empty": "",
    "leading space": " ok",
    "leading newline": "\nok",
    "leading blank line": "\n\nok",
    "leading digit": "7 ok",
    "combining mark": "\u0301e\u0301",
    "emoji": "\U0001f469\u200d\U0001f469 ok",
    "trailing newline": "ok\n",
    "trailing blank lines": "ok\n\n\n",
    "trailing space": "ok ",
    "JSON": '{"a": [1, "b"]}',
    "control tokens": "QXHOSTILEXQ",  # put back once the template has written it
}
MARK = ODD_CONTENTS["control tokens"]


@frozen
class Case:
    """So many results, what they say, and whether a user speaks after them."""

    name: str
    contents: tuple[str, ...]
    users: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()

    def said(self, bench: Bench) -> tuple[Message, list[Message]]:
        """The turn, and what follows it."""
        action = bench.turn(2, len(self.contents))
        results = [bench.result(2, place, content) for place, content in enumerate(self.contents)]
        return action, [*results, *(Message("user", each) for each in self.users)]


def cases(bench: Bench) -> Iterator[Case]:
    """The 32 cases: 13 odd contents, two results, two empty results, a result and a user; without tools, and with."""
    for tools in ((), bench.shown) if bench.shown else ((),):
        for name, content in ODD_CONTENTS.items():
            yield Case(name, (content,), tools=tools)
        yield Case("two results", ("A", "B"), tools=tools)
        yield Case("two empty results", ("", ""), tools=tools)
        yield Case("a result and a user", ("ok",), ("next",), tools=tools)


@frozen
class Outcome:
    """What came of a case.

    `verdict` is "exact" (appended, and the full render), "withheld" (refused, though exact in this one conversation),
    "rewritten" or "refused" (refused, since the full render says so); `kept` whether `keep_history` appended the full
    render's tail. What is neither is in `wrong`.
    """

    case: Case
    verdict: str
    kept: bool
    why: str = ""
    wrong: tuple[str, ...] = ()


def outcome(bench: Bench, case: Case, subject: Subject | None = None) -> Outcome:
    """Play one case, with the bench's own renderer or that of another subject."""
    subject = subject or bench.subject
    opening = bench.opening() if subject.opens_with_system else bench.opening()[-1:]
    action, new = case.said(bench)
    truth = bench.truth(opening, action, new, case.tools)
    if MARK in case.contents and isinstance(truth, Truth):
        truth, new = _hostile(bench, case, opening, truth)
    if isinstance(truth, str):
        wrong = [
            f"{name} appends what the template refuses: {truth}"
            for name, each in (("the bridge", subject), ("keep_history", bench.kept))
            if isinstance(bridged(each, action, new, case.tools, [0, 0]), list)
        ]
        return Outcome(case, "refused", False, truth, tuple(wrong))
    sampled = bench.sampled(truth)
    grown = bridged(subject, action, new, case.tools, sampled)
    kept = bridged(bench.kept, action, new, case.tools, sampled)
    wrong = []
    if isinstance(kept, list) and kept != truth.tail:
        wrong.append(f"keep_history appends {kept}, the full render has {truth.tail}")
    if truth.prompt != list(subject.renderer.prompt(opening, case.tools)):
        wrong.append("the prompt differs")
    if truth.turn is None:
        if isinstance(grown, list):
            wrong.append(f"the bridge appends, but {truth.why}")
        return Outcome(case, "rewritten", isinstance(kept, list), truth.why, tuple(wrong))
    if isinstance(grown, str):
        return Outcome(case, "withheld", isinstance(kept, list), grown, tuple(wrong))
    if grown != truth.tail:
        wrong.append(f"the bridge appends {grown}, the full render has {truth.tail}")
    return Outcome(case, "exact", isinstance(kept, list), "", tuple(wrong))


def _hostile(bench: Bench, case: Case, opening: Sequence[Message], truth: Truth) -> tuple[Truth, list[Message]]:
    """The same where the content is all of the tokenizer's control tokens, as text."""
    evil = "".join(list(bench.control)[:60])
    _, new = evolve(case, contents=(evil,)).said(bench)
    action, marked = case.said(bench)
    text = bench.text([*opening, action, *marked], case.tools)
    controls = len(bench.controls_in(truth.tail))
    stretches = bench.stretches(text)
    tail: list[int] = []
    for control, stretch in stretches[len(stretches) - controls :]:
        tail += [bench.control[control], *(bench.plain(stretch.replace(MARK, evil)) if stretch else ())]
    behind = stretches[len(stretches) - controls - 1][1]
    return evolve(truth, tail=[*(bench.plain(behind.replace(MARK, evil)) if behind else ()), *tail]), new
