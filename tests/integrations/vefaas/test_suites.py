"""The batteries of every back end, over veFaaS's API."""

import os
from typing import Any

import pytest
from agentkit_vefaas import VefaasBackend

from agentkit.protocols import SandboxSpec
from agentkit.sandbox.leaks import owner
from agentkit.sandbox.registry import Registry
from agentkit.testing.sandboxes import ConformanceSuite, LeakSuite
from agentkit.testing.sandboxes.leaks import Leftovers
from tests.integrations.vefaas.fake_vefaas import FakeVefaas

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def _spec(**changes: Any) -> SandboxSpec:
    """The fake cloud's own sandboxes must be told where a directory can be made."""
    labels = {"cwd": changes["cwd"]} if "cwd" in changes else {}
    return SandboxSpec(**{"image": "registry.example.org/debian:12", "labels": labels, "network": "host", **changes})


class TestConformance(ConformanceSuite):
    loops = ("asyncio",)
    slack_s = 5.0

    def spec(self, **changes: Any) -> SandboxSpec:
        return _spec(**changes)

    @pytest.fixture
    def backend(self, cloud: FakeVefaas) -> VefaasBackend:
        return VefaasBackend(endpoint=cloud.url, starts_per_s=1000)


class TestLeaks(LeakSuite):
    loops = ("asyncio",)
    slack_s = 6.0
    max_awaits = 3
    kills = 1
    many = 6

    def spec(self, **changes: Any) -> SandboxSpec:
        return _spec(**changes)

    @pytest.fixture
    def backend(self, cloud: FakeVefaas) -> VefaasBackend:
        return VefaasBackend(endpoint=cloud.url, starts_per_s=1000)

    @pytest.fixture
    def recipe(self, cloud: FakeVefaas) -> str:
        return (
            "from agentkit.protocols import SandboxSpec\nfrom agentkit_vefaas import VefaasBackend\n"
            f"backend = VefaasBackend(endpoint={cloud.url!r}, starts_per_s=1000)\n"
            "spec = SandboxSpec(image='registry.example.org/debian:12', network='host')\n"
        )

    @pytest.fixture
    def leftovers(self, cloud: FakeVefaas, mark: str, state: object) -> Leftovers:
        """Sandboxes of the cloud, entries, and processes with the mark; what the cloud itself runs is not ours."""
        marked = f"sleep\0{mark}".encode()

        def left() -> list[str]:
            found = [f"sandbox {box.id}" for box in cloud.live()]
            found += [f"entry {entry.name}" for entry in Registry().entries() if entry.owner == owner()]
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        if file.read().startswith(marked):
                            found.append(f"process {pid}")
                except OSError:
                    pass
            return found

        return left
