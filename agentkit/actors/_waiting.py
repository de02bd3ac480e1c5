"""Time in which a model can do nothing but wait for its trainer: on the budget, or not, as the budget says."""

import math
from collections.abc import Callable

import anyio

from agentkit.actors._bounds import Bounds
from agentkit.actors._record import Record


class Waiting:
    """A context manager for one generation: within, `generation_s` and `trajectory_s` stand still if waiting is free.

    It may be entered again and again, also within itself. What it measured is in `seconds`, whatever the budget says.
    """

    __slots__ = ("_began", "_bounds", "_deadlines", "_depth", "_move_deadline", "_record", "_scope", "seconds")

    def __init__(
        self, record: Record, bounds: Bounds, scope: anyio.CancelScope, move_deadline: Callable[[float], None]
    ) -> None:
        self._record = record
        self._bounds = bounds
        self._scope = scope
        self._move_deadline = move_deadline
        self._depth = 0
        self._began = 0.0
        self._deadlines = (math.inf, math.inf)
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._began = self._bounds.now()
        if not self._record.budget.count_waiting:
            self._deadlines = (self._scope.deadline, self._record.deadline)
            self._move(math.inf, math.inf)

    def __exit__(self, *_: object) -> None:
        if self._depth == 0:  # closed meanwhile: the generation is over
            return
        self._depth -= 1
        if self._depth == 0:
            self._end()

    def close(self) -> None:
        """The generation is over: nobody waits any more, whatever was left open."""
        if self._depth:
            self._depth = 0
            self._end()

    def _end(self) -> None:
        waited = self._bounds.now() - self._began
        self.seconds += waited
        if not self._record.budget.count_waiting:
            self._move(*(deadline + waited for deadline in self._deadlines))

    def _move(self, generation: float, trajectory: float) -> None:
        self._scope.deadline = generation
        self._move_deadline(trajectory)
        self._bounds.move_deadline(self._scope, generation)
