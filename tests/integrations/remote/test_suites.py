"""What any back end must do, by way of a server."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from agentkit_remote import RemoteBackend, SandboxServer, ServerPolicy

from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend
from agentkit.testing.sandboxes import BoundsSuite, ConformanceSuite, LeakSuite, SecuritySuite, Traces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
async def serving(bwrap: BwrapBackend, token: str, tmp_path: Path) -> AsyncIterator[SandboxServer]:
    policy = ServerPolicy(share=(str(tmp_path),), orphan_s=1.0, heartbeat_s=0.5)
    async with bwrap, SandboxServer(bwrap, tokens=[token], policy=policy) as server:
        yield server


@pytest.fixture
async def backend(serving: SandboxServer, token: str) -> RemoteBackend:
    backend = RemoteBackend(serving.url, token=token)
    await (await backend.start(SandboxSpec())).close()  # from now on it knows what the server can do
    assert not backend.capabilities.image
    return backend


class TestConformance(ConformanceSuite):
    loops = ("asyncio",)


class TestSecurity(SecuritySuite):
    loops = ("asyncio",)
    # Slow, and of bwrap, not of the way there.
    test_a_fork_bomb_is_contained = None
    test_processors_are_shared = None


class TestBounds(BoundsSuite):
    loops = ("asyncio",)
    tries = 1


class TestLeaks(LeakSuite):
    loops = ("asyncio",)
    max_awaits = 12

    @pytest.fixture
    def leftovers(
        self, backend: RemoteBackend, state: Path, mark: str, serving: SandboxServer
    ) -> Callable[[], list[str]]:
        traces = Traces(mark)

        def left() -> list[str]:
            return traces.left() + ["a sandbox of the server"] * serving.sandboxes

        return left

    @pytest.fixture
    def recipe(self, serving: SandboxServer, token: str, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("AGENTKIT_SANDBOX_TOKEN", token)  # who collects needs it as well
        return f"from agentkit_remote import RemoteBackend\nbackend = RemoteBackend({serving.url!r})"
