"""What Modal's back end does where Modal fails, and what it asks for."""

from pathlib import Path

import anyio
import modal
import pytest
from agentkit_modal import ModalBackend
from grpclib import Status

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import Allow, Limits, SandboxSpec
from agentkit.sandbox.registry import Registry
from tests.integrations.modal.fake_modal import RESULT, TOKEN_SECRET, FakeModal, Fault

pytestmark = pytest.mark.slow


def _backend() -> ModalBackend:
    return ModalBackend(starts_per_s=1000)


async def test_what_is_asked_for(cloud: FakeModal) -> None:
    spec = SandboxSpec(
        image="registry.example.org/task:7",
        limits=Limits(cpus=1.5, memory_bytes=512 * 2**20),
        lifetime_s=90.5,
        labels={"run": "seven"},
        env={"TOKEN": "hunter2"},
    )
    sandbox = await _backend().start(spec)
    box = cloud.live()[0]
    entry = next(iter(Registry().entries()))
    written = "".join(path.read_text() for path in Path(Registry().directory).glob("*.json"))
    await sandbox.close()
    asked = box.definition
    assert asked.timeout_secs == 91
    assert (asked.resources.milli_cpu, asked.resources.milli_cpu_max) == (1500, 1500)
    assert (asked.resources.memory_mb, asked.resources.memory_mb_max) == (512, 512)
    assert asked.network_access.network_access_type == asked.network_access.BLOCKED
    assert "FROM registry.example.org/task:7" in cloud.images[asked.image_id]
    assert (box.tags["run"], box.tags["agentkit-owner"]) == ("seven", entry.owner)
    assert (entry.name, entry.data["id"]) == (box.name, box.id)
    assert b"hunter2" not in asked.SerializeToString(), "the environment of commands is not the provider's to know"
    assert TOKEN_SECRET not in written
    assert TOKEN_SECRET not in repr(vars(sandbox))
    assert list(Registry().entries()) == []


async def test_an_image_object_stands_for_a_spec_without_one(cloud: FakeModal) -> None:
    image = modal.Image.debian_slim().run_commands("echo mine")
    sandbox = await ModalBackend(modal_image=image, starts_per_s=1000).start(SandboxSpec(network="host"))
    asked = cloud.live()[0].definition
    await sandbox.close()
    assert "RUN echo mine" in cloud.images[asked.image_id]
    assert asked.network_access.network_access_type == asked.network_access.OPEN


async def test_a_network_of_some_hosts(cloud: FakeModal) -> None:
    spec = SandboxSpec(network=Allow(("packages.example.com", "*.example.org", "10.1.2.3")))
    sandbox = await _backend().start(spec)
    access = cloud.live()[0].definition.network_access
    await sandbox.close()
    assert access.network_access_type == access.ALLOWLIST
    assert list(access.allowed_domains) == ["packages.example.com", "*.example.org"]
    assert list(access.allowed_cidrs) == ["10.1.2.3/32"]


async def test_a_lost_answer_makes_one_sandbox_and_it_is_found(cloud: FakeModal) -> None:
    cloud.faults["SandboxCreateV2"] = [Fault(after=True)]
    sandbox = await _backend().start(SandboxSpec())
    assert len(cloud.live()) == 1
    assert (await sandbox.run("echo on")).text == "on\n"
    await sandbox.close()


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(Status.RESOURCE_EXHAUSTED, True), (Status.INVALID_ARGUMENT, False)],
)
async def test_only_what_may_pass_is_retryable(cloud: FakeModal, status: Status, retryable: bool) -> None:
    cloud.faults["SandboxCreateV2"] = [Fault(status, times=100)]
    with pytest.raises(SandboxError) as caught:
        await _backend().start(SandboxSpec())
    assert caught.value.retryable is retryable
    assert list(Registry().entries()) == []


