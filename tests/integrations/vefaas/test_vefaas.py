"""What veFaaS's back end does where its API fails, and what it asks for."""

import json
from pathlib import Path

import anyio
import pytest
from agentkit_vefaas import VefaasBackend
from agentkit_vefaas.backend import guest_command

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import Limits, SandboxSpec
from agentkit.sandbox.registry import Registry
from tests.integrations.vefaas.fake_vefaas import FakeVefaas, Fault

pytestmark = pytest.mark.slow
SPEC = SandboxSpec(image="registry.example.org/debian:12", network="host")


def _backend(cloud: FakeVefaas, probe: str = "") -> VefaasBackend:
    return VefaasBackend(endpoint=cloud.url, starts_per_s=1000, probe=probe)


async def test_what_is_asked_for(cloud: FakeVefaas) -> None:
    spec = SandboxSpec(
        image="registry.example.org/debian:12",
        limits=Limits(cpus=1.5, memory_bytes=512 * 2**20),
        lifetime_s=90.0,
        labels={"run": "seven"},
        env={"TOKEN": "hunter2"},
    )
    sandbox = await _backend(cloud).start(spec)
    box = cloud.live()[0]
    entry = next(iter(Registry().entries()))
    written = "".join(path.read_text() for path in Path(Registry().directory).glob("*.json"))
    await sandbox.close()
    asked = box.request
    assert (asked["CpuMilli"], asked["MemoryMB"], asked["Timeout"]) == (1500, 512, 2)
    assert asked["NetworkRules"] == {"AllowEgressAccess": False}
    assert asked["Metadata"]["run"] == "seven"
    assert asked["Metadata"]["agentkit-name"] == entry.name
    assert entry.data["id"] == box.id
    assert "hunter2" not in json.dumps(asked), "the environment of commands is not the provider's to know"
    for secret in ("c2Vj", asked["Envs"][0]["Value"]):
        assert secret not in written
    assert list(Registry().entries()) == []


async def test_a_lost_answer_leaves_no_sandbox(cloud: FakeVefaas) -> None:
    cloud.faults["CreateSandbox"] = [Fault(after=True, status=504, code="GatewayTimeout")]
    with pytest.raises(SandboxError) as caught:
        await _backend(cloud).start(SPEC)
    assert caught.value.retryable
    assert len(cloud.boxes) > 0
    assert cloud.live() == []
    assert list(Registry().entries()) == []


@pytest.mark.parametrize(
    ("fault", "retryable"),
    [(Fault(429, "FlowLimitExceeded"), True), (Fault(503, "Unavailable"), True), (Fault(400, "InvalidImage"), False)],
)
async def test_only_what_may_pass_is_retryable(cloud: FakeVefaas, fault: Fault, retryable: bool) -> None:
    cloud.faults["CreateSandbox"] = [fault]
    with pytest.raises(SandboxError) as caught:
        await _backend(cloud).start(SPEC)
    assert caught.value.retryable is retryable
    assert list(Registry().entries()) == []


async def test_wrong_credentials_are_the_callers_to_mend(
    cloud: FakeVefaas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VOLCENGINE_SECRET_KEY", "another-secret")
    with pytest.raises(ConfigError, match="VOLCENGINE_SECRET_KEY") as caught:
        await _backend(cloud).start(SPEC)
    assert "another-secret" not in str(caught.value) + caplog.text


async def test_a_gateway_that_stumbles_changes_nothing(cloud: FakeVefaas) -> None:
    sandbox = await _backend(cloud).start(SPEC)
    try:
        cloud.faults["gateway"] = [Fault(502, times=2), Fault(504, after=True, times=3)]
        result = await sandbox.run("for i in {1..2000}; do echo $i; done")
        assert result.text.split() == [str(number) for number in range(1, 2001)]
        cloud.faults.clear()
        cloud.faults |= {"give": [Fault(502, after=True, times=3)], "start": [Fault(504, after=True)]}
        blob = bytes(range(256)) * 4000
        await sandbox.write("blob", blob)
        assert await sandbox.read("blob") == blob
        assert (await sandbox.run("echo $((1 + 1)) >> once; cat once")).text == "2\n", "nothing ran twice"
    finally:
        await sandbox.close()


async def test_a_sandbox_that_ended_is_dead_and_says_why(cloud: FakeVefaas) -> None:
    sandbox = await _backend(cloud).start(SPEC)
    box = cloud.live()[0]
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                with pytest.raises(SandboxDead, match="Failed"):
                    await sandbox.run("sleep 1000")

            group.start_soon(run)
            await anyio.sleep(0.3)
            await anyio.to_thread.run_sync(cloud.end, box, "Failed")
        assert not await sandbox.alive()
        await sandbox.close()


async def test_a_network_that_was_to_be_denied_is_refused(cloud: FakeVefaas) -> None:
    spec = SandboxSpec(image="registry.example.org/debian:12")
    with pytest.raises(SandboxError, match="reached"):
        await _backend(cloud, probe=f"127.0.0.1:{cloud.port}").start(spec)
    assert cloud.live() == []
    sandbox = await _backend(cloud, probe="127.0.0.1:1").start(spec)
    await sandbox.close()


async def test_what_it_cannot_give_is_refused(cloud: FakeVefaas, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, match in (
        (SandboxSpec(network="host"), "image"),
        (SandboxSpec(image="x", network="host", lifetime_s=1e6), "lifetime_s"),
        (SandboxSpec(image="x", network="host", limits=Limits(processes=5)), "processes"),
    ):
        with pytest.raises(ConfigError, match=match):
            await _backend(cloud).start(spec)
    monkeypatch.delenv("VOLCENGINE_ACCESS_KEY")
    assert "VOLCENGINE_ACCESS_KEY" in (_backend(cloud).available() or "")
    assert cloud.calls == []


def test_trio_is_refused() -> None:
    with pytest.raises(ConfigError, match="asyncio"):
        anyio.run(VefaasBackend(function_id="f", route="http://r").start, SPEC, backend="trio")


def test_the_command_means_the_same_without_a_shell() -> None:
    command = guest_command()
    assert "\n" not in command
    assert set("$`\\!*?") & set(command) == set()
    assert command.count('"') == 2
