"""Batches as verl passes them to estimators, beside the structure they were made from."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agentkit_verl.rows import ActionSpan, RowInfo
from attrs import evolve, field, frozen
from hypothesis import strategies as st


@frozen
class MadeRow:
    """One row: its key and its tokens, and `None` as `info` for padding."""

    key: str
    mask: list[int]
    rewards: list[float]
    info: RowInfo | None
    group: str
    session: str


@frozen
class MadeBatch:
    """Rows, with what is true of their sessions and turns, for oracles that do not read the tensors."""

    rows: list[MadeRow]
    score: dict[str, float]
    group: dict[str, str]
    turn_reward: dict[tuple[str, str, int], float]
    """By session, agent and number of the turn."""
    anchor: dict[tuple[str, str, int], str] = field(factory=dict)

    @property
    def width(self) -> int:
        return max(len(row.mask) for row in self.rows)

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Token-level rewards, response mask and group ids, padded as verl does."""
        import numpy as np

        rewards = torch.zeros(len(self.rows), self.width, dtype=dtype)
        mask = torch.zeros(len(self.rows), self.width, dtype=torch.int64)
        for number, row in enumerate(self.rows):
            rewards[number, : len(row.rewards)] = torch.tensor(row.rewards, dtype=dtype)
            mask[number, : len(row.mask)] = torch.tensor(row.mask)
        return rewards, mask, np.array([row.group for row in self.rows], dtype=object)

    def rows_args(self) -> tuple[list[str], list[RowInfo | None]]:
        return [row.key for row in self.rows], [row.info for row in self.rows]


eighths = st.integers(-16, 16).map(lambda n: n / 8)


@st.composite
def made_batches(draw: st.DrawFn, *, most_groups: int = 3, is_padded: bool = True) -> MadeBatch:
    rows: list[MadeRow] = []
    batch = MadeBatch([], {}, {}, {})
    for g in range(draw(st.integers(1, most_groups))):
        for s in range(draw(st.integers(1, 4))):
            rows += draw(_sessions(batch, f"uid_{g}", s))
    if is_padded:  # verl's padding copies what row 0 says of itself: the trainer takes it away
        rows += [
            MadeRow(f"pad{n}_{n}_0", [0], [0.0], None, f"pad{n}", f"pad{n}_{n}") for n in range(draw(st.integers(0, 2)))
        ]
    order = draw(st.permutations(range(len(rows))))
    return evolve(batch, rows=[rows[place] for place in order])


@st.composite
def _sessions(draw: st.DrawFn, batch: MadeBatch, uid: str, number: int) -> list[MadeRow]:
    session = f"{uid}_{number}"
    is_dense, is_masked = draw(st.booleans()), draw(st.integers(0, 5)) == 0
    chains = draw(st.integers(1, 3))
    nexts: dict[str, int] = {}
    made: list[tuple[str, list[int], list[float], list[ActionSpan]]] = []
    for _ in range(chains):
        agent = draw(st.sampled_from(["agent", "agent", "agent/0"]))
        mask: list[int] = []
        actions: list[ActionSpan] = []
        bounds: list[int] = []
        for _ in range(draw(st.integers(0 if made else 1, 3))):
            mask += [0] * draw(st.integers(0, 2))
            turn = nexts.get(agent, 0) + draw(st.sampled_from([0, 0, 0, 2]))  # limits may leave turns out
            nexts[agent] = turn + 1
            start = len(mask)
            mask += [draw(st.sampled_from([1, 1, 1, 0]))] * draw(st.integers(1, 3))
            anchor = draw(st.sampled_from(["", "a", "b"]))
            actions.append(ActionSpan(turn, start, len(mask), 0.0, anchor))
            batch.anchor[session, agent, turn] = anchor
            batch.turn_reward.setdefault((session, agent, turn), 0.0)
            bounds.append(len(mask) - 1)
        mask += [0] * draw(st.integers(0 if mask else 1, 2))
        rewards = [0.0] * len(mask)
        for place, action in enumerate(actions if is_dense else []):
            stop = actions[place + 1].start if place + 1 < len(actions) else len(mask)
            reward = draw(eighths)  # anywhere from the action's last token to the next action
            rewards[draw(st.integers(bounds[place], stop - 1))] += reward
            batch.turn_reward[session, agent, action.turn] += reward
        made.append((agent, [0] * len(mask) if is_masked else mask, rewards, actions))
    if is_dense:
        score = sum(sum(rewards) for _, _, rewards, _ in made)
    else:
        score = draw(eighths)
        for _, _, rewards, _ in made:
            rewards[-1] = score
        for agent in {agent for agent, _, _, actions in made if actions}:
            last = max(turn for name, who, turn in batch.turn_reward if (name, who) == (session, agent))
            batch.turn_reward[session, agent, last] = score
    batch.score[session], batch.group[session] = score, uid
    sums = {sum(rewards) for _, _, rewards, _ in made}
    is_ambiguous = is_dense and chains > 1 and len(sums) == 1  # without the score, shares and copies look alike
    is_known = is_ambiguous or draw(st.booleans())
    return [
        MadeRow(
            f"{session}_{chain}", mask, rewards,
            RowInfo(task_id=uid, session=number, chain=chain, chains=chains, agent=agent,
                    score=score if is_known else None, actions=tuple(actions)),
            uid, session,
        )
        for chain, (agent, mask, rewards, actions) in enumerate(made)
    ]  # fmt: skip


@pytest.fixture(scope="session")
def batches() -> Callable[..., st.SearchStrategy[MadeBatch]]:
    """The strategy of batches."""
    return made_batches
