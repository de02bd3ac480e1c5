"""How fast sandboxes are asked for: providers refuse, or bill, what comes in bursts."""

import anyio
from anyio.lowlevel import RunVar

from agentkit.errors import ConfigError


class Pace:
    """At most `per_s` turns a second on each event loop, evenly spaced."""

    def __init__(self, per_s: float) -> None:
        if not per_s > 0:
            raise ConfigError(f"starts_per_s must be greater than 0, found {per_s!r}")
        self._gap_s = 1.0 / per_s
        self._free_at: RunVar[float] = RunVar(f"sandbox pace {id(self)}")

    async def turn(self) -> None:
        """Wait for the next turn. Cancellation: the turn is used up."""
        now = anyio.current_time()
        at = max(now, self._free_at.get(now))
        self._free_at.set(at + self._gap_s)
        await anyio.sleep(at - now)
