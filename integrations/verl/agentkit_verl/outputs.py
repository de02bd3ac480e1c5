"""From a sealed trajectory to the rows of a verl batch: pure, so that every rule of it can be tested without verl.

A row is a chain, cut in two: a prompt of at most `prompt_length` tokens and a response of at most `response_length`.
Nothing that was sampled is ever cut in half: a chain that does not fit loses whole turns from its end, and says so.
"""

from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from attrs import evolve, frozen

from agentkit.protocols import Chain, Observation, Outcome, SpanKind, Trajectory, Turn
from agentkit.tokens import chain_weights
from agentkit_verl.rows import ActionSpan, KindSpan, RowInfo, VersionSpan
from agentkit_verl.settings import VerlSettings


@frozen(kw_only=True)
class RowLimits:
    """The lengths of verl's rows, in tokens."""

    prompt_length: int
    response_length: int


@frozen(kw_only=True, eq=False)
class Row:
    """One chain as verl takes it: `response_mask` is what the loss counts. Without log-probabilities where none count.

    `rewards` are those of single tokens, where the credit asks for such.
    """

    prompt_ids: "array[int]"
    response_ids: "array[int]"
    response_mask: bytes
    logprobs: "array[float]"
    info: RowInfo
    score: float | None
    rewards: "array[float] | None" = None
    trajectory: Trajectory
    chain: int
    """The trajectory, or that of a sub-agent, and the chain in it that this is."""
    metrics: Mapping[str, float]
    """What the reward said beside the score."""
    num_turns: int = 0


@frozen
class _Place:
    trajectory: Trajectory
    number: int
    weight: float
    agent: str

    @property
    def chain(self) -> Chain:
        return self.trajectory.chains[self.number]


def rows_of(
    trajectory: Trajectory,
    *,
    limits: RowLimits,
    settings: VerlSettings,
    info: RowInfo,
    kinds: Any = None,
) -> tuple[Row, ...]:
    """The rows of a rollout, its own last: verl takes a session's score from the last one.

    None of a rollout that is to be dropped, nor of one in which nothing was sampled that fits. One that is to be masked
    has one row, for its score. `info` says whose rows they are, and what holds of the whole session; `kinds(trajectory,
    turn)` gives the kinds of a turn's tokens.
    """
    if trajectory.outcome not in (Outcome.TRAIN, Outcome.MASK):
        return ()
    masked = trajectory.outcome is Outcome.MASK
    if masked and trajectory.grade is not None and trajectory.score is None:
        return ()  # it would count by its score alone, and has none: verl would ask a reward of its own for one
    places = _places(trajectory, settings, info.agent)
    if masked:
        places = [place for place in places if place.trajectory is trajectory][-1:]
    made = [row for place in places if (row := _row(place, limits, settings, info, kinds, masked=masked)) is not None]
    cut = sum(place.chain.mask_bytes.count(1) for place in places) - sum(row.info.counts["sampled"] for row in made)
    trained = sum(row.response_mask.count(1) for row in made)
    told = []
    for number, row in enumerate(made):
        counts = {**info.counts, "trained": trained, "cut": cut, "sampled": info.counts.get("sampled", 0)}
        told.append(evolve(row, info=evolve(row.info, chain=number, chains=len(made), counts=counts)))
    if settings.credit != "outcome":
        told = _with_rest(told, trajectory.score)
    return tuple(told)


def _places(trajectory: Trajectory, settings: VerlSettings, agent: str) -> list[_Place]:
    """The chains that hold something sampled, those of sub-agents first, that of the last turn last.

    Without those of a sub-agent that is not to be trained on: its score is no part of a baseline.
    """
    weights = iter(chain_weights(trajectory, settings.weights))
    weighted = [
        _Place(each, number, next(weights), f"{agent}.{at}" if at else agent)
        for at, each in enumerate(trajectory.walk())
        for number in range(len(each.chains))
    ]
    path = trajectory.path()
    last = path[-1].chain if path else len(trajectory.chains) - 1
    sampled = [
        place
        for place in weighted
        if 1 in place.chain.mask_bytes and (place.trajectory is trajectory or place.weight > 0)
    ]
    return sorted(sampled, key=lambda place: _order(place, trajectory, last))


def _order(place: _Place, trajectory: Trajectory, last: int) -> tuple[bool, bool]:
    is_own = place.trajectory is trajectory
    return is_own, is_own and place.number == last


def _opening(trajectory: Trajectory, number: int) -> int:
    """How many tokens were rendered before anything was sampled in the chain, or in the one that it was forked from."""
    chain = trajectory.chains[number]
    sampled = chain.mask_bytes.find(1)
    opening = len(chain) if sampled < 0 else sampled
    if chain.parent is not None:
        opening = min(opening, chain.parent[1], _opening(trajectory, chain.parent[0]))
    return opening


