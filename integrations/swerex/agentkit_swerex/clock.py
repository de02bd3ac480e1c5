"""Times of this machine as times of the one a sandbox runs on. Sans-IO."""

from collections import deque

from attrs import define, field

KEPT = 64
NEVER = 1 << 60
"""No process starts this late: such a time stands for itself."""


@define
class Clock:
    """Maps moments here to moments there, both in ticks since each machine's boot.

    Processes are told apart by when they started, in their own machine's ticks. What is known are pairs: when a request
    left here, when it came in there. A moment before such a request left is mapped to one not after its arrival, and
    never to one too early: the delay of the request is added. So what started there before the moment stays before it,
    and what the request caused comes after it.
    """

    _pairs: deque[tuple[int, int]] = field(factory=lambda: deque(maxlen=KEPT))

    def note(self, left: int, arrived: int) -> None:
        """A request left here at `left` and came in there at `arrived`; requests in order."""
        self._pairs.append((left, arrived))

    def there(self, moment: int) -> int:
        """`moment` on the other machine's clock."""
        if moment >= NEVER or not self._pairs:
            return moment
        left, arrived = next((pair for pair in self._pairs if pair[0] >= moment), self._pairs[-1])
        return moment + arrived - left
