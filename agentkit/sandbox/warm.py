"""Sandboxes started before they are asked for."""

import logging
import math
from typing import Self

import anyio
import attrs
from anyio.abc import TaskGroup
from attrs import define, field

from agentkit.errors import ConfigError, InvariantError
from agentkit.protocols.sandbox import Capable, Sandbox, SandboxBackend
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec

LOG = logging.getLogger("agentkit.sandbox")
ALIVE_S = 5.0
"""A sandbox that does not say within so many seconds that it lives is not handed out."""
BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 30.0


@define(eq=False)
class _Waiting:
    """One sandbox that waits: until when its lifetime lasts, and whether somebody is looking at it."""

    sandbox: Sandbox
    until: float
    claimed: bool = False
    gone: anyio.Event = field(factory=anyio.Event)


class WarmPool:
    """A back end that keeps up to `size` started sandboxes of `spec` ready inside `async with`.

    `start` with an equal spec hands one out, if it still lives, and another is started in its place; any other spec
    goes straight to `backend`, as does whatever is asked for while none is ready. What waits is closed when the pool is
    left; what was handed out is its owner's.

    With a `lifetime_s` in the spec a sandbox gets `wait_s` seconds more than that and is replaced once it has waited so
    long: whoever gets it has all of the lifetime. A start may then ask for a shorter lifetime too. A start that asks
    for one of a pool without is not served from it, since nothing would end that sandbox.
    """

    def __init__(self, backend: SandboxBackend, spec: SandboxSpec, *, size: int = 8, wait_s: float = 300.0) -> None:
        if size < 1:
            raise ConfigError(f"size of a warm pool must be at least 1, found {size!r}")
        if not wait_s > 0:
            raise ConfigError(f"wait_s of a warm pool must be greater than 0, found {wait_s!r}")
        self._backend = backend
        self._spec = spec
        self._size = size
        self._wait_s = math.inf if spec.lifetime_s is None else wait_s
        longer = None if spec.lifetime_s is None else spec.lifetime_s + wait_s
        self._started_as = attrs.evolve(spec, lifetime_s=longer)
        self._waiting: list[_Waiting] = []
        self._group: TaskGroup | None = None
        self._failures = 0
        self._error: Exception | None = None
        self._announced = False

    @property
    def isolated(self) -> bool:
        """As the back end's."""
        return bool(getattr(self._backend, "isolated", False))

    @property
    def capabilities(self) -> Capabilities:
        """As the back end's.

        Raises:
            ConfigError: it does not say.
        """
        if not isinstance(self._backend, Capable):
            raise ConfigError(f"{type(self._backend).__name__} does not say what it can do")
        return self._backend.capabilities

    @property
    def ready(self) -> int:
        """How many sandboxes wait now."""
        return len(self._waiting)

    @property
    def error(self) -> Exception | None:
        """Why the last start ahead of time failed; None once one has succeeded. Each is logged, too."""
        return self._error

    def available(self) -> str | None:
        """As the back end's; None where it does not say."""
        ask = getattr(self._backend, "available", None)
        return None if ask is None else ask()

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise InvariantError("a warm pool was entered twice")
        if isinstance(self._backend, Capable):
            self._backend.capabilities.check(self._spec, "warm")
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        turn = anyio.Lock()
        for _ in range(self._size):
            group.start_soon(self._keep_one, turn)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        group.cancel_scope.cancel()
        try:
            await group.__aexit__(None, None, None)
        finally:
            left, self._waiting = self._waiting, []
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as closing:
                    for one in left:
                        closing.start_soon(_close, one.sandbox)

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        """A started sandbox: one that waited, where there is one for `spec`.

        Raises:
            SandboxError: none waited and none could be started.
        Cancellation: nothing is left behind; one that was about to be handed out goes on waiting.
        """
        while (one := self._fitting(spec)) is not None:
            one.claimed = True
            alive = False
            try:
                with anyio.move_on_after(ALIVE_S):
                    alive = await one.sandbox.alive()
            except Exception as error:
                LOG.warning("a sandbox that waited does not answer: %s", error)
            finally:
                one.claimed = False
            if one not in self._waiting:  # the pool was left, or its time was over
                continue
            if alive:
                self._waiting.remove(one)
                one.gone.set()
                return one.sandbox
            one.until = -math.inf
            one.gone.set()
        return await self._backend.start(spec)

    def _fitting(self, spec: SandboxSpec) -> _Waiting | None:
        """The sandbox that has waited longest and can stand for `spec`."""
        if attrs.evolve(spec, lifetime_s=self._spec.lifetime_s) != self._spec:
            return None
        if spec.lifetime_s is not None and self._spec.lifetime_s is None:
            if not self._announced:
                self._announced = True
                LOG.warning(
                    "a warm pool is of no use: its sandboxes have no lifetime_s, and one of %.0f s was asked for; "
                    "give its spec the longest that you need",
                    spec.lifetime_s,
                )
            return None
        end = anyio.current_time() + (spec.lifetime_s or self._spec.lifetime_s or 0.0)
        return next((one for one in self._waiting if not one.claimed and one.until >= end), None)

    async def _keep_one(self, turn: anyio.Lock) -> None:
        """Start a sandbox, let it wait, close it if nobody wanted it in time, and again."""
        while True:
            begun = anyio.current_time()
            sandbox = await self._start_one(turn)
            if sandbox is None:
                continue
            lifetime_s = self._started_as.lifetime_s
            one = _Waiting(sandbox, math.inf if lifetime_s is None else begun + lifetime_s)
            self._waiting.append(one)
            with anyio.move_on_at(begun + self._wait_s):
                await one.gone.wait()
            if one in self._waiting:
                self._waiting.remove(one)
                await _close(sandbox)

    async def _start_one(self, turn: anyio.Lock) -> Sandbox | None:
        """One try. After a failure they are made one at a time, at growing distances."""
        if self._failures:
            async with turn:
                if self._failures:
                    await anyio.sleep(min(BACKOFF_S * 2.0 ** min(self._failures, 20), LONGEST_BACKOFF_S))
                    return await self._try_start()
        return await self._try_start()

    async def _try_start(self) -> Sandbox | None:
        try:
            sandbox = await self._backend.start(self._started_as)
        except Exception as error:
            self._failures += 1
            self._error = error
            LOG.warning("a sandbox could not be started ahead of time (failure %d): %s", self._failures, error)
            return None
        self._failures = 0
        self._error = None
        return sandbox


async def _close(sandbox: Sandbox) -> None:
    with anyio.CancelScope(shield=True):
        try:
            await sandbox.close()
        except Exception:
            LOG.exception("a sandbox that waited could not be closed")
