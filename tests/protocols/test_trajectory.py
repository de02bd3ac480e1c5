"""What a trajectory says of its tokens, and how short it prints."""

import pytest

from agentkit import ExitReason, Outcome
from agentkit.errors import InvariantError
from agentkit.protocols import Chain, Grade, GradeStatus, RolloutKey, Score, Span, SpanKind, Trajectory


def chain(*versions: int | None) -> Chain:
    """One prompt token, then one sampled token for each version."""
    n = len(versions) + 1
    spans = (
        Span(0, 1, SpanKind.PROMPT, policy_version=99),
        *(Span(at, at + 1, SpanKind.SAMPLED, 0, version) for at, version in enumerate(versions, 1)),
    )
    return Chain(bytes(4 * n), b"\x00" + b"\x01" * (n - 1), bytes(4 * n), spans)


def sealed(*chains: Chain, **fields: object) -> Trajectory:
    return Trajectory(RolloutKey("t", 2), (), chains, (), ExitReason.FINISHED, **fields)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.RETRY])
def test_only_what_is_trained_on_has_a_loss(outcome) -> None:
    trajectory = sealed(chain(1, 1), outcome=outcome)
    assert trajectory.loss_mask(0) == (b"\x00\x01\x01" if outcome is Outcome.TRAIN else b"\x00\x00\x00")
    assert trajectory.chains[0].mask_bytes == b"\x00\x01\x01", "the response mask itself stands"


@pytest.mark.parametrize(
    ("versions", "span"),
    [([[3, 5], [4]], (3, 5)), ([[None, 7]], (7, 7)), ([[None]], None), ([[]], None), ([], None), ([[0]], (0, 0))],
)
def test_policy_versions_are_those_that_sampled(versions, span) -> None:
    assert sealed(*(chain(*each) for each in versions)).policy_versions() == span


def test_a_trajectory_prints_short_whatever_it_holds() -> None:
    trajectory = sealed(chain(*range(1000)), grade=Grade(GradeStatus.OK, Score(0.5)), error="x" * 1000)
    assert repr(trajectory) == "<Trajectory t#2: finished, 0 turns, 1001 tokens, score 0.5>"


def test_a_family_is_walked_depth_first() -> None:
    child, grandchild = sealed(error="child"), sealed(error="grandchild")
    family = sealed(children=(sealed(error="first", children=(grandchild,)), child), error="parent")
    assert [each.error for each in family.walk()] == ["parent", "first", "grandchild", "child"]


@pytest.mark.parametrize("lengths", [(4, 2, 4), (4, 1, 8), (8, 1, 4), (3, 1, 4)])
def test_a_chain_whose_columns_differ_in_length_is_never_made(lengths) -> None:
    with pytest.raises(InvariantError, match=r"chain has \d token_ids, \d response_mask and \d logprobs entries"):
        Chain(*(bytes(length) for length in lengths))
