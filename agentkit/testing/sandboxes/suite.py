"""What the suites share: which loops, how patient, how a sandbox is started, what a back end says it can do."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import isawaitable
from typing import Any, ClassVar

import anyio

from agentkit.protocols import Sandbox, SandboxBackend, SandboxSpec
from agentkit.protocols.sandbox import Capable
from agentkit.protocols.sandbox_spec import Capabilities
from agentkit.testing.sandboxes._pytest import pytest


class SandboxSuite:
    """The part that all suites have. A subclass (or its module, or a conftest) gives the fixture `backend`.

    The class attributes say how the back end is to be treated; give others where it is slower or runs on one loop. Its
    tests take real time. Where the back end is an asynchronous context manager, each test enters it.
    """

    loops: ClassVar[tuple[str, ...]] = ("asyncio", "trio")
    """The event loops that the back end runs on."""
    slack_s: ClassVar[float] = 1.5
    """How much longer than on an idle machine a command may take, seconds."""
    concurrency: ClassVar[int] = 6
    """How many sandboxes a test may have at a time, where it wants several."""
    may_lack: ClassVar[frozenset[str]] = frozenset()
    """Programs of the shell battery (python3, pgrep) that its sandboxes may be without; their cases are left out."""

    pytestmark = pytest.mark.anyio

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()

        def anyio_backend(self: object, request: pytest.FixtureRequest) -> object:
            del self
            return request.param

        cls.anyio_backend = pytest.fixture(params=cls.loops)(anyio_backend)  # type: ignore[attr-defined]  # by name

    def spec(self, **changes: Any) -> SandboxSpec:
        """The spec of a sandbox, with `changes`. Override it where the back end must be told an image, say."""
        return SandboxSpec(**changes)

    @asynccontextmanager
    async def started(self, backend: SandboxBackend, **changes: Any) -> AsyncIterator[Sandbox]:
        """A sandbox of `spec(**changes)`, closed in the end."""
        async with opened(backend):
            sandbox = await backend.start(self.spec(**changes))
            try:
                yield sandbox
            finally:
                await sandbox.close()


@asynccontextmanager
async def opened(backend: SandboxBackend) -> AsyncIterator[SandboxBackend]:
    """`backend`, entered where it can be."""
    if isinstance(backend, AbstractAsyncContextManager):
        async with backend:
            yield backend
    else:
        yield backend


def capabilities_of(backend: SandboxBackend) -> Capabilities:
    """What `backend` says it can do; next to nothing where it does not say."""
    if isinstance(backend, Capable):
        return backend.capabilities
    return Capabilities(isolated=bool(getattr(backend, "isolated", False)))


def need(backend: SandboxBackend, claimed: bool, what: str) -> None:
    """Skip the test where `backend` does not claim to be able to do what it tests."""
    if not claimed:
        pytest.skip(f"{type(backend).__name__} does not claim {what}")


def unique_s() -> str:
    """Seconds for a `sleep` that nobody else's process has on its command line."""
    return f"{random.randrange(10**8, 10**9)}"


async def running(sandbox: Sandbox, mark: str) -> int:
    """How many processes that the sandbox can see have `mark`, one word, on their command line."""
    script = "grep -lF -f - /proc/[0-9]*/cmdline 2>/dev/null | wc -l"  # so that grep has not
    return int((await sandbox.exec(["sh", "-c", script], stdin=mark.encode(), timeout_s=30.0)).text)


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, within_s: float) -> bool:
    """Whether `condition` came to hold within `within_s` seconds."""
    with anyio.move_on_after(within_s):
        while True:
            holds = condition()
            if await holds if isawaitable(holds) else holds:
                return True
            await anyio.sleep(0.02)
    return False
