"""Advantage estimators, as verl calls them: rewards, masks and group ids in, advantages and returns out.

Shapes are (rows, response tokens). Numbers are computed once for each session or turn in double precision, and then
spread over its trained tokens. What all share:

- A session counts once, however many chains it left. Masked rows stay in the baseline. Padding is in none, and 0.
- A mean over one number leaves nothing to compare, so what stands alone gets 0, where verl's GRPO gives its raw reward.
- Spread is the sample standard deviation (by n - 1), as in verl; `algorithm.norm_adv_by_std_in_grpo=False` leaves it
  out.
"""

# pyright: basic, reportMissingImports=false
# torch is not in the environment that this is type-checked in.

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from agentkit.errors import ConfigError
from agentkit_verl.credit.context import BatchRows, current_rows
from agentkit_verl.credit.settings import CreditSettings
from agentkit_verl.credit.turns import Rewards, returns_of, sessions_of

_EPSILON = 1e-6
_TurnAt: TypeAlias = tuple[int, int]
"""Which session of the batch, and which of its turns."""
_Key = TypeVar("_Key", bound=Hashable)


def grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outcome advantages by session: A_i = (R_i - mean of the group's R) / (std of the group's R + 1e-6).

    Shao et al. 2024, arXiv 2402.03300, section 4.1.2. Deviations: R_i is the score of a session, whose chains all get
    A_i; and the advantage of a lone session is 0.

    Raises:
        ConfigError: a setting cannot be used, or verl passed no group ids.
    """
    batch = _Batch(token_level_rewards, response_mask, index, config)
    outcomes = batch.outcomes()
    returns = {session.name: session.score for session in batch.sessions}
    return batch.over_sessions(outcomes), batch.over_sessions(returns)


def turn_grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages by turn: A_ik = norm(G_ik) + outcome_weight * A_i, G_ik = sum over j >= k of gamma_turn^(j-k) r_ij.

    Discounted returns of turns, normalised in the group: Ding et al. 2025, arXiv 2511.14846, return-based advantage
    estimation. An outcome advantage added to that of the turn: Zeng et al. 2025, arXiv 2505.11821 v1, turn-level
    credit assignment. Deviations: both terms are there at once, and `outcome_weight=0` leaves the second out; with
    `turn_baseline=turn` a turn is compared with the same turn of its siblings, with `group` with all their turns; a
    turn that no sibling reached gets 0 for the first term.

    Raises:
        ConfigError: a setting cannot be used, or verl passed no group ids.
    """
    batch = _Batch(token_level_rewards, response_mask, index, config)
    settings = batch.settings

    def baseline(number: int, place: int) -> Hashable:
        session = batch.sessions[number]
        turn = session.turns[place]
        return (session.group, turn.agent, turn.number) if settings.turn_baseline == "turn" else session.group

    returns = batch.returns(settings.gamma_turn)
    relative = _normed(returns, {at: baseline(*at) for at in returns}, by_std=settings.by_std)
    advantages = batch.over_turns(relative)
    advantages += settings.outcome_weight * batch.over_sessions(batch.outcomes())
    return advantages, batch.over_turns(returns)


def gigpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group-in-group advantages: A_ik = A_i + step_weight * A^S_ik.

    Feng et al. 2025, arXiv 2505.10978: A_i is the episode's advantage (equation 3), A^S_ik the return G_ik (5) among
    those of all steps of the group that acted in an equal state (6), by mean and, with `by_std`, spread (7); their sum
    is equation 8. Deviations: a lone session's A_i is 0; states are equal where their anchors are, never where they are
    similar; an action without an anchor is compared with none.

    Raises:
        ConfigError: a setting cannot be used, verl passed no group ids, or nothing says in which state actions were.
    """
    batch = _Batch(token_level_rewards, response_mask, index, config)
    settings = batch.settings
    turns = [turn for session in batch.sessions for turn in session.turns]
    if not batch.has_rows:
        raise ConfigError(
            "agentkit_gigpo needs the anchor of each action, which verl's own trainers do not pass on: "
            "set trainer.v1.trainer_mode=agentkit_sync (or another agentkit_ mode)"
        )
    if turns and not any(turn.anchor for turn in turns):
        raise ConfigError(
            "agentkit_gigpo compares actions in equal states, but no action of this batch has an anchor: "
            "use agentkit_turn_grpo, or rows made by AgentKitLoop"
        )

    def state(number: int, place: int) -> Hashable:
        session = batch.sessions[number]
        anchor = session.turns[place].anchor
        return (session.group, anchor) if anchor else (number, place)

    returns = batch.returns(settings.gamma_turn)
    relative = _normed(returns, {at: state(*at) for at in returns}, by_std=settings.by_std)
    advantages = batch.over_sessions(batch.outcomes())
    advantages += settings.step_weight * batch.over_turns(relative)
    return advantages, batch.over_turns(returns)


def discounted(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outcome advantages that fade with the distance from the end: A_ik = gamma_turn^(last turn of i - k) * A_i.

    The discount is that of the returns of Ding et al. 2025, arXiv 2511.14846, with all reward in the last turn; A_i is
    that of `agentkit_grpo`. Deviation from both: the group is compared before the discount and not after it, so that a
    group whose sessions all got the same score gets 0 whatever their lengths.

    Raises:
        ConfigError: a setting cannot be used, or verl passed no group ids.
    """
    batch = _Batch(token_level_rewards, response_mask, index, config)
    outcomes = batch.outcomes()
    advantages: dict[_TurnAt, float] = {}
    returns: dict[_TurnAt, float] = {}
    for number, session in enumerate(batch.sessions):
        lasts: dict[str, int] = defaultdict(int)
        for turn in session.turns:
            lasts[turn.agent] = max(lasts[turn.agent], turn.number)
        for place, turn in enumerate(session.turns):
            share = batch.settings.gamma_turn ** (lasts[turn.agent] - turn.number)
            advantages[number, place] = share * outcomes[session.name]
            returns[number, place] = share * session.score
    return batch.over_turns(advantages), batch.over_turns(returns)


