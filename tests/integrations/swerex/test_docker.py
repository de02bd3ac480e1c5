"""SWE-ReX's docker deployment, over a real podman."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentkit_swerex import SwerexBackend
from agentkit_swerex.docker import DockerServer
from agentkit_swerex.launch import Address

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox.registry import Registry
from agentkit.testing.sandboxes import LeakSuite, SecuritySuite, Traces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def containers() -> list[str]:
    """The names of our containers that podman knows, in whatever state."""
    listed = subprocess.run(
        ["podman", "ps", "-a", "--format", "{{.Names}}"], capture_output=True, text=True, check=True, timeout=60
    )
    return [name for name in listed.stdout.split() if name.startswith("agentkit-") and f".{os.getpid()}." in name]


@pytest.fixture
def backend(podman: dict[str, Any]) -> SwerexBackend:
    return SwerexBackend(deployment=podman)


class TestLeaks(LeakSuite):
    loops = ("asyncio",)
    max_awaits = 3
    kills = 1
    many = 4
    settle_s = 15.0
    # the same code as over the local server, whose tests try them
    test_a_command_cancelled_at_any_await = None
    test_files_and_trees_cancelled_at_any_await = None

    def spec(self, **changes: Any) -> SandboxSpec:
        return SandboxSpec(**{"network": "host", **changes})

    @pytest.fixture
    def recipe(self, podman: dict[str, Any]) -> str:
        return (
            "from agentkit_swerex import SwerexBackend\n"
            "from agentkit.protocols import SandboxSpec\n"
            f"backend = SwerexBackend(deployment={podman!r})\n"
            "spec = SandboxSpec(network='host')\n"
        )

    @pytest.fixture
    def leftovers(self, backend: SwerexBackend, mark: str, state: Path) -> Callable[[], list[str]]:
        del backend, state
        before = set(_all_containers())
        traces = Traces(mark)
        return lambda: traces.left() + [name for name in _all_containers() if name not in before]


def _all_containers() -> list[str]:
    listed = subprocess.run(
        ["podman", "ps", "-a", "--filter", "label=agentkit.name", "--format", "{{.Names}} {{.Labels}}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return listed.stdout.splitlines()


async def test_a_container_of_ones_own(backend: SwerexBackend, tmp_path: Path) -> None:
    limits = Limits(cpus=1.0, memory_bytes=512 << 20, processes=200)
    spec = SandboxSpec(network="host", cwd="/testbed/a", env={"A": "b c"}, limits=limits, labels={"run": "7"})
    sandbox = await backend.start(spec)
    try:
        (name,) = containers()
        inspected = subprocess.run(["podman", "inspect", name], capture_output=True, check=True, timeout=60)
        (seen,) = json.loads(inspected.stdout)
        assert seen["Config"]["Labels"]["run"] == "7"
        assert seen["Config"]["Labels"]["agentkit.owner"] in name
        assert seen["HostConfig"]["Memory"] == 512 << 20
        assert seen["HostConfig"]["PidsLimit"] == 200
        assert {one["HostIp"] for one in seen["NetworkSettings"]["Ports"]["8000/tcp"]} == {"127.0.0.1"}

        assert (await sandbox.run("pwd; echo $A; cd /; export B=2; f() { echo fn; }")).text == "/testbed/a\nb c\n"
        assert (await sandbox.run("pwd; echo $B; f")).text == "/\n2\nfn\n"
        blob = bytes(range(256)) * 8000
        await sandbox.write("blob", blob)
        assert await sandbox.read("/testbed/a/blob") == blob
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "run").write_text("#!/bin/sh\necho ran\n")
        (tmp_path / "tree" / "run").chmod(0o755)
        await sandbox.upload(tmp_path / "tree", "/testbed/a/tree")
        assert (await sandbox.exec(["tree/run"])).text == "ran\n"
        await sandbox.download("tree", tmp_path / "back")
        assert os.access(tmp_path / "back" / "run", os.X_OK)
        timed_out = await sandbox.run("echo part; (setsid sleep 60 &); sleep 60", timeout_s=0.5)
        assert (timed_out.timed_out, timed_out.text) == (True, "part\n")
        assert (
            await sandbox.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep 60' || true")
        ).text == "0\n"
    finally:
        await sandbox.close()
    assert containers() == []
    assert list(Registry().entries()) == []


async def test_a_container_that_goes_is_dead_and_no_observation(backend: SwerexBackend) -> None:
    sandbox = await backend.start(SandboxSpec(network="host"))
    try:
        (name,) = containers()
        outcome: list[str] = []

        async def command() -> None:
            try:
                await sandbox.run("sleep 60")
            except SandboxDead as error:
                outcome.append(str(error))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(command)
                await anyio.sleep(0.5)
                await anyio.run_process(["podman", "kill", name])
        assert len(outcome) == 1
        assert "ended with exit code" in outcome[0]
        assert not await sandbox.alive()
        with pytest.raises(SandboxDead):
            await sandbox.exec(["true"])
    finally:
        await sandbox.close()
    assert list(Registry().entries()) == []


async def test_a_container_ends_at_its_lifetime_without_us(backend: SwerexBackend) -> None:
    sandbox = await backend.start(SandboxSpec(network="host", lifetime_s=2.0))
    try:
        assert len(containers()) == 1
        with anyio.fail_after(30):
            while containers():  # nobody here removes it: its guest ended the server, and podman the rest
                await anyio.sleep(0.2)
        assert not await sandbox.alive()
    finally:
        await sandbox.close()


async def test_what_a_server_logs_is_read(tmp_path: Path) -> None:
    """SWE-ReX leaves it in the pipe, which is full after some thousand requests; then the server waits for good."""
    script = "yes | head -c 1000000; head -c 300000 /dev/zero | tr '\\0' e >&2; echo the-token; exit 3"
    client = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    server = DockerServer("podman", "some-container", Address("http://127.0.0.1:1", "the-token"), client)
    with anyio.fail_after(30):
        while (why := await server.ended()) is None:
            await anyio.sleep(0.02)
    assert "exit code 3" in why
    assert "the-token" not in why
    await server._let_go()


async def test_starts_that_cannot_be(podman: dict[str, Any], backend: SwerexBackend) -> None:
    with pytest.raises(ConfigError, match="network of swerex sandboxes can be host here"):
        await backend.start(SandboxSpec())
    absent = SwerexBackend(deployment={**podman, "image": "localhost/no-such-image", "pull": "never"})
    with pytest.raises(SandboxError, match="no-such-image") as caught:
        await absent.start(SandboxSpec(network="host"))
    assert caught.value.retryable
    broken = {**podman, "docker_args": [], "startup_timeout": 20.0}  # no server in it, and nothing to install one with
    with pytest.raises(SandboxError, match="pip"):
        await SwerexBackend(deployment=broken).start(SandboxSpec(network="host"))
    assert containers() == []
    assert list(Registry().entries()) == []


class TestSecrets(SecuritySuite):
    """Of the security suite what is ours to hold; the rest is the engine's, and tried by its own back end."""

    loops = ("asyncio",)
    test_processors_are_shared = None
    test_memory_is_bounded = None
    test_a_fork_bomb_is_contained = None
    test_disk_is_bounded = None
    test_another_sandbox_is_out_of_reach = None
    test_processes_of_the_host_are_out_of_reach = None
    test_nothing_of_ours_is_open_inside = None
    test_files_of_the_host_are_out_of_reach = None
    test_no_socket_of_the_host_is_reached_by_name = None

    def spec(self, **changes: Any) -> SandboxSpec:
        return SandboxSpec(**{"network": "host", **changes})
