"""How much each trained token of a batch counts, as a factor for its advantage.

verl's clipped losses are positively homogeneous in the advantage (PPO's min and max, and the dual clip, scale with it),
so multiplying the advantage of a token by w multiplies its loss and its gradient by w exactly.
"""

# pyright: basic, reportMissingImports=false
# torch is not in the environment that this is type-checked in.

from collections import defaultdict

import torch

from agentkit.errors import ConfigError
from agentkit_verl.credit.context import BatchRows
from agentkit_verl.credit.settings import CreditSettings

_BY_ROWS = ("seq-mean-token-sum", "seq-mean-token-sum-norm")
_BY_TOKENS = ("token-mean", "token-sum")


def token_weights(
    rows: BatchRows, response_mask: torch.Tensor, settings: CreditSettings, *, loss_agg_mode: str
) -> torch.Tensor:
    """The weight of each token: that of its chain times that of its kind, 0 where `response_mask` is 0.

    `rows` and `response_mask` are those of the whole batch, padding included. With `settings.weights` other than
    `none`, let s(c, t) be the share of token t of chain c in its session (see `agentkit.tokens.chain_weights`), whose
    shares sum to 1, and l(c, t) the loss of a token for its advantage alone. Under each `loss_agg_mode` of verl the
    mean of the losses of the batch's mini-batches is then

        mean over sessions of sum over c, t of s(c, t) * kind_weight(c, t) * l(c, t)

    over sessions with a trained token. That is exact for `seq-mean-token-sum` and `seq-mean-token-mean`, and for
    `seq-mean-token-sum-norm` but for verl's constant. For `token-mean`, where verl divides each mini-batch by its own
    number of tokens, it is exact where the batch is one mini-batch; shares are scaled so that they sum to the number of
    trained tokens. `token-sum` has the same weights, and so this times that number.

    Weights of kinds are not rescaled: 0.5 halves the gradient of a token, whatever the others are.

    Raises:
        ConfigError: the rows are not those of the mask, or verl has no such `loss_agg_mode`.
    """
    if len(rows.keys) != response_mask.shape[0]:
        raise ConfigError(f"the batch has {response_mask.shape[0]} rows, but {len(rows.keys)} rows were set for it")
    mask = response_mask.to(torch.float64)
    weights = mask.clone()
    if settings.weights != "none":
        weights *= _shares(rows, mask, by_token=settings.weights == "session-per-token")
        weights *= _scale(rows, mask, loss_agg_mode)
    if settings.kind_weights:
        weights *= _kind_weights(rows, mask, settings)
    return weights.to(torch.float32)


def _shares(rows: BatchRows, mask: torch.Tensor, *, by_token: bool) -> torch.Tensor:
    """The share of each trained token of each row in its session, as a column."""
    trained = mask.sum(dim=-1)
    of_session: dict[str, float] = defaultdict(float)
    counts = trained.tolist()
    for session, count in zip(rows.sessions(), counts, strict=True):
        of_session[session] += count if by_token else float(count > 0)
    whole = mask.new_tensor([of_session[session] for session in rows.sessions()])
    shares = whole.clamp(min=1.0).reciprocal()
    return (shares if by_token else shares / trained.clamp(min=1.0)).unsqueeze(-1)


def _scale(rows: BatchRows, mask: torch.Tensor, loss_agg_mode: str) -> torch.Tensor | float:
    """What turns the sum over a batch, as verl divides it, into the mean over its sessions."""
    trained = mask.sum(dim=-1)
    is_trained = (trained > 0).tolist()
    sessions = len({name for name, counts in zip(rows.sessions(), is_trained, strict=True) if counts})
    if loss_agg_mode in _BY_TOKENS:
        return float(trained.sum()) / max(sessions, 1)
    by_session = mask.shape[0] / max(sessions, 1)
    if loss_agg_mode in _BY_ROWS:
        return by_session
    if loss_agg_mode == "seq-mean-token-mean":
        return trained.unsqueeze(-1) * by_session
    raise ConfigError(f"no weights are known for loss_agg_mode={loss_agg_mode!r}")


def _kind_weights(rows: BatchRows, mask: torch.Tensor, settings: CreditSettings) -> torch.Tensor:
    """The weight of the kind of each token; 1 where nothing says of which kind it is."""
    weights = torch.ones_like(mask)
    for row, info in enumerate(rows.infos):
        for span in info.kinds if info is not None else ():
            weights[row, span.start : span.stop] = settings.kind_weights.get(span.kind, 1.0)
    return weights
