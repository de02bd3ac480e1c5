"""One batch as its sessions and their turns, each with its reward: what every estimator of the package starts from.

Rewards come from verl's token-level rewards alone. A session of several rows has them in one of two ways, told apart by
the session's score: each row repeats the score, as verl does with a scalar, or the rows share it between them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import frozen

from agentkit.errors import ConfigError
from agentkit_verl.credit.context import BatchRows
from agentkit_verl.rows import RowInfo

_TOLERANCE = 1e-4
"""Of the largest number compared: rewards are summed in 32 bits, and k repeated scores differ from one by k - 1."""


@frozen
class Segment:
    """Tokens `start <= t < stop` of row `row`: from the first token of an action to that of the next in the row.

    The first of a row starts at 0 and the last one ends with the row, so that the segments of a row tile it.
    """

    row: int
    start: int
    stop: int


@frozen
class Turn:
    """One turn of one agent of a session, with what it was rewarded for.

    `number` counts the turns of `agent`; two turns of a chain that was cut may leave numbers out.
    """

    session: str
    agent: str
    number: int
    reward: float
    anchor: str
    segments: tuple[Segment, ...]


@frozen
class Session:
    """One rollout with its sub-agents: its group, its one score, its rows, and its turns in order."""

    name: str
    group: str
    score: float
    rows: tuple[int, ...]
    turns: tuple[Turn, ...]


class Rewards(Protocol):
    """Token-level rewards of one row, summed."""

    def __call__(self, start: int, stop: int) -> float:
        """The sum over `start <= t < stop`."""
        ...


def sessions_of(
    rewards: Sequence[Rewards],
    masks: Sequence[bytes],
    groups: Sequence[str],
    rows: BatchRows | None,
) -> tuple[Session, ...]:
    """The sessions of a batch, in the order in which they first appear.

    `masks[i][t]` is 1 where token t of row i is trained. With `rows`, rows without `RowInfo` are padding and in no
    session. Without, every row is a session, and its turns are the runs of trained tokens.

    Raises:
        ConfigError: `rows` are not those of this batch.
    """
    if rows is not None and len(rows.keys) != len(masks):
        raise ConfigError(f"the batch has {len(masks)} rows, but {len(rows.keys)} rows were set for it")
    if rows is None or not any(rows.infos):
        names: Sequence[str] = [str(row) for row in range(len(masks))]
        infos: Sequence[RowInfo | None] = [None] * len(masks)
        chains: Sequence[int] = [0] * len(masks)
        members = range(len(masks))
    else:
        names, infos, chains = rows.sessions(), rows.infos, rows.chains()
        members = [row for row, info in enumerate(infos) if info is not None]  # type: ignore[assignment]
    by_name: dict[str, list[int]] = defaultdict(list)
    for row in members:
        by_name[names[row]].append(row)
    sessions: list[Session] = []
    for name, unordered in by_name.items():
        of_session = tuple(sorted(unordered, key=lambda row: chains[row]))
        sums = {row: rewards[row](0, len(masks[row])) for row in of_session}
        last = of_session[-1]
        info = infos[last]
        is_repeated = _is_repeated(list(sums.values()), None if info is None else info.score)
        score = sums[last] if is_repeated else sum(sums.values())
        turns = _turns(name, of_session, masks, infos, rewards, score if is_repeated else None)
        sessions.append(Session(name, groups[last], score, of_session, turns))
    return tuple(sessions)


def returns_of(turns: Sequence[Turn], gamma: float) -> tuple[float, ...]:
    """The return of each turn of one session: its reward and, by `gamma` for each turn in between, those after it.

    The turns of each agent follow one another; those of a sub-agent bring nothing to the agent that called it.
    """
    returns = [0.0] * len(turns)
    later: dict[str, tuple[int, float]] = {}
    for place in sorted(range(len(turns)), key=lambda place: turns[place].number, reverse=True):
        turn = turns[place]
        number, after = later.get(turn.agent, (turn.number, 0.0))
        returns[place] = turn.reward + gamma ** (number - turn.number) * after
        later[turn.agent] = (turn.number, returns[place])
    return tuple(returns)


def _is_repeated(sums: Sequence[float], score: float | None) -> bool:
    """Whether each of a session's several rows has all of its score, and not a share."""
    scale = max(map(abs, (*sums, score or 0.0))) * _TOLERANCE
    if score is not None and abs(sum(sums) - score) <= scale:
        return False
    return len(sums) > 1 and all(abs(one - sums[-1]) <= scale for one in sums)


def _turns(
    session: str,
    rows: Sequence[int],
    masks: Sequence[bytes],
    infos: Sequence[RowInfo | None],
    rewards: Sequence[Rewards],
    repeated: float | None,
) -> tuple[Turn, ...]:
    segments: dict[tuple[str, int], list[Segment]] = defaultdict(list)
    anchors: dict[tuple[str, int], str] = {}
    for row in rows:
        info = infos[row]
        agent = "" if info is None else info.agent
        starts = _starts(info, masks[row])
        bounds = [0, *(start for _, start, _ in starts[1:]), len(masks[row])]
        for (number, _, anchor), start, stop in zip(starts, bounds, bounds[1:], strict=False):
            segments[agent, number].append(Segment(row, start, stop))
            anchors.setdefault((agent, number), anchor)
    lasts: Mapping[str, int] = dict(sorted(segments))
    turns: list[Turn] = []
    for (agent, number), parts in segments.items():
        if repeated is None:
            reward = sum(rewards[part.row](part.start, part.stop) for part in parts)
        else:
            reward = repeated if number == lasts[agent] else 0.0
        turns.append(Turn(session, agent, number, reward, anchors[agent, number], tuple(parts)))
    return tuple(turns)


def _starts(info: RowInfo | None, mask: bytes) -> list[tuple[int, int, str]]:
    """Number, first token and anchor of each action of a row, in order; if unknown, runs of trained tokens."""
    if info is not None and info.actions:
        ordered = sorted(info.actions, key=lambda action: action.start)
        return [(action.turn, action.start, action.anchor) for action in ordered]
    runs: list[tuple[int, int, str]] = []
    at = mask.find(1)
    while at >= 0:
        runs.append((len(runs), at, ""))
        stop = mask.find(0, at)
        at = mask.find(1, stop) if stop >= 0 else -1
    return runs
