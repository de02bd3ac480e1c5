"""Rows of trajectories: what is in them, what counts, and where they are cut, against a token-by-token oracle."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from agentkit_verl.outputs import Row, RowLimits, anchor_of, rows_of
from agentkit_verl.rows import ActionSpan, KindSpan, RowInfo, VersionSpan
from agentkit_verl.settings import VerlSettings
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit import Agent, Budget, ExitReason, Observation, Outcome, OutcomePolicy, Score, Task, Trajectory, user
from agentkit.parsing import HermesParser
from agentkit.protocols import (
    Action,
    Blame,
    Chain,
    EmitTokens,
    Finish,
    FinishReason,
    Grade,
    GradeStatus,
    RolloutKey,
    Span,
    SpanKind,
    TokenChunk,
    TokenRequest,
    Turn,
)
from agentkit.testing import virtual_asyncio, virtual_trio
from agentkit.testing.strategies import trajectories
from agentkit.tokens import byte_chatml, chain_weights

INFO = RowInfo(task_id="t", session=0, score=0.75, counts={"turns": 2, "sampled": 9})
RENDERER = byte_chatml()
MOST = settings().max_examples
ROOMY = RowLimits(prompt_length=10_000, response_length=10_000)


class Policy:
    """Says as many letters as it is told to; some turns are cut, which leaves a turn that the policy did not close."""

    def __init__(self) -> None:
        self.renderer, self.parser = RENDERER, HermesParser()
        self.sampled = 0
        self.length, self.is_cut = 1, False

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        ids = [*b"a" * self.length] + ([] if self.is_cut else [self.renderer.tokenizer.control["<|im_end|>"]])
        for token_id in ids:
            emit(TokenChunk([token_id], [-1.0 - self.sampled], self.sampled // 4))
            self.sampled += 1
        await anyio.lowlevel.checkpoint()
        return Finish(FinishReason.LENGTH if self.is_cut else FinishReason.STOP)


OPS = st.one_of(
    st.tuples(st.just("sample"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("candidates"), st.integers(1, 3), st.integers(0, 2)),
    st.tuples(st.just("observe"), st.integers(1, 30)),
    st.tuples(st.just("rollback"), st.integers(1, 2)),
    st.tuples(st.just("mark")),
    st.tuples(st.just("return"), st.integers(0, 3)),
    st.tuples(st.just("compact"), st.integers(0, 4)),
    st.tuples(st.just("child"), st.sampled_from([Outcome.TRAIN, Outcome.MASK, Outcome.DROP])),
)


async def play(program: Sequence[tuple[Any, ...]], *, outcome: Outcome = Outcome.TRAIN) -> Trajectory:
    """The trajectory of a rollout that makes these moves."""
    policy = Policy()

    async def loop(rollout: Any) -> None:
        marks: list[Any] = []
        for name, *values in program:
            if name in ("sample", "candidates") and rollout.messages[-1].role == "assistant":
                rollout.observe("On.")
            if name == "sample":
                policy.length, policy.is_cut = values[0], values[1] and values[0] > 0
                await rollout.sample()
            elif name == "candidates":
                policy.length, policy.is_cut = 2, False
                actions = await rollout.candidates(values[0])
                rollout.take(actions[values[1] % len(actions)])
            elif name == "observe":
                rollout.observe("x" * values[0])
            elif name == "rollback" and rollout.turns and sum(m.role == "assistant" for m in rollout.messages) > 1:
                rollout.rollback(values[0])
            elif name == "mark":
                marks.append(rollout.bookmark())
            elif name == "return" and marks:
                rollout.back_to(marks[values[0] % len(marks)])
            elif name == "compact":
                rollout.rewrite([*rollout.messages[: values[0]], user("In short.")])
            elif name == "child":
                exits: Any = dict.fromkeys(ExitReason, values[0])
                helper = Agent(policy, name="helper", loop=_twice, outcomes=OutcomePolicy(exits=exits))
                await rollout.child(helper, "Help.")

    async def reward(trajectory: Trajectory, env: object) -> Score:
        tokens = {n: tuple(t / 8 for t in range(len(chain))) for n, chain in enumerate(trajectory.chains)}
        return Score(0.75, tuple(turn.index + 0.5 for turn in trajectory.turns), tokens)

    agent = Agent(
        policy,
        loop=loop,
        reward=reward,
        budget=Budget(max_turns=1000),
        outcomes=OutcomePolicy(exits=dict.fromkeys(ExitReason, outcome)),
    )
    trajectory = await agent.run(Task("t", "Go."))
    assert trajectory.exit_reason in (ExitReason.FINISHED, ExitReason.INTERNAL_ERROR), trajectory.error
    return trajectory


async def _twice(rollout: Any) -> None:
    await rollout.sample()
    rollout.rollback()
    await rollout.sample()


def origin(trajectory: Trajectory, number: int, position: int) -> SpanKind:
    """Where a token came from, looked up in the chain it was inherited from if need be."""
    chain = trajectory.chains[number]
    span = next(span for span in chain.spans if span.start <= position < span.stop)
    if span.kind is SpanKind.INHERITED:
        assert chain.parent is not None
        return origin(trajectory, chain.parent[0], position)
    return span.kind


def opening_of(trajectory: Trajectory, number: int) -> int:
    """The tokens before the first that the policy wrote, in this chain or in the one it was forked from."""
    length = len(trajectory.chains[number])
    kinds = (origin(trajectory, number, position) for position in range(length))
    return next((at for at, kind in enumerate(kinds) if kind is SpanKind.SAMPLED), length)


def check(trajectory: Trajectory, rows: Sequence[Row], limits: RowLimits, settings: VerlSettings) -> None:
    """Everything that must hold of the rows of a rollout."""
    trees = list(trajectory.walk())
    if trajectory.outcome not in (Outcome.TRAIN, Outcome.MASK):
        assert rows == ()
        return
    is_masked = trajectory.outcome is Outcome.MASK
    if is_masked and trajectory.grade is not None and trajectory.score is None:
        assert rows == ()
        return
    where = [(next(at for at, tree in enumerate(trees) if tree is row.trajectory), row.chain) for row in rows]
    assert len(set(where)) == len(where)

    expected, lost = [], 0
    for at, tree in enumerate(trees):
        for number, chain in enumerate(tree.chains):
            if not sum(chain.response_mask) or (at and (is_masked or tree.outcome is not Outcome.TRAIN)):
                continue
            opening = opening_of(tree, number)
            split = min(opening, limits.prompt_length)
            ends = [turn.stop for turn in tree.turns if turn.chain == number and turn.stop > turn.start]
            ends = [end for end in ends if end - split <= limits.response_length]
            if ends and not (opening > limits.prompt_length and settings.prompt_overflow == "drop"):
                expected.append((at, number, split, max(ends)))
                lost += sum(chain.response_mask[max(ends) :])
            else:
                lost += sum(chain.response_mask)
    if is_masked:
        assert len(rows) <= 1
        expected = [each for each in expected if each[:2] in where]
    assert sorted(where) == sorted(each[:2] for each in expected)

    by_place = {each[:2]: each[2:] for each in expected}
    all_weights = iter(chain_weights(trajectory, settings.weights))
    weights = {(at, number): next(all_weights) for at, tree in enumerate(trees) for number in range(len(tree.chains))}
    trained = 0
    for place, row in zip(where, rows, strict=True):
        chain = row.trajectory.chains[row.chain]
        split, stop = by_place[place]
        assert [*row.prompt_ids, *row.response_ids] == list(chain.ids[:stop])
        assert len(row.prompt_ids) == split <= limits.prompt_length
        assert len(row.response_ids) == stop - split <= limits.response_length
        assert list(row.logprobs) == list(chain.logprobs[split:stop])
        assert row.response_mask == row.trajectory.loss_mask(row.chain)[split:stop] if not is_masked else True
        assert not (is_masked and any(row.response_mask))
        trained += sum(row.response_mask)
        sampled = [at - split for at in range(stop) if chain.response_mask[at]]
        assert all(at >= 0 for at in sampled)
        spans = row.info.actions
        assert [at for span in spans for at in range(span.start, span.stop)] == sampled
        for span in spans:
            turn = row.trajectory.turns[span.turn]
            assert (turn.chain, turn.start, turn.stop) == (row.chain, span.start + split, span.stop + split)
            assert span.has_call == bool(turn.action.calls)
        known = [s for s in chain.spans if s.kind is SpanKind.SAMPLED and s.policy_version is not None]
        versions = {at - split: s.policy_version for s in known for at in range(s.start, min(s.stop, stop))}
        assert {at: v.version for v in row.info.versions for at in range(v.start, v.stop)} == versions
        assert row.info.weight == weights[place]
        assert row.info.agent == ("agent" if place[0] == 0 else f"agent.{place[0]}")
    if not is_masked:
        whole = sum(sum(c.response_mask) for t in trees if t.outcome is Outcome.TRAIN for c in t.chains)
        assert trained == whole - lost
        assert [row.info.counts["cut"] for row in rows] == [lost] * len(rows)
    assert [row.info.counts["trained"] for row in rows] == [trained] * len(rows)
    assert [(row.info.chain, row.info.chains) for row in rows] == [(n, len(rows)) for n in range(len(rows))]
    path = trajectory.path()
    if path and (0, path[-1].chain) in by_place and rows:
        assert where[-1] == (0, path[-1].chain)  # verl takes the session's score from there
    own = [place[0] == 0 for place in where]
    assert own == sorted(own)
    if settings.credit == "outcome":
        assert all(row.rewards is None for row in rows)
    elif rows and trajectory.score is not None:
        assert all(row.rewards is not None and len(row.rewards) == len(row.response_ids) for row in rows)
        total = sum(sum(row.rewards or ()) for row in rows)
        assert total == pytest.approx(trajectory.score, rel=1e-4, abs=1e-3)


LIMITS = st.builds(
    RowLimits, prompt_length=st.sampled_from([1, 20, 60, 10_000]), response_length=st.integers(1, 120) | st.just(10_000)
)
SETTINGS = st.builds(
    VerlSettings,
    credit=st.sampled_from(["outcome", "turn", "token"]),
    prompt_overflow=st.sampled_from(["move", "drop"]),
    weights=st.sampled_from(["session-balanced", "session-per-token", "per-chain", "per-token"]),
)


@pytest.mark.parametrize("clock", [virtual_asyncio, virtual_trio])
def test_rows_of_every_program_of_moves_are_what_the_oracle_says(clock: Callable[[], Any]) -> None:
    @settings(max_examples=MOST if clock is virtual_asyncio else 10)
    @given(
        st.lists(OPS, max_size=12),
        st.sampled_from([Outcome.TRAIN, Outcome.TRAIN, Outcome.TRAIN, Outcome.MASK, Outcome.DROP]),
        st.lists(st.tuples(LIMITS, SETTINGS), min_size=1, max_size=4),
    )
    def run(program: list[tuple[Any, ...]], outcome: Outcome, cases: list[tuple[RowLimits, VerlSettings]]) -> None:
        backend, options = clock()
        trajectory = anyio.run(lambda: play(program, outcome=outcome), backend=backend, backend_options=options)
        for limits, said in cases:
            info = evolve(INFO, score=trajectory.score)
            check(trajectory, rows_of(trajectory, limits=limits, settings=said, info=info), limits, said)

    run()


@settings(max_examples=10)  # making one takes long
@given(trajectories(children=0), LIMITS, SETTINGS)
def test_rows_of_any_well_formed_trajectory(trajectory: Trajectory, limits: RowLimits, said: VerlSettings) -> None:
    trajectory = evolve(trajectory, grade=Grade(GradeStatus.OK, Score(0.5)))
    check(trajectory, rows_of(trajectory, limits=limits, settings=said, info=INFO), limits, said)


# by hand, so that the oracle itself is held against numbers


def made(
    turns: Sequence[tuple[int, int]] = ((3, 5), (7, 10)),
    *,
    score: Score | None = None,
    outcome: Outcome = Outcome.TRAIN,
    calls: Sequence[int] = (),
) -> Trajectory:
    """Tokens 100, 101, ...: three of a prompt, then turns with two tokens of observation between them."""
    length = turns[-1][1] + 2
    mask = [int(any(start <= at < stop for start, stop in turns)) for at in range(length)]
    spans, at = [], 0
    for number, (start, stop) in enumerate(turns):
        spans.append(Span(at, start, SpanKind.OBSERVATION if at else SpanKind.PROMPT, number - 1))
        spans.append(Span(start, stop, SpanKind.SAMPLED, number, 7 + number))
        at = stop
    spans.append(Span(at, length, SpanKind.OBSERVATION, len(turns) - 1))
    chain = Chain.of(range(100, 100 + length), mask, [-float(m) for m in mask], tuple(spans))
    return Trajectory(
        key=RolloutKey("t", 0),
        prompt=(user("Go."),),
        chains=(chain,),
        turns=tuple(
            Turn(n, Action("a"), (Observation("seen"),), 0, start, stop) for n, (start, stop) in enumerate(turns)
        ),
        exit_reason=ExitReason.FINISHED,
        grade=Grade(GradeStatus.OK, score or Score(0.75)),
        outcome=outcome,
    )


def one(trajectory: Trajectory, prompt: int = 8, response: int = 8, kinds: Any = None, **settings: Any) -> Row:
    limits = RowLimits(prompt_length=prompt, response_length=response)
    (row,) = rows_of(trajectory, limits=limits, settings=VerlSettings(**settings), info=INFO, kinds=kinds)
    return row


def test_a_row_ends_with_its_last_turn() -> None:
    row = one(made())
    assert list(row.prompt_ids) == [100, 101, 102]
    assert list(row.response_ids) == [103, 104, 105, 106, 107, 108, 109]
    assert row.response_mask == bytes([1, 1, 0, 0, 1, 1, 1])
    anchors = [action.anchor for action in row.info.actions]
    assert len(set(anchors)) == 2
    assert row.info.actions == (ActionSpan(0, 0, 2, 0.0, anchors[0]), ActionSpan(1, 4, 7, 0.0, anchors[1]))
    assert row.info.versions == (VersionSpan(0, 2, 7), VersionSpan(4, 7, 8))
    assert (row.score, row.rewards, row.num_turns) == (0.75, None, 5)
    assert row.info.counts == {"turns": 2, "sampled": 9, "trained": 5, "cut": 0}


@pytest.mark.parametrize(("response", "kept"), [(7, 2), (6, 1), (2, 1)])
def test_turns_that_do_not_fit_are_left_out_whole(response: int, kept: int) -> None:
    row = one(made(), response=response)
    assert len(row.info.actions) == kept
    assert len(row.response_ids) == (7 if kept == 2 else 2)
    assert row.info.counts["cut"] == (0 if kept == 2 else 3)


def test_no_row_is_left_where_not_even_a_turn_fits() -> None:
    limits = RowLimits(prompt_length=8, response_length=1)
    assert rows_of(made(), limits=limits, settings=VerlSettings(), info=INFO) == ()


def test_what_an_opening_has_beyond_its_length_is_the_responses() -> None:
    row = one(made(), prompt=1)
    assert (list(row.prompt_ids), list(row.response_ids)) == ([100], [101, 102, 103, 104])  # the second turn is out
    assert row.response_mask == bytes([0, 0, 1, 1])
    assert [(action.start, action.stop) for action in row.info.actions] == [(2, 4)]
    limits = RowLimits(prompt_length=1, response_length=100)
    assert rows_of(made(), limits=limits, settings=VerlSettings(prompt_overflow="drop"), info=INFO) == ()


def test_a_masked_rollout_has_one_row_that_no_loss_counts() -> None:
    row = one(made(outcome=Outcome.MASK))
    assert row.response_mask == bytes(7)
    assert (row.score, row.info.weight, row.info.counts["trained"]) == (0.75, 0.0, 0)
    assert len(row.info.actions) == 2  # what was sampled, all the same


@pytest.mark.parametrize("status", [GradeStatus.SKIPPED, GradeStatus.ERROR, GradeStatus.TIMEOUT])
def test_a_masked_rollout_without_a_score_has_no_row_to_be_scored_by_others(status: GradeStatus) -> None:
    masked = evolve(made(outcome=Outcome.MASK), grade=Grade(status, blame=Blame.INFRASTRUCTURE))
    assert rows_of(masked, limits=ROOMY, settings=VerlSettings(), info=INFO) == ()
    unjudged = evolve(masked, grade=None)  # an agent without a reward: verl's own says what it is worth
    assert len(rows_of(unjudged, limits=ROOMY, settings=VerlSettings(), info=INFO)) == 1


@pytest.mark.parametrize("outcome", [Outcome.DROP, Outcome.REPLACE, Outcome.RETRY])
def test_nothing_of_a_dropped_rollout_is_left(outcome: Outcome) -> None:
    assert rows_of(made(outcome=outcome), limits=ROOMY, settings=VerlSettings(), info=INFO) == ()


def test_rewards_of_turns_and_tokens_stand_on_their_tokens_and_sum_to_the_score() -> None:
    score = Score(0.75, (0.25, 0.125), {0: tuple(float(t) for t in range(12))})
    row = one(made(score=score), credit="turn")
    assert list(row.rewards or ()) == [0, 0.25, 0, 0, 0, 0, 0.125 + 0.375]
    assert [action.reward for action in row.info.actions] == [0.25, 0.125]
    row = one(made(score=score), credit="token")
    assert list(row.rewards or ())[:6] == [3, 4, 5, 6, 7, 8]
    assert sum(row.rewards or ()) == 0.75
    assert one(made(score=score)).rewards is None


def test_kinds_stand_where_the_tokens_of_their_turns_are() -> None:
    def kinds(trajectory: Trajectory, turn: Turn) -> Sequence[KindSpan]:
        return (KindSpan(0, 1, "reasoning"), KindSpan(1, turn.stop - turn.start, "text"))

    row = one(made(), kinds=kinds)
    assert row.info.kinds == (
        *(KindSpan(0, 1, "reasoning"), KindSpan(1, 2, "text")),
        *(KindSpan(4, 5, "reasoning"), KindSpan(5, 7, "text")),
    )
    assert len(one(made(), response=6, kinds=kinds).info.kinds) == 2


def seen(*contents: str, metadata: Mapping[str, Any] | None = None) -> str:
    """The anchor of a turn that follows these observations."""
    trajectory = made()
    first = evolve(trajectory.turns[0], observations=tuple(Observation(c, metadata=metadata or {}) for c in contents))
    trajectory = evolve(trajectory, turns=(first, trajectory.turns[1]))
    return anchor_of(trajectory, trajectory.turns[1])


def test_anchors_are_equal_where_the_policy_read_the_same() -> None:
    assert seen("a") == seen("a")
    assert len({seen("a"), seen("b"), seen("a", "b"), seen("ab"), seen("")}) == 5
    assert seen("12:00", metadata={"state": 3}) == seen("12:01", metadata={"state": 3})
    assert seen("12:00", metadata={"state": 3}) != seen("12:00", metadata={"state": 4})
    told = evolve(made().turns[1], heard=(user("Hurry."),))
    trajectory = made()
    assert anchor_of(trajectory, told) != anchor_of(trajectory, trajectory.turns[1])


async def test_a_sub_agent_that_is_not_to_be_trained_on_leaves_no_row() -> None:
    program = [("sample", 3, False), ("child", Outcome.DROP), ("child", Outcome.TRAIN)]
    rows = rows_of(await play(program), limits=ROOMY, settings=VerlSettings(), info=INFO)
    assert [row.info.agent for row in rows] == ["agent.2", "agent.2", "agent"]
    assert [sum(row.response_mask) > 0 for row in rows] == [True] * 3


async def test_the_conversation_that_was_kept_is_the_last_row() -> None:
    program = [("candidates", 3, 0)]
    trajectory = await play(program)
    rows = rows_of(trajectory, limits=ROOMY, settings=VerlSettings(), info=INFO)
    assert [row.chain for row in rows] == [1, 2, 0]
    assert trajectory.path()[-1].chain == 0
