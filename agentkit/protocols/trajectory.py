"""The record of a rollout, sealed."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from attrs import field, frozen

from agentkit.protocols.actions import Action, Observation
from agentkit.protocols.chains import Chain, SpanKind
from agentkit.protocols.messages import FinishReason, Message
from agentkit.protocols.task import Task


class ExitReason(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    TRAJECTORY_TIMEOUT = "trajectory_timeout"
    GENERATION_TIMEOUT = "generation_timeout"
    TOOL_TIMEOUTS = "tool_timeouts"
    FORMAT_ERRORS = "format_errors"
    ENV_START_FAILED = "env_start_failed"
    ENV_DEAD = "env_dead"
    MODEL_ERROR = "model_error"
    CANCELLED = "cancelled"
    INTERNAL_ERROR = "internal_error"


class Blame(StrEnum):
    """Whose fault it is that a rollout ended as it did, or that it has no score."""

    POLICY = "policy"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"
    GRADER = "grader"
    CALLER = "caller"


class Outcome(StrEnum):
    """What the trainer should do with a trajectory."""

    TRAIN = "train"
    MASK = "mask"
    """Zero loss weight; the score still counts in the group's baseline."""
    DROP = "drop"
    """Out of the loss and out of the group's baseline."""
    RETRY = "retry"
    """Try the same (task, index) again in a fresh env; only policies carry it, a sealed trajectory ends as another."""
    REPLACE = "replace"
    """As drop, and another rollout of the same task is started in its place."""


class GradeStatus(StrEnum):
    """Whether the reward could say anything."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"


@frozen
class Score:
    """What a reward says: a scalar, and optionally its parts.

    `turns[k]` belongs to turn k; `tokens[c][t]` to token t of chain c. `metrics` are numbers to log beside the score.
    """

    value: float
    turns: tuple[float, ...] | None = None
    tokens: Mapping[int, tuple[float, ...]] | None = None
    metrics: Mapping[str, float] = field(factory=dict)


@frozen
class Grade:
    """A score, or why there is none and whose fault that is. A fault of ours or the grader's is never a zero."""

    status: GradeStatus
    score: Score | None = None
    blame: Blame | None = None
    error: str | None = None

    @property
    def value(self) -> float | None:
        """The scalar, or None where there is no score."""
        return None if self.score is None else self.score.value


@frozen
class Turn:
    """One generation and the observations it caused.

    The sampled tokens are `start <= t < stop` of chain number `chain` (-1 and an empty range at message level).
    `queued_s` is time spent waiting for a generation permit, or in the
    model for its trainer, and no part of `generation_s`. `heard` is what was said to the
    policy since the turn before, its observations apart: by the loop or by a user; where `is_rewrite`, the history was
    replaced by it. `follows` is the turn that the conversation went on from, where that is not the one before: the loop
    had gone back to it, or it was the candidate taken; -1 is the prompt. `stop_string` is the one that ended the
    generation, counted from token `min_tokens` on: the action was read up to its end, which may lie within a token.
    """

    index: int
    action: Action
    observations: tuple[Observation, ...] = ()
    chain: int = -1
    start: int = 0
    stop: int = 0
    queued_s: float = 0.0
    generation_s: float = 0.0
    tool_s: float = 0.0
    heard: tuple[Message, ...] = ()
    is_rewrite: bool = False
    follows: int | None = None
    stop_string: str | None = None
    min_tokens: int = 0

    @property
    def previous(self) -> int:
        """The turn that the conversation went on from, -1 for the prompt."""
        return self.index - 1 if self.follows is None else self.follows

    @property
    def finish(self) -> FinishReason:
        """Why the generation ended."""
        return self.action.finish


@frozen
class Timings:
    """Seconds spent by a rollout, by stage."""

    queued_s: float = 0.0
    setup_s: float = 0.0
    generation_s: float = 0.0
    tool_s: float = 0.0
    reward_s: float = 0.0
    total_s: float = 0.0


@frozen
class Attempt:
    """A try that was given up and retried beneath the same rollout."""

    number: int
    exit_reason: ExitReason
    error: str | None = None
    seconds: float = 0.0


@frozen
class RolloutKey:
    """Names one rollout within a run, and the attempt beneath it (from 0)."""

    task_id: str
    index: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.task_id}#{self.index}"


def _no_task() -> Task:
    return Task("")


@frozen(repr=False)
class Trajectory:
    """The record of one rollout: everything that was sampled and observed, and why it ended.

    `task` is what was asked, its `data` and `metadata` included. `chains` is empty for message-level models. `turns`
    are all that were sampled, in order; `path()` gives those that the conversation ended with, and `tip` is the last of
    these where it is not the last turn. `children` are the trajectories of sub-agents. `stuck` names user code that
    outlived its grace and was abandoned. `error` is a traceback where an exception ended the rollout.
    """

    key: RolloutKey
    prompt: tuple[Message, ...]
    chains: tuple[Chain, ...]
    turns: tuple[Turn, ...]
    exit_reason: ExitReason
    blame: Blame | None = None
    grade: Grade | None = None
    outcome: Outcome = Outcome.TRAIN
    timings: Timings = field(factory=Timings)
    attempts: tuple[Attempt, ...] = ()
    children: "tuple[Trajectory, ...]" = ()
    stuck: tuple[str, ...] = ()
    error: str | None = None
    replaces: int | None = None
    task: Task = field(factory=_no_task)
    tip: int | None = None

    def __repr__(self) -> str:
        # Short: event loops put results into messages, and a long trajectory takes long to print.
        tokens = sum(map(len, self.chains))
        return (
            f"<Trajectory {self.key}: {self.exit_reason}, {len(self.turns)} turns, {tokens} tokens, score {self.score}>"
        )

    @property
    def task_id(self) -> str:
        """The task, which is also the group."""
        return self.key.task_id

    @property
    def metadata(self) -> Mapping[str, object]:
        """The task's metadata."""
        return self.task.metadata

    @property
    def score(self) -> float | None:
        """The scalar grade, or None where there is none."""
        return None if self.grade is None else self.grade.value

    def walk(self) -> "Iterator[Trajectory]":
        """This trajectory and those of its sub-agents, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def path(self) -> tuple[Turn, ...]:
        """The turns of the conversation as it ended, without those that were rolled back or not taken."""
        turns: list[Turn] = []
        at = len(self.turns) - 1 if self.tip is None else self.tip
        while at >= 0:
            turns.append(self.turns[at])
            at = min(self.turns[at].previous, at - 1)
        return tuple(reversed(turns))

    def loss_mask(self, chain: int) -> bytes:
        """Weights derived from the response mask: 1 byte a token, all 0 unless the outcome is `train`."""
        mask = self.chains[chain].mask_bytes
        return mask if self.outcome is Outcome.TRAIN else bytes(len(mask))

    def policy_versions(self) -> tuple[int, int] | None:
        """The lowest and highest policy version that sampled a token, or None where none is known."""
        versions = [
            span.policy_version
            for chain in self.chains
            for span in chain.spans
            if span.kind is SpanKind.SAMPLED and span.policy_version is not None
        ]
        return (min(versions), max(versions)) if versions else None
