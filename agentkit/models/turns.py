"""How far each conversation has come in a script that many share."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from agentkit.errors import ModelError

T = TypeVar("T")


class Turns(Generic[T]):
    """A sequence of turns, played from its start for every request id."""

    def __init__(self, turns: Sequence[T]) -> None:
        self._turns = tuple(turns)
        self._next: dict[str, int] = {}

    def next(self, request_id: str) -> T:
        """The turn after the one this request id got last.

        Raises:
            ModelError: there is none.
        """
        number = self._next.get(request_id, 0)
        if number >= len(self._turns):
            raise ModelError(f"the script has {len(self._turns)} turns, request {request_id!r} asks for one more")
        self._next[request_id] = number + 1
        return self._turns[number]
