"""Weights of tokens: what the loss that verl makes of them means, and that cutting a rollout changes no gradient."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from agentkit_verl.credit.context import BatchRows, batch_rows, current_rows
from agentkit_verl.credit.settings import CreditSettings
from agentkit_verl.credit.weights import token_weights
from agentkit_verl.kinds import KINDS
from agentkit_verl.rows import KindSpan, RowInfo
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn
from verl.workers.config import ActorConfig

from agentkit.errors import ConfigError, InvariantError

SCHEMES = ("session-balanced", "session-per-token")
schemes = pytest.mark.parametrize("scheme", SCHEMES)
BY_SESSION = ("seq-mean-token-sum", "seq-mean-token-mean")


def rows_of(batch: Any) -> BatchRows:
    return BatchRows(*batch.rows_args())


def shares(batch: Any, scheme: str) -> np.ndarray:
    """What `agentkit.tokens.chain_weights` says, of the rows and their trained tokens."""
    counts: dict[str, list[int]] = defaultdict(list)
    for row in batch.rows:
        counts[row.session].append(sum(row.mask))
    values = np.zeros((len(batch.rows), batch.width))
    for number, row in enumerate(batch.rows):
        trained = sum(row.mask)
        chains = sum(1 for count in counts[row.session] if count)
        for t, one in enumerate(row.mask):
            if one:
                balanced = 1 / (chains * trained)
                values[number, t] = balanced if scheme == "session-balanced" else 1 / sum(counts[row.session])
    return values


@schemes
@given(data=st.data(), mode=st.sampled_from([*BY_SESSION, "seq-mean-token-sum-norm"]))
def test_loss_is_the_mean_over_sessions(batches: Any, scheme: Any, data: st.DataObject, mode: str) -> None:
    """For any way to cut the batch into mini-batches of the size that verl divides by."""
    batch = data.draw(batches())
    _, mask, _ = batch.tensors()
    weights = token_weights(rows_of(batch), mask, CreditSettings(weights=scheme), loss_agg_mode=mode)
    assert weights.dtype == torch.float32
    losses = torch.tensor(np.random.default_rng(0).normal(size=mask.shape))
    of_session: dict[str, float] = defaultdict(float)
    for number, (row, of_row) in enumerate(zip(batch.rows, shares(batch, scheme), strict=True)):
        if sum(row.mask):
            of_session[row.session] += float(of_row @ losses[number].numpy())
        else:
            assert not weights[number].any()
    size = data.draw(st.sampled_from([n for n in range(1, len(batch.rows) + 1) if len(batch.rows) % n == 0]))
    found = [
        agg_loss(losses[at : at + size] * weights[at : at + size], mask[at : at + size], mode, global_batch_size=size)
        for at in range(0, len(batch.rows), size)
    ]
    norm = mask.shape[-1] if mode.endswith("norm") else 1
    wanted = sum(of_session.values()) / max(len(of_session), 1) / norm
    assert float(sum(found)) / len(found) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@schemes
@given(data=st.data())
def test_by_tokens_the_shares_sum_to_the_number_of_tokens(batches: Any, scheme: Any, data: st.DataObject) -> None:
    batch = data.draw(batches())
    _, mask, _ = batch.tensors()
    trained = int(mask.sum())
    weights = token_weights(rows_of(batch), mask, CreditSettings(weights=scheme), loss_agg_mode="token-mean")
    assert torch.equal(weights, token_weights(
        rows_of(batch), mask, CreditSettings(weights=scheme), loss_agg_mode="token-sum"))  # fmt: skip
    assert float(weights.sum()) == pytest.approx(trained, rel=1e-5)
    assert not weights[mask == 0].any()
    if trained:  # one mini-batch: the mean over sessions again
        losses = torch.tensor(np.random.default_rng(1).normal(size=mask.shape))
        sessions = len({row.session for row in batch.rows if sum(row.mask)})
        wanted = float((shares(batch, scheme) * losses.numpy()).sum()) / sessions
        found = float(agg_loss(losses * weights, mask, "token-mean"))
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@given(data=st.data())
def test_kinds_weigh_as_set_and_nothing_else_changes(batches: Any, data: st.DataObject) -> None:
    batch = data.draw(batches())
    _, mask, _ = batch.tensors()
    kinds: list[list[str]] = []
    infos: list[RowInfo | None] = []
    for row in batch.rows:
        of_token = data.draw(
            st.lists(st.sampled_from([*KINDS, ""]), min_size=len(row.mask), max_size=len(row.mask)), label="kinds"
        )
        spans = tuple(KindSpan(t, t + 1, kind) for t, kind in enumerate(of_token) if kind)
        kinds.append(of_token if row.info is not None else [""] * len(row.mask))
        infos.append(None if row.info is None else RowInfo(task_id="t", session=0, kinds=spans))
    rows = BatchRows([row.key for row in batch.rows], infos)
    scheme = data.draw(st.sampled_from(["none", *SCHEMES]))
    given_weights = {"reasoning": 0.5, "call": 0.0, "text": 2.0}
    args: Any = {"loss_agg_mode": "seq-mean-token-sum"}
    plain = token_weights(rows, mask, CreditSettings(weights=scheme), **args)
    weighted = token_weights(rows, mask, CreditSettings(weights=scheme, kind_weights=given_weights), **args)
    for number, of_token in enumerate(kinds):
        for t, kind in enumerate(of_token):
            assert weighted[number, t] == pytest.approx(plain[number, t] * given_weights.get(kind, 1.0))
    if scheme == "none":
        assert torch.equal(plain, mask.float())


def gradient(masks: list[list[int]], tokens: list[list[int]], keys: list[str], scheme: Any, mode: str) -> torch.Tensor:
    """That of verl's own loss by the log-probability of each of nine tokens, wherever they stand."""
    policy = torch.zeros(9, dtype=torch.float64, requires_grad=True)
    log_prob = policy[torch.tensor(tokens)]
    mask = torch.tensor(masks)
    infos = [RowInfo(task_id="t", session=0) for _ in keys]
    weights = token_weights(BatchRows(keys, infos), mask, CreditSettings(weights=scheme), loss_agg_mode=mode)
    # One mini-batch, whatever number of rows it has: what verl's trainer divides by is its size.
    sizes = {"global_batch_size": len(keys), "batch_num_tokens": int(mask.sum()), "dp_size": 1}
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, global_batch_info=sizes)
    advantages = torch.tensor([[0.7] if key.startswith("u_0") else [-1.3] for key in keys]) * mask
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=log_prob.detach(), log_prob=log_prob, advantages=advantages * weights,
        response_mask=mask.bool(), loss_agg_mode=mode, config=config,
    )  # fmt: skip
    loss.backward()
    assert policy.grad is not None
    return policy.grad


