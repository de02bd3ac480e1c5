"""Cancelled at every await, killed at any moment: nothing is left in the cloud, nor in the registry."""

import os

import pytest
from agentkit_modal import ModalBackend

from agentkit.sandbox.leaks import owner
from agentkit.sandbox.registry import Registry
from agentkit.testing.sandboxes import LeakSuite
from agentkit.testing.sandboxes.leaks import Leftovers
from tests.integrations.modal.fake_modal import FakeModal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class TestLeaks(LeakSuite):
    loops = ("asyncio",)
    slack_s = 6.0
    max_awaits = 5
    kills = 1
    many = 12

    @pytest.fixture
    def backend(self, cloud: FakeModal) -> ModalBackend:
        return ModalBackend(starts_per_s=1000)

    @pytest.fixture
    def recipe(self) -> str:
        return "from agentkit_modal import ModalBackend\nbackend = ModalBackend(starts_per_s=1000)\n"

    @pytest.fixture
    def leftovers(self, cloud: FakeModal, mark: str, state: object) -> Leftovers:
        """Sandboxes of the cloud, entries, and processes with the mark; what the cloud itself runs is not ours."""
        marked = f"sleep\0{mark}".encode()

        def left() -> list[str]:
            found = [f"sandbox {box.name}" for box in cloud.live()]
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