def _row(
    place: _Place, limits: RowLimits, settings: VerlSettings, info: RowInfo, kinds: Any, *, masked: bool
) -> Row | None:
    chain, trajectory = place.chain, place.trajectory
    opening = _opening(trajectory, place.number)
    if opening > limits.prompt_length and settings.prompt_overflow == "drop":
        return None
    split = min(opening, limits.prompt_length)
    turns = [turn for turn in trajectory.turns if turn.chain == place.number and turn.stop > turn.start]
    fitting = [turn for turn in turns if turn.stop - split <= limits.response_length]
    if not fitting:
        return None
    stop = max(turn.stop for turn in fitting)
    weights = trajectory.loss_mask(place.number)[split:stop]
    mask = bytes(len(weights)) if masked else weights
    actions = tuple(_action(trajectory, turn, split) for turn in sorted(fitting, key=lambda turn: turn.start))
    score = trajectory.grade.score if trajectory.grade is not None else None
    return Row(
        prompt_ids=_array("i", chain.id_bytes, 0, split),
        response_ids=_array("i", chain.id_bytes, split, stop),
        response_mask=mask,
        logprobs=_array("f", chain.logprob_bytes, split, stop),
        info=evolve(
            info,
            agent=place.agent,
            weight=place.weight,
            actions=actions,
            kinds=() if kinds is None else _kinds(trajectory, fitting, kinds, split),
            versions=_versions(chain, split, stop),
            counts={"sampled": chain.mask_bytes[:stop].count(1)},
        ),
        score=info.score,
        rewards=None if settings.credit == "outcome" else _dense(place, actions, settings, split, stop),
        trajectory=trajectory,
        chain=place.number,
        metrics={} if score is None else dict(score.metrics),
        num_turns=1 + sum(1 + bool(turn.observations) for turn in turns),
    )


def _array(code: str, held: bytes, start: int, stop: int) -> "array[Any]":
    """A part of a chain: of bytes, since an array of a view makes an object of each token."""
    made: array[Any] = array(code)
    made.frombytes(memoryview(held)[4 * start : 4 * stop])
    return made


def _action(trajectory: Trajectory, turn: Turn, split: int) -> ActionSpan:
    score = trajectory.grade.score if trajectory.grade is not None else None
    reward = score.turns[turn.index] if score is not None and score.turns is not None else 0.0
    return ActionSpan(
        turn=turn.index,
        start=turn.start - split,
        stop=turn.stop - split,
        reward=float(reward),
        anchor=anchor_of(trajectory, turn),
        has_call=bool(turn.action.calls),
    )


def anchor_of(trajectory: Trajectory, turn: Turn) -> str:
    """The name of the state in which a turn was sampled: equal where the policy read the same last.

    That is what the turn before it caused and what was said since, or the prompt. An env that knows better says so by
    `state` in the metadata of an observation: texts that differ by a clock or a path then name one state.
    """
    read: list[str] = []
    if turn.previous >= 0:
        for observation in trajectory.turns[turn.previous].observations:
            state = observation.metadata.get("state")
            read.append(_shown(observation) if state is None else f"state:{state!r}")
    else:
        read += [message.content for message in trajectory.prompt]
    read += [message.content for message in turn.heard]
    return sha256("\x1f".join(read).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _shown(observation: Observation) -> str:
    media = [part.digest.hex() for part in observation.parts if not isinstance(part, str)]
    return "\x1e".join((observation.content, *media))


def _versions(chain: Chain, split: int, stop: int) -> tuple[VersionSpan, ...]:
    return tuple(
        VersionSpan(span.start - split, min(span.stop, stop) - split, span.policy_version)
        for span in chain.spans
        if span.kind is SpanKind.SAMPLED and span.policy_version is not None and span.start < stop
    )


def _kinds(trajectory: Trajectory, turns: Sequence[Turn], kinds: Any, split: int) -> tuple[KindSpan, ...]:
    return tuple(
        KindSpan(span.start + turn.start - split, span.stop + turn.start - split, span.kind)
        for turn in sorted(turns, key=lambda turn: turn.start)
        for span in kinds(trajectory, turn)
    )


def _dense(
    place: _Place, actions: Sequence[ActionSpan], settings: VerlSettings, split: int, stop: int
) -> "array[float]":
    """What the reward said of the tokens of a chain, or of its turns: those count on their last token."""
    rewards = array("f", bytes(4 * (stop - split)))
    score = place.trajectory.grade.score if place.trajectory.grade is not None else None
    if score is None:
        return rewards
    if settings.credit == "token" and score.tokens is not None:
        for position, value in enumerate(score.tokens.get(place.number, ())[split:stop]):
            rewards[position] = value
        return rewards
    for action in actions:
        rewards[action.stop - 1] += action.reward
    return rewards


def _with_rest(rows: "list[Row]", score: float | None) -> "list[Row]":
    """What the score has beyond the rewards of tokens and turns is of the last token: a session's rewards sum to it."""
    if not rows or score is None:
        return rows
    last = rows[-1]
    if last.rewards is not None:
        last.rewards[-1] += score - sum(sum(row.rewards) for row in rows if row.rewards is not None)
    return rows
