"""How much each trained token counts in the loss, where a rollout leaves more than one chain.

Response masks are facts: what was sampled. What it should count for is a choice, and more than a matter of taste once a
rollout branches: with the same weight for every row of a batch, a rollout that was compacted twice, or sampled four
candidates, pulls the policy as often as it has chains, for one reward. With the advantage `A` of a session and the loss
`l(c, t)` of token t of its chain c, the loss of a batch is the mean over its sessions of

    sum over c of weight[c] * sum over t of loss_mask[c][t] * A * l(c, t)
"""

from typing import Literal, TypeAlias, get_args

from agentkit.errors import ConfigError
from agentkit.protocols.trajectory import Trajectory

WeightScheme: TypeAlias = Literal["session-balanced", "session-per-token", "per-chain", "per-token"]
"""`session-balanced`: every session counts 1, shared by its chains equally, and by the tokens of each equally: the mean
over sessions of the mean over chains of the mean over tokens (as proposed in verl-project/uni-agent#185). No session
ever weighs more than one that did not branch.

`session-per-token`: every session counts 1, shared by its tokens equally. A rollout that was cut into chains weighs
token by token what it would in one chain.

`per-chain`: every chain counts 1. A session weighs as much as it has chains.

`per-token`: every token counts 1. A session weighs as much as it has tokens.
"""

SCHEMES: tuple[WeightScheme, ...] = get_args(WeightScheme)


def chain_weights(trajectory: Trajectory, scheme: WeightScheme = "session-balanced") -> tuple[float, ...]:
    """The weight of each trained token, chain by chain, in the order of `walk()`: the chains of sub-agents follow.

    A session is a trajectory with its sub-agents. Trained are the tokens with loss mask 1; a chain without any has
    weight 0 and is not counted, nor is a sub-agent whose outcome is not `train`.

    Raises:
        ConfigError: there is no such scheme.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"scheme must be one of {', '.join(SCHEMES)}, found {scheme!r}")
    trained = [each.loss_mask(number).count(1) for each in trajectory.walk() for number in range(len(each.chains))]
    chains, tokens = sum(1 for count in trained if count), sum(trained)
    shares = {"session-balanced": chains, "session-per-token": tokens, "per-chain": 1, "per-token": 1}
    by_token = scheme in ("session-per-token", "per-token")
    return tuple(1.0 / (shares[scheme] * (1 if by_token else count)) if count else 0.0 for count in trained)
