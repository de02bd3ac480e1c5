"""Loss weights: sums that are worked out token by token."""

from collections.abc import Sequence
from itertools import islice

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.protocols import Chain, ExitReason, Outcome, RolloutKey, Trajectory
from agentkit.tokens import chain_weights
from agentkit.tokens.weights import SCHEMES

KEY = RolloutKey("t", 0)


def chain(mask: Sequence[int]) -> Chain:
    return Chain.of(range(len(mask)), mask, [-1.0 * bit for bit in mask])


@st.composite
def sessions(draw: st.DrawFn, depth: int = 2) -> Trajectory:
    masks = draw(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=3))
    children = draw(st.lists(sessions(depth=depth - 1), max_size=2)) if depth else []
    outcome = draw(st.sampled_from([Outcome.TRAIN, Outcome.TRAIN, Outcome.MASK]))
    return Trajectory(
        KEY, (), tuple(map(chain, masks)), (), ExitReason.FINISHED, outcome=outcome, children=tuple(children)
    )


def by_token(session: Trajectory, weights: Sequence[float]) -> list[list[float]]:
    """The weights of the trained tokens of each chain."""
    rest = iter(weights)
    return [
        [weight for bit in each.loss_mask(number) if bit]
        for each in session.walk()
        for number, weight in enumerate(islice(rest, len(each.chains)))
    ]


@given(sessions())
def test_a_session_counts_one_however_it_branched(session: Trajectory) -> None:
    balanced = by_token(session, chain_weights(session))
    trained = [weights for weights in balanced if weights]
    if trained:
        assert sum(map(sum, trained)) == pytest.approx(1)
        assert {round(sum(weights) * len(trained), 9) for weights in trained} == {1}
    tokens = [
        weight for weights in by_token(session, chain_weights(session, "session-per-token")) for weight in weights
    ]
    assert len(set(tokens)) <= 1
    assert sum(tokens) == pytest.approx(1 if trained else 0)


@given(sessions())
def test_chains_and_tokens_count_one_each_where_that_is_asked(session: Trajectory) -> None:
    chains = by_token(session, chain_weights(session, "per-chain"))
    assert all(sum(weights) == pytest.approx(1) for weights in chains if weights)
    assert {weight for weights in by_token(session, chain_weights(session, "per-token")) for weight in weights} <= {1.0}


@given(sessions(), st.sampled_from(SCHEMES))
def test_what_is_not_trained_weighs_nothing(session: Trajectory, scheme: str) -> None:
    weights = chain_weights(session, scheme)  # type: ignore[arg-type]
    masks = [each.loss_mask(number) for each in session.walk() for number in range(len(each.chains))]
    assert len(weights) == len(masks)
    assert all((weight > 0) == any(mask) for weight, mask in zip(weights, masks, strict=True))


@given(st.lists(st.lists(st.just(1), min_size=1, max_size=5), min_size=1, max_size=4))
def test_branching_never_weighs_more(masks: list[list[int]]) -> None:
    branched = Trajectory(KEY, (), tuple(map(chain, masks)), (), ExitReason.FINISHED)
    straight = evolve(branched, chains=(chain([bit for mask in masks for bit in mask]),))
    for scheme in ("session-balanced", "session-per-token"):
        total = [sum(map(sum, by_token(each, chain_weights(each, scheme)))) for each in (branched, straight)]
        assert total[0] == pytest.approx(total[1])
    assert sum(map(sum, by_token(branched, chain_weights(branched, "per-chain")))) == pytest.approx(len(masks))


def test_the_worked_example() -> None:
    """Two chains of 1 and 3 sampled tokens, the second behind a prefix that it shares."""
    session = Trajectory(KEY, (), (chain([0, 1]), chain([0, 0, 1, 1, 1])), (), ExitReason.FINISHED)
    assert chain_weights(session) == (1 / 2, 1 / 6)
    assert chain_weights(session, "session-per-token") == (1 / 4, 1 / 4)
    assert chain_weights(session, "per-chain") == (1, 1 / 3)
    assert chain_weights(session, "per-token") == (1, 1)


def test_another_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="session-balanced, session-per-token, per-chain, per-token, found 'even'"):
        chain_weights(Trajectory(KEY, (), (), (), ExitReason.FINISHED), "even")  # type: ignore[arg-type]
