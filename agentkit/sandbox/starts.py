"""Starting sandboxes: how many at a time, and what is done about a start that failed."""

import random

import anyio
from anyio.lowlevel import RunVar
from attrs import frozen

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox import Sandbox, SandboxBackend
from agentkit.protocols.sandbox_spec import SandboxSpec


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


@frozen(kw_only=True)
class StartPolicy:
    """How often a start is tried, and how long is waited in between.

    The n-th wait is drawn from [0, `first_wait_s` * 2^(n-1)], at most `longest_wait_s`: those who failed together do
    not come back together.
    """

    attempts: int = 3
    first_wait_s: float = 1.0
    longest_wait_s: float = 20.0

    def __attrs_post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"starts.attempts must be at least 1, found {self.attempts!r}")
        for name in ("first_wait_s", "longest_wait_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"starts.{name} must be at least 0, found {getattr(self, name)!r}")

    def wait_s(self, failed: int) -> float:
        """Seconds to wait after the `failed`-th failure."""
        return random.uniform(0, min(self.longest_wait_s, self.first_wait_s * 2 ** min(failed - 1, 30)))


async def start_sandbox(
    backend: SandboxBackend,
    spec: SandboxSpec,
    policy: StartPolicy = StartPolicy(),
) -> Sandbox:
    """A started sandbox; a start that failed for now is tried again, as often and as late as the scope around allows.

    Raises:
        ConfigError: the back end cannot give what `spec` asks for.
        SandboxError: it could not be started: for good, or in all attempts, or there is no time left for another one.
    Cancellation: nothing is left behind.
    """
    failed = 0
    while True:
        try:
            return await backend.start(spec)
        except SandboxError as error:
            failed += 1
            if not error.retryable or failed >= policy.attempts:
                raise
            wait_s = policy.wait_s(failed)
            if anyio.current_time() + wait_s >= anyio.current_effective_deadline():
                raise  # the reason says more than a timeout would
        await anyio.sleep(wait_s)
