"""SWE-ReX's client side runs on asyncio alone."""

import pytest

pytest.importorskip("swerex", reason="swe-rex is not installed")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