async def test_an_error_after_the_work_leaves_no_sandbox(cloud: FakeModal) -> None:
    cloud.faults["SandboxCreateV2"] = [Fault(Status.INTERNAL, after=True, times=1), Fault(Status.DATA_LOSS, times=100)]
    with pytest.raises(SandboxError):
        await _backend().start(SandboxSpec())
    assert cloud.live() == []
    assert list(Registry().entries()) == []


async def test_refused_credentials_are_the_callers_to_mend(cloud: FakeModal) -> None:
    cloud.faults["SandboxCreateV2"] = [Fault(Status.PERMISSION_DENIED)]
    with pytest.raises(ConfigError, match="MODAL_TOKEN_ID") as caught:
        await _backend().start(SandboxSpec())
    assert TOKEN_SECRET not in str(caught.value)


async def test_a_create_cancelled_on_its_way_is_found_and_terminated(cloud: FakeModal) -> None:
    backend = _backend()
    await (await backend.start(SandboxSpec())).close()
    cloud.faults["SandboxCreateV2"] = [Fault(Status.OK, after=True, linger_s=5.0)]
    with anyio.move_on_after(0.7) as scope:
        await backend.start(SandboxSpec())
    assert scope.cancelled_caught
    assert len(cloud.boxes) >= 2
    assert cloud.live() == []
    assert list(Registry().entries()) == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [(RESULT.GENERIC_STATUS_TIMEOUT, "lifetime"), (RESULT.GENERIC_STATUS_TERMINATED, "terminated")],
)
async def test_a_sandbox_that_ended_is_dead_and_says_why(cloud: FakeModal, status: int, reason: str) -> None:
    sandbox = await _backend().start(SandboxSpec())
    box = cloud.live()[0]
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with pytest.raises(SandboxDead, match=reason):
                await sandbox.run("sleep 1000")

        group.start_soon(run)
        await anyio.sleep(0.3)
        await anyio.to_thread.run_sync(cloud.end, box, status)
    assert not await sandbox.alive()
    with pytest.raises(SandboxDead, match=reason):
        await sandbox.exec(["true"])
    await sandbox.close()
    assert list(Registry().entries()) == []


async def test_an_entry_without_an_id_is_removed_by_its_name(cloud: FakeModal) -> None:
    sandbox = await _backend().start(SandboxSpec())
    entry = next(iter(Registry().entries()))
    by_name = Registry().add("modal", entry.name, data={"app": "agentkit", "environment": ""})
    await ModalBackend.remove(by_name)
    assert cloud.live() == []
    await ModalBackend.remove(by_name)
    await ModalBackend.remove(entry)
    await sandbox.close()


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.INVALID_ARGUMENT])
async def test_what_cannot_be_terminated_stays_registered(
    cloud: FakeModal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: Status
) -> None:
    monkeypatch.setattr("agentkit_modal.backend.END_S", 0.3)
    sandbox = await _backend().start(SandboxSpec())
    box = cloud.live()[0]
    cloud.faults["SandboxTerminateV2"] = [Fault(status, times=1000)]
    await sandbox.close()
    assert "stays registered" in caplog.text
    assert [entry.name for entry in Registry().entries()] == [box.name]
    cloud.faults.clear()
    await ModalBackend.remove(next(iter(Registry().entries())))
    assert cloud.live() == []


async def test_what_it_cannot_give_is_refused(cloud: FakeModal, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, match in (
        (SandboxSpec(lifetime_s=1e6), "lifetime_s"),
        (SandboxSpec(limits=Limits(processes=5)), "processes"),
        (SandboxSpec(rootfs="/"), "rootfs"),
    ):
        with pytest.raises(ConfigError, match=match):
            await _backend().start(spec)
    assert cloud.calls == []
    assert _backend().available() is None
    with pytest.raises(ConfigError, match="starts_per_s"):
        ModalBackend(starts_per_s=0)


def test_trio_is_refused() -> None:
    with pytest.raises(ConfigError, match="asyncio"):
        anyio.run(ModalBackend().start, SandboxSpec(), backend="trio")
