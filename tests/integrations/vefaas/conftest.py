"""The back end, pointed at a server of ours that checks every call and runs the sandboxes."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.integrations.vefaas.fake_vefaas import ACCESS, FUNCTION, SECRET, FakeVefaas


@pytest.fixture
def anyio_backend() -> str:
    """aiohttp runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def _cloud() -> Iterator[FakeVefaas]:
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("bubblewrap is not installed")
    cloud = FakeVefaas()
    yield cloud
    cloud.close()


@pytest.fixture
def cloud(
    _cloud: FakeVefaas, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeVefaas]:
    """The cloud, with no sandbox left of another test, and a registry of this test's own."""
    if "AGENTKIT_STATE" not in os.environ:  # a suite may have one already
        monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path_factory.mktemp("registry")))
    monkeypatch.setenv("VOLCENGINE_ACCESS_KEY", ACCESS)
    monkeypatch.setenv("VOLCENGINE_SECRET_KEY", SECRET)
    monkeypatch.setenv("VEFAAS_FUNCTION_ID", FUNCTION)
    monkeypatch.setenv("VEFAAS_FUNCTION_ROUTE", f"{_cloud.url}/route")
    _cloud.faults.clear()
    _cloud.calls.clear()
    yield _cloud
    assert _cloud.complaints == []
    left = [box.id for box in _cloud.live()]
    for box in _cloud.live():
        _cloud.end(box, "Terminated")
    assert left == []
