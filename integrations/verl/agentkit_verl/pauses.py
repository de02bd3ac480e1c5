"""When weights are exchanged: told by the trainer, heard by the workers, so that nobody's budget pays for it.

verl's asynchronous trainers interrupt generations for as long as a training step takes, and servers then hold new
requests back. An agent's worker cannot tell that from a request that takes long. The trainers `agentkit_*` announce it
on a board, a small Ray actor, which workers follow. Where nobody announces anything, a wait is what passes between an
interrupted attempt and the next.
"""
# pyright: reportMissingImports=false
# Ray is not installed where pyright runs.

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio

from agentkit.extras import require

logger = logging.getLogger(__name__)

BOARD = "agentkit_pauses"
_LOOK_S = 20.0
"""For as long a question to the board stays open."""


class Pauses:
    """Whether weights are exchanged right now, and who wants to hear of it."""

    def __init__(self) -> None:
        self.paused = False
        self._listeners: set[Callable[[bool], None]] = set()

    def tell(self, paused: bool) -> None:
        """It has begun, or is over."""
        if paused != self.paused:
            self.paused = paused
            for listener in list(self._listeners):
                listener(paused)

    @contextmanager
    def told(self, listener: Callable[[bool], None]) -> Iterator[None]:
        """Within, `listener(paused)` is called at each change, and at once where it is paused."""
        self._listeners.add(listener)
        try:
            if self.paused:
                listener(True)
            yield
        finally:
            self._listeners.discard(listener)

    async def follow(self, board: Any) -> None:
        """Pass on what is announced on `board`, for ever.

        Cancellation: ends it.
        """
        seen = -1
        while True:
            try:
                seen, paused = await board.changed.remote(seen, _LOOK_S)
            except Exception as error:  # the board is gone, and with it whoever announced
                logger.info("weight syncs are announced no longer: %r", error)
                self.tell(False)
                return
            self.tell(paused)


class Board:
    """The actor: what was announced last, and for whoever waits, the next announcement."""

    def __init__(self) -> None:
        self._paused = False
        self._changes = 0
        self._changed = anyio.Event()

    async def announce(self, paused: bool) -> None:
        """Weights are about to be exchanged, or have been. Cancellation: nothing is announced."""
        if paused != self._paused:
            self._paused = paused
            self._changes += 1
            self._changed.set()
            self._changed = anyio.Event()

    async def changed(self, seen: int, within_s: float) -> tuple[int, bool]:
        """(number of the last change, paused): at once where it is another than `seen`, else when it changes.

        Cancellation: nothing is held.
        """
        if self._changes == seen:
            with suppress(TimeoutError), anyio.fail_after(within_s):
                await self._changed.wait()
        return self._changes, self._paused


def put_up_board() -> Any:
    """The board of this Ray cluster; it lives as long as whoever put it up first keeps this handle."""
    ray = require("ray", extra="verl", purpose="telling when weights are exchanged")

    # num_cpus=0: it must find a place wherever the trainer does; many wait on it at a time
    return ray.remote(Board).options(name=BOARD, get_if_exists=True, num_cpus=0, max_concurrency=4096).remote()


def find_board() -> Any | None:
    """The board, if a trainer has put one up."""
    ray = require("ray", extra="verl", purpose="telling when weights are exchanged")

    try:
        return ray.get_actor(BOARD) if ray.is_initialized() else None
    except ValueError:
        return None
