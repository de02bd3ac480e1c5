"""How many sandboxes are being started at a time."""

import anyio
from anyio.lowlevel import RunVar


class Starts:
    """At most `limit` starts at a time on each event loop: a back end may outlive the loop it was first used on."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphore: RunVar[anyio.Semaphore] = RunVar(f"sandbox starts {id(self)}")

    def here(self) -> anyio.Semaphore:
        """The permits of the running event loop."""
        try:
            return self._semaphore.get()
        except LookupError:
            semaphore = anyio.Semaphore(self._limit)
            self._semaphore.set(semaphore)
            return semaphore
