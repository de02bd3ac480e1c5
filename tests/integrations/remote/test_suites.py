"""What any back end must do, by way of a server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agentkit_remote import RemoteBackend, SandboxServer, ServerPolicy

from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend
from agentkit.testing.sandboxes import ConformanceSuite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
async def backend(bwrap: BwrapBackend, token: str, tmp_path: Path) -> AsyncIterator[RemoteBackend]:
    policy = ServerPolicy(share=(str(tmp_path),))
    async with SandboxServer(bwrap, tokens=[token], policy=policy) as server:
        backend = RemoteBackend(server.url, token=token)
        await (await backend.start(SandboxSpec())).close()  # from now on it knows what the server can do
        assert backend.capabilities == policy.narrow(bwrap.capabilities)
        yield backend


class TestConformance(ConformanceSuite):
    loops = ("asyncio",)
