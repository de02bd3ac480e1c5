"""The state of one rollout attempt, owned by its supervisor and written by its loop."""

import math
from collections.abc import Sequence
from typing import Protocol, overload

from attrs import define, field, frozen

from agentkit.actors._guard import Driven
from agentkit.actors.outcomes import blame_for
from agentkit.errors import InvariantError
from agentkit.logs import error_text, redact
from agentkit.protocols import (
    Action,
    Attempt,
    Blame,
    Budget,
    ExitReason,
    Message,
    Observation,
    RolloutKey,
    Task,
    Timings,
    Trajectory,
    Turn,
)
from agentkit.tokens import Ledger


@frozen
class End:
    """Why a rollout ended: the first reason stands."""

    reason: ExitReason
    blame: Blame | None
    error: str | None
    at: float


@define
class OpenTurn:
    """A turn being made."""

    index: int
    action: Action
    chain: int = -1
    start: int = 0
    stop: int = 0
    queued_s: float = 0.0
    generation_s: float = 0.0
    tool_s: float = 0.0
    observations: tuple[Observation, ...] = ()
    heard: tuple[Message, ...] = ()
    is_rewrite: bool = False
    follows: int | None = None
    stop_string: str | None = None
    min_tokens: int = 0
    interrupted: bool = False

    def seal(self) -> Turn:
        """The turn as it stands."""
        return Turn(
            self.index,
            self.action,
            self.observations,
            self.chain,
            self.start,
            self.stop,
            self.queued_s,
            self.generation_s,
            self.tool_s,
            self.heard,
            self.is_rewrite,
            self.follows,
            self.stop_string,
            self.min_tokens,
        )


class Prefix(Sequence[Message]):
    """The first messages of a list that only grows: a view that never changes, without a copy."""

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._length = len(messages)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._messages[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._messages[index % self._length]


class RunningChild(Protocol):
    """A sub-agent under way."""

    def cancel(self) -> None:
        """End it."""
        ...

    async def settled(self) -> None:
        """Wait for its end."""
        ...


@define(eq=False)
class Record:
    """Everything one attempt has so far. Only its rollout writes turns; only its supervisor freezes it."""

    key: RolloutKey
    task: Task
    budget: Budget
    started: float
    deadline: float
    """Of set-up and interaction; moves only by waiting that does not count."""
    outer_deadline: float = math.inf
    """Of the parent rollout: no waiting moves the deadline past it."""
    ledger: Ledger = field(factory=Ledger)
    history: list[Message] = field(factory=list)
    heard: list[Message] = field(factory=list)
    """What was said since the last turn, its observations apart: for the next turn."""
    rewritten: bool = False
    """`heard` has replaced the history."""
    prompt: tuple[Message, ...] | None = None
    """What the first turn answered; None before it."""
    tip: int = -1
    """The turn that the history goes on from, -1 for the prompt."""
    turns: list[Turn] = field(factory=list)
    open_turns: list[OpenTurn] = field(factory=list)
    """Sampled and not acted on yet: one, or several candidates."""
    end: End | None = None
    calls: dict[Driven[object], float] = field(factory=dict)
    """User code that is running inside the loop, with its deadline."""
    next_look: float = math.inf
    """When the supervisor looks next: a call that is overdue sooner must wake it."""
    closed: bool = False
    """Frozen: whatever user code still pushes is refused."""
    refused: bool = False
    """The loop went on after the end (B6)."""
    stuck: list[str] = field(factory=list)
    children: list[Trajectory] = field(factory=list)
    children_begun: int = 0
    running_children: list[RunningChild] = field(factory=list)
    queued_s: float = 0.0
    setup_s: float = 0.0
    reward_s: float = 0.0

    @property
    def begun(self) -> int:
        """How many turns have begun."""
        return len(self.turns) + len(self.open_turns)

    def open(self, turn: OpenTurn, said: Message) -> None:
        """A turn was sampled: the history goes on from it."""
        turn.heard, turn.is_rewrite = tuple(self.heard), self.rewritten
        turn.follows = None if self.tip == turn.index - 1 else self.tip
        self.heard, self.rewritten, self.tip = [], False, turn.index
        self.open_turns.append(turn)
        self.history.append(said)

    def finish(
        self, reason: ExitReason, *, at: float, error: BaseException | str | None = None, blame: Blame | None = None
    ) -> None:
        """Note why the rollout ended; only the first time counts."""
        if self.end is None:
            text = error_text(error) if isinstance(error, BaseException) else None if error is None else redact(error)
            self.end = End(reason, blame or blame_for(reason), text, at)

    def freeze(self, *, now: float, attempts: tuple[Attempt, ...], replaces: int | None) -> Trajectory:
        """The trajectory as it stands, without a grade; its last turn has been closed."""
        if self.end is None:
            raise InvariantError(f"rollout {self.key} was frozen before its end")
        turns = tuple(self.turns)
        return Trajectory(
            key=self.key,
            prompt=tuple(self.history) if self.prompt is None else self.prompt,
            chains=self.ledger.freeze(),
            turns=turns,
            exit_reason=self.end.reason,
            blame=self.end.blame,
            timings=self.timings(turns, now),
            attempts=attempts,
            children=tuple(self.children),
            stuck=tuple(map(redact, self.stuck)),
            error=self.end.error,
            replaces=replaces,
            task=self.task,
            tip=None if self.tip == len(turns) - 1 else self.tip,
        )

    def timings(self, turns: Sequence[Turn], now: float) -> Timings:
        """Seconds by stage."""
        return Timings(
            queued_s=self.queued_s + sum(turn.queued_s for turn in turns),
            setup_s=self.setup_s,
            generation_s=sum(turn.generation_s for turn in turns),
            tool_s=sum(turn.tool_s for turn in turns),
            reward_s=self.reward_s,
            total_s=now - self.started,
        )
