"""Both back ends pass the suites of `agentkit.testing.sandboxes`, and what else holds for them."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentkit.errors import ConfigError
from agentkit.protocols import SandboxBackend, SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend, collect, default_backend
from agentkit.testing.sandboxes import BoundsSuite, ConformanceSuite, LeakSuite, SecuritySuite, Traces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class TestConformance(ConformanceSuite):
    """`backend` comes from conftest: bwrap, then host."""


class TestSecurity(SecuritySuite):
    @pytest.fixture
    def backend(self, bwrap: BwrapBackend) -> SandboxBackend:
        return bwrap  # host isolates nothing


class TestBounds(BoundsSuite):
    pass


class TestLeaks(LeakSuite):
    @pytest.fixture
    def leftovers(self, backend: SandboxBackend, state: Path, mark: str, scratch: Path) -> Callable[[], list[str]]:
        return Traces(mark, scratch).left

    @pytest.fixture
    def collect(self, scratch: Path) -> Callable[[], Awaitable[object]]:
        return lambda: collect(directory=scratch)

    @pytest.fixture
    def recipe(self, backend: SandboxBackend, scratch: Path) -> str:
        arguments = f"directory=Path({str(scratch)!r})" if isinstance(backend, HostBackend) else ""
        name = type(backend).__name__
        return f"from pathlib import Path\nfrom agentkit.sandbox import {name}\nbackend = {name}({arguments})"


def test_the_default_is_isolated_or_asked_for() -> None:
    broken = BwrapBackend(bwrap="no-such-bwrap")
    assert "no-such-bwrap" in (broken.available() or "")
    backend = default_backend(allow_host=True)
    assert isinstance(backend, BwrapBackend if BwrapBackend().available() is None else HostBackend)


def test_no_host_back_end_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="bubblewrap"):
        default_backend()
    assert isinstance(default_backend(allow_host=True), HostBackend)


@pytest.mark.anyio
async def test_the_host_back_end_says_so(scratch: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = HostBackend(directory=scratch)
    for _ in range(2):
        await (await backend.start(SandboxSpec())).close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "NO ISOLATION" in caplog.text