class _Batch:
    """One call of an estimator: what verl passed, read as sessions, and the way back to tensors."""

    def __init__(
        self,
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: Sequence[Any] | None,
        config: Mapping[str, Any] | None,
    ) -> None:
        self.settings = CreditSettings.of(config)
        if config is not None and config.get("use_kl_in_reward", False):
            raise ConfigError(
                "algorithm.use_kl_in_reward mixes a penalty into the rewards that agentkit's estimators read scores "
                "from: set it to False and actor_rollout_ref.actor.use_kl_loss to True"
            )
        if index is None:
            raise ConfigError("agentkit's estimators compare the rollouts of a group: verl passed no uid in the batch")
        self._mask = response_mask.to(token_level_rewards.dtype)
        rows: BatchRows | None = current_rows()
        self.has_rows = rows is not None and any(rows.infos)
        masks = [row.tobytes() for row in response_mask.bool().to(torch.uint8).cpu().numpy()]
        sums = torch.nn.functional.pad(token_level_rewards.to(torch.float64).cumsum(dim=-1), (1, 0)).cpu().numpy()
        rewards = [_between(row) for row in sums]
        self.sessions = sessions_of(rewards, masks, [str(group) for group in index], rows)

    def outcomes(self) -> dict[str, float]:
        """The advantage of each session's score in its group, by session."""
        scores = {session.name: session.score for session in self.sessions}
        return _normed(scores, {one.name: one.group for one in self.sessions}, by_std=self.settings.by_std)

    def returns(self, gamma: float) -> dict[_TurnAt, float]:
        """The return of each turn."""
        return {
            (number, place): value
            for number, session in enumerate(self.sessions)
            for place, value in enumerate(returns_of(session.turns, gamma))
        }

    def over_sessions(self, values: Mapping[str, float]) -> torch.Tensor:
        """The value of each session at the trained tokens of its rows, 0 elsewhere."""
        column = self._mask.new_zeros(self._mask.shape[0], 1)
        for session in self.sessions:
            column[list(session.rows)] = values[session.name]
        return column * self._mask

    def over_turns(self, values: Mapping[_TurnAt, float]) -> torch.Tensor:
        """The value of each turn at its trained tokens, 0 elsewhere."""
        spread = torch.zeros_like(self._mask)
        for (number, place), value in values.items():
            for part in self.sessions[number].turns[place].segments:
                spread[part.row, part.start : part.stop] = value
        return spread * self._mask


def _between(sums: Any) -> Rewards:
    """Sums of a row's rewards, from those up to each token."""

    def between(start: int, stop: int) -> float:
        return float(sums[stop] - sums[start])

    return between


def _normed(values: Mapping[_Key, float], groups: Mapping[_Key, Hashable], *, by_std: bool) -> dict[_Key, float]:
    members: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in values.items():
        members[groups[key]].append(value)
    means = {group: math.fsum(found) / len(found) for group, found in members.items()}
    scales = dict.fromkeys(members, 1.0)
    if by_std:
        for group, found in members.items():
            spread = math.fsum((value - means[group]) ** 2 for value in found)
            scales[group] = math.sqrt(spread / max(len(found) - 1, 1)) + _EPSILON
    return {key: (value - means[groups[key]]) / scales[groups[key]] for key, value in values.items()}
