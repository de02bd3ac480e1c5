"""Permits handed out fairly across groups: one group with many waiters cannot starve the others (invariant B5)."""

import math
from collections import OrderedDict

import anyio

from agentkit.errors import ConfigError


class FairPermits:
    """At most `limit` permits at a time; one that comes free goes to the next group that waits, in turn."""

    def __init__(self, limit: float = math.inf, *, name: str = "permits") -> None:
        if limit < 1:
            raise ConfigError(f"{name} must be at least 1, found {limit!r}")
        self._limit = limit
        self._held = 0
        self._paused = False
        # By group, each in the order in which it came; not queues, out of whose middle a cancelled one is slow to take.
        self._waiting: OrderedDict[str, OrderedDict[anyio.Event, None]] = OrderedDict()

    @property
    def held(self) -> int:
        """Permits handed out and not yet given back."""
        return self._held

    @property
    def waiting(self) -> int:
        """How many wait for a permit."""
        return sum(map(len, self._waiting.values()))

    def take(self) -> bool:
        """Take a permit if one is free and nobody waits for it."""
        if self._held < self._limit and not self._waiting and not self._paused:
            self._held += 1
            return True
        return False

    async def acquire(self, group: str) -> None:
        """Wait for a permit.

        Cancellation: none is held.
        """
        if self.take():
            return
        event = anyio.Event()
        self._waiting.setdefault(group, OrderedDict())[event] = None
        try:
            await event.wait()
        except BaseException:
            if event.is_set():  # granted and cancelled in the same turn of the loop
                self.release()
            else:
                queue = self._waiting[group]
                del queue[event]
                if not queue:
                    del self._waiting[group]
            raise

    def release(self) -> None:
        """Give a permit back."""
        self._held -= 1
        self._grant()

    def pause(self) -> None:
        """Hand out no permit until `resume`; those held stay held."""
        self._paused = True

    def resume(self) -> None:
        """Hand out permits again."""
        self._paused = False
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._held < self._limit and not self._paused:
            group, queue = self._waiting.popitem(last=False)
            event, _ = queue.popitem(last=False)
            if queue:
                self._waiting[group] = queue  # to the back: the other groups come first
            self._held += 1
            event.set()
