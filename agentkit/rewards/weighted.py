"""Several rewards as one."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from agentkit.errors import ConfigError
from agentkit.protocols.reward import Reward
from agentkit.protocols.trajectory import Score, Trajectory
from agentkit.rewards.scores import as_score

EnvT = TypeVar("EnvT")


def weighted(parts: Mapping[str, tuple[Reward[EnvT], float]]) -> Reward[EnvT]:
    """The weighted sum of `{name: (reward, weight)}`, one after another in the order given, as they share the env.

    Its metrics are each part's value under the part's name, and each part's own metrics under `name/metric`. Scores of
    turns and tokens are summed likewise; a part that has none adds nothing to them.

    Raises:
        ConfigError: there are no parts, or a weight is not finite.
    """
    if not parts:
        raise ConfigError("weighted needs at least one reward, found none")
    for name, (_, weight) in parts.items():
        if not math.isfinite(weight):
            raise ConfigError(f"the weight of reward {name!r} must be finite, found {weight!r}")
    chosen = dict(parts)

    async def reward(trajectory: Trajectory, env: EnvT, /) -> Score:
        scores = {name: as_score(await part(trajectory, env)) for name, (part, _) in chosen.items()}
        return _sum(scores, {name: weight for name, (_, weight) in chosen.items()})

    return reward


def _sum(scores: Mapping[str, Score], weights: Mapping[str, float]) -> Score:
    metrics: dict[str, float] = {}
    turns: tuple[float, ...] | None = None
    tokens: dict[int, tuple[float, ...]] = {}
    for name, score in scores.items():
        metrics[name] = score.value
        metrics |= {f"{name}/{metric}": number for metric, number in score.metrics.items()}
        if score.turns is not None:
            turns = _add(turns, score.turns, weights[name], f"turns of reward {name!r}")
        for chain, row in (score.tokens or {}).items():
            tokens[chain] = _add(tokens.get(chain), row, weights[name], f"tokens of reward {name!r}, chain {chain}")
    value = math.fsum(weights[name] * score.value for name, score in scores.items())
    return as_score(Score(value, turns, tokens or None, metrics))


def _add(total: Sequence[float] | None, row: Sequence[float], weight: float, where: str) -> tuple[float, ...]:
    if total is None:
        return tuple(weight * number for number in row)
    if len(total) != len(row):
        raise ValueError(f"{where} must be {len(total)} numbers as those of the rewards before, found {len(row)}")
    return tuple(before + weight * number for before, number in zip(total, row, strict=True))
