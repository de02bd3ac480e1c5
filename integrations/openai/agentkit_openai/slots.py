"""A bounded number of connections, handed out first come, first served."""

import asyncio
from collections import OrderedDict


class Slots:
    """At most `limit` slots at a time. Taking, waiting, giving up and handing on are O(1), however many wait.

    aiohttp's own limit loses a wake-up where the waiter is cancelled in the same turn of the loop, and lets newcomers
    overtake.
    """

    __slots__ = ("_free", "_waiting")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return self._free

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._waiting)

    async def acquire(self) -> None:
        """Take a slot, after those who came before.

        Cancellation: none is held, and the place in the queue is gone.
        """
        if self._free:  # then nobody waits: a slot that comes free goes to who waits
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # handed over and cancelled in the same turn of the loop
                self.release()
            else:
                self._waiting.pop(turn, None)
            raise

    def release(self) -> None:
        """Give a slot back, or straight to the first that waits."""
        while self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
