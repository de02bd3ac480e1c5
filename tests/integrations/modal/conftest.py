"""Modal's client, pointed at a server of ours that checks every call and runs the programs."""

import os
import shutil
from collections.abc import Iterator

import modal
import pytest

from tests.integrations.modal.fake_modal import TOKEN_ID, TOKEN_SECRET, FakeModal


@pytest.fixture
def anyio_backend() -> str:
    """Modal's client runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def _cloud() -> Iterator[FakeModal]:
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("bubblewrap is not installed")
    cloud = FakeModal()
    settings = {"MODAL_SERVER_URL": cloud.url, "MODAL_TOKEN_ID": TOKEN_ID, "MODAL_TOKEN_SECRET": TOKEN_SECRET}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    yield cloud
    modal.Client.from_env().close()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
    cloud.close()


@pytest.fixture
def cloud(
    _cloud: FakeModal, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeModal]:
    """The cloud, with no sandbox left of another test, and a registry of this test's own."""
    if "AGENTKIT_STATE" not in os.environ:  # a suite may have one already
        monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path_factory.mktemp("registry")))
    _cloud.faults.clear()
    _cloud.calls.clear()
    yield _cloud
    assert _cloud.complaints == []
    left = [box.name for box in _cloud.live()]
    for box in _cloud.live():
        _cloud.end(box, 5)
    assert left == []