@pytest.mark.parametrize("mode", [*BY_SESSION, "token-mean"])
@pytest.mark.parametrize(
    ("scheme", "cut"),
    [
        ("session-per-token", [[1, 2, 3], [4], [5, 6]]),
        ("session-per-token", [[1, 2, 3, 4, 5], [6]]),
        ("session-balanced", [[1, 2], [3, 4], [5, 6]]),
        ("session-balanced", [[1], [2], [3], [4], [5], [6]]),
    ],
)
def test_a_rollout_in_chains_pulls_as_one_in_one(scheme: str, cut: list[list[int]], mode: str) -> None:
    """Tokens 1 to 6 are a session, cut or not, 7 and 8 are another, and 0 is context."""
    whole = gradient([[1] * 6, [1, 1, 0, 0, 0, 0]], [[1, 2, 3, 4, 5, 6], [7, 8, 0, 0, 0, 0]], ["u_0_0", "u_1_0"],
                     scheme, mode)  # fmt: skip
    chains = [*cut, [7, 8]]
    masks = [[0] + [1] * len(chain) + [0] * (6 - len(chain)) for chain in chains]
    tokens = [[0, *chain, *[0] * (6 - len(chain))] for chain in chains]
    keys = [f"u_0_{n}" for n in range(len(cut))] + ["u_1_0"]
    in_chains = gradient(masks, tokens, keys, scheme, mode)
    torch.testing.assert_close(in_chains, whole, rtol=1e-6, atol=1e-9)
    assert whole[1:].abs().min() > 0
    padded = gradient([*masks, [0] * 7], [*tokens, [0] * 7], [*keys, "pad_0_0"], scheme, mode)
    torch.testing.assert_close(padded, whole, rtol=1e-6, atol=1e-9)


def test_without_weights_a_rollout_pulls_as_often_as_it_has_chains() -> None:
    """What the schemes are for: verl's own mean over rows, for one reward in three chains."""
    keys = ["u_0_0", "u_0_1", "u_0_2", "u_1_0"]
    found = gradient([[1]] * 4, [[1], [2], [3], [7]], keys, "none", "seq-mean-token-sum")
    weighted = gradient([[1]] * 4, [[1], [2], [3], [7]], keys, "session-balanced", "seq-mean-token-sum")
    assert float(found[1:4].sum() / found[7]) == pytest.approx(3 * 0.7 / -1.3)
    assert float(weighted[1:4].sum() / weighted[7]) == pytest.approx(0.7 / -1.3)


def test_nothing_trained_weighs_nothing() -> None:
    rows = BatchRows(["u_0_0", "pad_0_0"], [RowInfo(task_id="t", session=0), None])
    for scheme in SCHEMES:
        for mode in (*BY_SESSION, "token-mean"):
            weights = token_weights(rows, torch.zeros(2, 3), CreditSettings(weights=scheme), loss_agg_mode=mode)
            assert weights.tolist() == [[0.0] * 3] * 2


def test_what_cannot_be_weighed_is_named() -> None:
    rows = BatchRows(["u_0_0"], [RowInfo(task_id="t", session=0)])
    with pytest.raises(ConfigError, match="no weights are known for loss_agg_mode='median'"):
        token_weights(rows, torch.ones(1, 2), CreditSettings(weights="session-balanced"), loss_agg_mode="median")
    with pytest.raises(ConfigError, match="has 2 rows, but 1 rows were set"):
        token_weights(rows, torch.ones(2, 2), CreditSettings(), loss_agg_mode="token-mean")


def test_rows_are_there_within_and_gone_after() -> None:
    assert current_rows() is None
    with batch_rows(["a_b_0_1"], [None]) as rows:
        assert current_rows() is rows
        assert (rows.sessions(), rows.chains()) == (("a_b_0",), (1,))
        with batch_rows([], []):
            assert current_rows() == BatchRows([], [])
        assert current_rows() is rows
    assert current_rows() is None
    with pytest.raises(InvariantError, match="1 keys for 0 rows"), batch_rows(["u_0_0"], []):
        pass
    with pytest.raises(ConfigError, match="must be '<uid>_<session>_<chain>', found 'u'"), batch_rows(["u"], [None]):
        pass
