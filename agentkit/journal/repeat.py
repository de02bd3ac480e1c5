"""Which sealed rollouts are unfinished business, to be taken up again by a run that goes on with the journal.

Ctrl-C, an exception in the consumer and an early `break` all end what is live as `cancelled`. That says nothing about
the task, so by default such a rollout is run again: its next attempt begins while the sealed trajectory still stands,
and replaces it when it is sealed itself. So there is exactly one sealed trajectory at every moment (R2), and what a
crash in between leaves is the old one, and an unfinished attempt.
"""

from collections.abc import Collection
from typing import Any

from agentkit.errors import ConfigError
from agentkit.journal.codec import Codec, Text
from agentkit.protocols import Blame, ExitReason

ENDING = "exit_reason, CASE WHEN grade='skipped' AND exit_reason<>'cancelled' THEN record END"
"""Columns of `trajectories` that `is_repeated` judges by; a record is large, so it is read only where it decides."""


def exit_reasons(repeat: "Collection[ExitReason]") -> "frozenset[ExitReason]":
    """`repeat`, checked.

    Raises:
        ConfigError: it holds something else than exit reasons.
    """
    try:
        return frozenset(map(ExitReason, repeat))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"repeat must be a collection of exit reasons, found {repeat!r}: {error}") from error


def is_repeated(repeat: "Collection[ExitReason]", ending: "tuple[Any, Text | None]", codec: Codec) -> bool:
    """Whether a sealed rollout is taken up again, by the columns of `ENDING`.

    With `CANCELLED` among `repeat` that goes also for one that ended well, but whose reward was skipped because the
    caller had left.
    """
    reason, record = ending
    if reason in repeat:
        return True
    return ExitReason.CANCELLED in repeat and record is not None and codec.grade_blame(record) == Blame.CALLER
