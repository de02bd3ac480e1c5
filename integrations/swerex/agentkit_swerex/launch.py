"""What every kind of deployment gives: a server that runs, and the means to know its end and to bring it about."""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import anyio
from anyio import to_thread
from attrs import field, frozen

from agentkit.errors import ConfigError, SandboxError
from agentkit.extras import require
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.embedded import LOG
from agentkit.sandbox.registry import Entry
from agentkit_swerex.rex import Rex

Note = Callable[..., None]
"""Writes down, as keyword arguments, what is known of a thing only now."""


@frozen
class Address:
    """Where a server is, and what it wants to be told."""

    url: str
    token: str = field(repr=False)
    headers: Mapping[str, str] = field(factory=dict, repr=False)


class Launched(Protocol):
    """A server that was started, or found."""

    @property
    def address(self) -> Address:
        """How to speak to it."""
        ...

    async def ended(self) -> str | None:
        """Why it cannot answer any more, or None where it may. Cancellation: nothing happens."""
        ...

    async def remove(self) -> None:
        """Remove it without asking it. Safe to call twice.

        Raises:
            SandboxError: it may still be there.
        Cancellation: it may still be there.
        """
        ...


class Deployment(Protocol):
    """A kind of SWE-ReX deployment. Made from the options of SWE-ReX's configuration, without the type."""

    kind: ClassVar[str]
    isolated: ClassVar[bool]
    limits: ClassVar[frozenset[str]]
    has_image: ClassVar[bool]
    """Whether `SandboxSpec.image` can be followed."""
    is_ours: ClassVar[bool]
    """Whether the server is one sandbox's alone, and ends with it."""
    outlives: ClassVar[bool]
    """Whether what is launched outlives a killed process of ours, and so must be registered, and end by itself."""

    @property
    def startup_s(self) -> float:
        """How long a server may take to answer."""
        ...

    def available(self) -> str | None:
        """Why it cannot run here, or None. Blocks, shortly."""
        ...

    async def launch(self, name: str, spec: SandboxSpec, note: Note) -> Launched:
        """A server for one sandbox, on its way up.

        Raises:
            SandboxError: there is none.
        Cancellation: nothing is left; where that is not known, `note(left="maybe")` has said so.
        """
        ...

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Remove what a killed process launched. Raises as `Launched.remove`."""
        ...


async def wait_alive(rex: Rex, launched: Launched, *, within_s: float) -> None:
    """Wait until the server answers.

    SWE-ReX's own wait sleeps in the event loop; ten containers started at a time so never come up.

    Raises:
        SandboxError: it ended, or did not answer within `within_s` seconds.
    Cancellation: nothing happens.
    """
    gave_up = time.monotonic() + within_s
    pause_s = 0.02
    while not await rex.is_alive(timeout_s=min(5.0, max(0.1, within_s))):
        why = await launched.ended()
        if why is not None:
            raise SandboxError(f"the SWE-ReX server did not start: {why}", retryable=True)
        if time.monotonic() > gave_up:
            raise SandboxError(f"the SWE-ReX server at {rex.url} did not answer within {within_s:g} s", retryable=True)
        await anyio.sleep(pause_s)
        pause_s = min(0.25, pause_s * 1.5)


def configured(name: str, options: Mapping[str, object]) -> Any:
    """SWE-ReX's own configuration `name` with `options`.

    Raises:
        ConfigError: an option is unknown or has a wrong value; values, which may be secret, are not shown.
    """
    config = getattr(require("swerex.deployment.config", extra="swerex", purpose="a swerex sandbox"), name)
    pydantic = require("pydantic", extra="swerex", purpose="a swerex sandbox")
    try:
        return config(**options)
    except pydantic.ValidationError as error:
        found = [f"deployment.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ConfigError("; ".join(found)) from None


class Starting:
    """A deployment's own start, in a thread: most of them run programs or wait for answers in what is called async."""

    def __init__(self) -> None:
        self.given_up = threading.Event()
        """Nobody waits for it any more: it had better not make anything now."""
        self.done = threading.Event()

    async def run(self, start: Callable[[], Any]) -> None:
        """Call `start`, and run the coroutine that it may return. Cancellation: it goes on, `given_up` is set."""

        def work() -> None:
            try:
                made = start()
                if inspect.iscoroutine(made):
                    asyncio.run(made)
            finally:
                self.done.set()

        try:
            await to_thread.run_sync(work, abandon_on_cancel=True)
        except BaseException:
            self.given_up.set()
            raise

    async def settle(self, *, within_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the start has ended or `until` holds; False where neither came. Cancellation: shielded."""
        with anyio.move_on_after(within_s, shield=True):
            while not (self.done.is_set() or until()):  # noqa: ASYNC110  # a thread's event
                await anyio.sleep(0.01)
            return True
        return False


def hushed(deployment: Any) -> Any:
    """`deployment`, whose log says only what went wrong: commands are in it otherwise, with the token."""
    deployment.logger = logging.Logger("agentkit.sandbox.swerex", logging.WARNING)
    deployment.logger.parent = LOG
    return deployment


def quiet(cls: type[Any]) -> type[Any]:
    """A SWE-ReX deployment class without what it does behind one's back.

    Its `__del__` starts `stop()` as a task on whatever loop runs, `stop()` asks the server first, and waiting for the
    server blocks the loop: all three are ours to do.
    """

    async def at_once(*_: object, **__: object) -> None:
        return None

    def nothing(_: object) -> None:
        return None

    return type(f"Quiet{cls.__name__}", (cls,), {"__del__": nothing, "_wait_until_alive": at_once})
