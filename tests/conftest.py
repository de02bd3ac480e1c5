"""Both loops on virtual time for every async test; real time for those marked `slow`."""

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from agentkit.testing import virtual_asyncio, virtual_trio

pytest_plugins = ["tests.vocabularies.plugin"]

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("AGENTKIT_HYPOTHESIS", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """Virtual time, made fresh for each test; real time where a test is marked `slow` or `servers`."""
    if any(request.node.get_closest_marker(mark) is not None for mark in ("slow", "servers")):
        return request.param
    return virtual_asyncio() if request.param == "asyncio" else virtual_trio()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """What hypothesis made up may hold lone surrogates, which a worker could not send to who started it."""
    return sendable((yield))


def sendable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(sendable, value))
    return value
