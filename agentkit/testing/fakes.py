"""Fakes that satisfy the Protocols: a world that knows what is open, a sink in memory, code that misbehaves."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import anyio

from agentkit.protocols import (
    ChainDelta,
    Json,
    Message,
    Observation,
    RolloutKey,
    Task,
    ToolContext,
    ToolSpec,
    Trajectory,
    Turn,
)


class World:
    """Makes envs and knows which are open: after a pool has exited, `open` must be empty.

    `on_start` and `on_close` run inside the env's methods, so that a test can make them slow, fail or misbehave.
    """

    def __init__(
        self,
        *,
        on_start: Callable[[Task], Awaitable[None]] | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        messages: Sequence[Message] | None = None,
    ) -> None:
        self.on_start = on_start
        self.on_close = on_close
        self.messages = messages
        self.open: set[WorldEnv] = set()
        self.made = 0
        self.closed = 0

    def __call__(self) -> "WorldEnv":
        """A fresh env."""
        self.made += 1
        return WorldEnv(self)


class WorldEnv:
    """An env that is open from the first moment of `start` until `close` has run."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Open."""
        self._world.open.add(self)
        if self._world.on_start is not None:
            await self._world.on_start(task)
        return self._world.messages

    async def close(self) -> None:
        """Close, once."""
        self._world.open.discard(self)
        self._world.closed += 1
        if self._world.on_close is not None:
            await self._world.on_close()


class MemorySink:
    """A sink that keeps everything in memory; `pause` runs inside each method."""

    def __init__(self, pause: Callable[[], Awaitable[object]] | None = None) -> None:
        self._pause = pause
        self.begun: list[RolloutKey] = []
        self.turns: dict[RolloutKey, list[Turn]] = {}
        self.deltas: dict[RolloutKey, list[ChainDelta]] = {}
        self.trajectories: list[Trajectory] = []

    async def begin(self, key: RolloutKey, /) -> None:
        """Note the attempt."""
        self.begun.append(key)
        await self._wait()

    async def append(self, key: RolloutKey, turn: Turn, deltas: Sequence[ChainDelta], /) -> None:
        """Note the turn."""
        self.turns.setdefault(key, []).append(turn)
        self.deltas.setdefault(key, []).extend(deltas)
        await self._wait()

    async def seal(self, trajectory: Trajectory, /) -> None:
        """Note the trajectory."""
        self.trajectories.append(trajectory)
        await self._wait()

    async def _wait(self) -> None:
        if self._pause is not None:
            await self._pause()


class FakeTool:
    """A tool whose body is any async function of its arguments; what it returns is shown as text."""

    def __init__(
        self,
        name: str,
        body: Callable[[Mapping[str, Json]], Awaitable[object]],
        *,
        parallel: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self._body = body
        self.spec = ToolSpec(name, "", {"type": "object", "properties": {}}, parallel=parallel, timeout_s=timeout_s)
        self.calls = 0

    async def call(self, arguments: Mapping[str, Json], context: ToolContext, /) -> Observation:
        """Run the body."""
        del context
        self.calls += 1
        result = await self._body(arguments)
        return result if isinstance(result, Observation) else Observation(str(result))


async def swallow_cancellation() -> None:
    """Never ends of itself, and catches whatever is thrown at it."""
    while True:
        with suppress(BaseException):
            await anyio.sleep(1000)


async def hide_behind_a_shield() -> None:
    """Never ends of itself, and cannot be cancelled."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()
