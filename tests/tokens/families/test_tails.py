"""Conversations of several turns: after each one the bridge is what the full render has there, whatever was sampled.

Unlike where a policy writes what the template would, nothing is asked of what stands before: so this holds for
templates that rewrite their history as well, where `keep_history` goes on.
"""

from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.protocols import Message
from agentkit.testing.alignment import Subject
from agentkit.tokens import Verdict
from tests.tokens.families.bench import Bench, bridged, renderer_of

odd = st.sampled_from([
    "", "ok", " ok", "\nok", "\n\nok", "ok\n", "ok\n\n\n", "ok ", "7", "12345", "\u0301e\u0301",
    "\U0001f469\u200d\U0001f469", "你好", "\u2581", "\U0010f000", "\U0010f001\U0010f000",
    '{"a": [1, "b"]}', "a\r\nb", "\tx", "</", "<", ">", "|", "\u00a0",
])  # fmt: skip
contents = st.lists(odd, max_size=3).map("".join) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
users = st.none() | st.sampled_from(["next", " next\n", "\n\nnext", "12", "é\u0301"])


@frozen
class Turn:
    """What the tools answer to a turn's calls, what a user says, whether it reasons, and what is sampled for it."""

    results: tuple[str, ...]
    user: str | None
    reasons: bool
    sampled: tuple[int, ...]
    stops: bool


def turns(most: int) -> st.SearchStrategy[list[Turn]]:
    """Turns with up to two calls; a user speaks where there are none."""
    ids = st.lists(st.integers(0, 150), max_size=5).map(tuple)
    one = st.builds(Turn, st.lists(contents, max_size=2).map(tuple), users, st.booleans(), ids, st.booleans())
    return st.lists(one, min_size=1, max_size=most)


def test_what_follows_a_turn_is_the_full_renders(bench: Bench) -> None:
    check(bench, bench.subject, keeps=False)


def test_what_follows_a_turn_is_the_full_renders_where_history_is_kept(bench: Bench) -> None:
    check(bench, bench.kept, keeps=True)


def check(bench: Bench, subject: Subject, *, keeps: bool) -> None:
    reached = [0]

    @settings(max_examples=max(8, settings.default.max_examples // 4))
    @given(turns(3), st.booleans())
    def holds(said: list[Turn], has_tools: bool) -> None:
        tools = bench.shown if has_tools else ()
        history = bench.opening()
        for number, turn in enumerate(said, 2):
            if any(text in content for content in turn.results for text in bench.control):
                return
            reasoning = f"thought {number}" if turn.reasons and subject.reasons else None
            action = bench.turn(number, len(turn.results), reasoning=reasoning)
            new = [bench.result(number, place, content) for place, content in enumerate(turn.results)]
            new += [Message("user", turn.user or "next")] if turn.user is not None or not turn.results else []
            truth = bench.truth(history, action, new, tools)
            if isinstance(truth, str):
                return
            sampled = [*turn.sampled, truth.stop] if turn.stops else [each for each in turn.sampled if each < 3]
            sampled = [*(each for each in sampled[:-1] if each not in bench.renderer.stop_ids), *sampled[-1:]]
            found = bridged(subject, action, new, tools, sampled)
            if isinstance(found, str):
                assert not all(cell.finding.is_exact for cell in renderer_of(subject).certificate.cells), found
                return
            if not keeps:
                assert truth.turn is not None, f"appended, but {truth.why}"
            is_closed = bool(sampled) and sampled[-1] in {*bench.renderer.stop_ids, truth.stop}
            expected = truth.tail if is_closed else [truth.stop, *truth.tail]
            assert len(found) == len(expected) if is_closed else len(found) >= len(expected)
            extra = found[: len(found) - len(expected)]
            assert found[len(extra) :] == expected
            assert not set(extra) & bench.renderer.stop_ids, "closed twice"
            reached[0] += 1
            history += [action, *new]

    holds()
    cells = renderer_of(subject).certificate.cells
    serves = any(cell.finding.is_exact or (keeps and cell.finding.verdict is Verdict.REWRITTEN) for cell in cells)
    assert bool(reached[0]) or not serves
