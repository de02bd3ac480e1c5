"""What bubblewrap keeps apart, and what a killed host process leaves."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentkit.errors import SandboxDead
from agentkit.protocols import Sandbox, SandboxSpec
from agentkit.sandbox import BwrapBackend, reap

pytestmark = pytest.mark.slow

Processes = Callable[[str], list[int]]


async def test_the_host_is_out_of_reach(bwrap: BwrapBackend, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    sandbox = await bwrap.start(SandboxSpec())
    try:
        for command in (  # none of them does harm where the isolation is broken
            f"cat {tmp_path}/secret",
            "cat /etc/shadow",
            "ls -d /etc/shadow",
            "ls -d /etc/ssh",
            "cat /etc/ssh/*",
            "ls /root/.ssh",
            "ls /var/lib",
            "test -w /usr/bin",
            "test -w /etc",
            "test -w /",
            "test -w /proc/sys/kernel/domainname",
            "test -w /proc/sys/kernel/core_pattern",
            "test -w /proc/sysrq-trigger",
            "mount -o remount,rw /usr",
            "mount -t tmpfs none /mnt",
            "chroot / true",
            "mknod node b 8 0",
            "setpriv --reuid=0 true",
        ):
            result = await sandbox.run(command, timeout_s=5.0)
            assert result.exit_code != 0, (command, result.text)
            program = await sandbox.exec(["bash", "-c", command], timeout_s=5.0)
            assert program.exit_code != 0, (command, program.text)
        for result in (
            await sandbox.run("grep -E 'Cap|NoNewPrivs' /proc/self/status"),
            await sandbox.exec(["grep", "-E", "Cap|NoNewPrivs", "/proc/self/status"]),
        ):
            values = dict(line.split(":\t") for line in result.text.splitlines())
            assert values.pop("NoNewPrivs") == "1"
            assert {int(value, 16) for value in values.values()} == {0}
        seen = (await sandbox.run("ls -d /proc/[0-9]* | wc -l")).text
        assert int(seen) < 12
        assert (await sandbox.run("whoami; hostname; echo ~")).text == "agent\nsandbox\n/home/agent\n"
        assert (await sandbox.run("ls /home /tmp /work")).text == "/home:\nagent\n\n/tmp:\n\n/work:\n"
    finally:
        await sandbox.close()


async def test_no_network_but_loopback(bwrap: BwrapBackend) -> None:
    sandbox = await bwrap.start(SandboxSpec())
    try:
        assert (await sandbox.run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).text == "lo\n"
        reached = await sandbox.run("exec 3<>/dev/tcp/192.0.2.1/80", timeout_s=3.0)
        assert "unreachable" in reached.text
    finally:
        await sandbox.close()


async def test_network_when_asked_for(bwrap: BwrapBackend) -> None:
    sandbox = await bwrap.start(SandboxSpec(network="host"))
    try:
        assert (await sandbox.run("readlink /proc/self/ns/net")).text.strip() == os.readlink("/proc/self/ns/net")
    finally:
        await sandbox.close()


async def test_the_running_python_runs_inside(bwrap: BwrapBackend) -> None:
    sandbox = await bwrap.start(SandboxSpec())
    try:
        result = await sandbox.run("python3 -c 'import sys, json, ssl, ctypes; print(sys.version_info[:2])'")
        assert result.text == f"{sys.version_info[:2]}\n"
    finally:
        await sandbox.close()


async def test_killing_everything_inside_is_survived(bwrap: BwrapBackend) -> None:
    if os.geteuid() != 0:
        pytest.skip("the holder is only out of reach where root started it")
    sandbox = await bwrap.start(SandboxSpec())
    try:
        await sandbox.run("echo kept > file; kill -9 -1", timeout_s=5.0)
        assert (await sandbox.run("cat file")).text == "kept\n"
    finally:
        await sandbox.close()


async def test_ending_a_programs_orphans_leaves_what_holds_the_sandbox(
    bwrap: BwrapBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Start times are coarse: right after the start, what holds the sandbox is as young as the program's orphans.
    monkeypatch.setattr("agentkit.sandbox.execution.boot_ticks", lambda: 0)
    sandbox = await bwrap.start(SandboxSpec())
    try:
        assert (await sandbox.exec(["sleep", "9"], timeout_s=0.0)).timed_out
        assert (await sandbox.run("echo alive")).text == "alive\n"
    finally:
        await sandbox.close()


async def test_a_fork_bomb_is_contained(bwrap: BwrapBackend, processes: Processes) -> None:
    backend = BwrapBackend(max_processes=60)
    sandbox = await backend.start(SandboxSpec())
    mark = f"sleep {random.randrange(10**6, 10**7)}"  # nobody else's processes are looked at
    try:
        result = await sandbox.run(f"for i in {{1..100}}; do {mark} & done; :", timeout_s=1.5)
        assert len(processes(mark)) < 60, result
    finally:
        await sandbox.close()
    assert processes(mark) == []


async def _outcome(sandbox: Sandbox) -> str:
    try:
        return str((await sandbox.run("sleep 5", timeout_s=5.0)).exit_code)
    except SandboxDead:
        return "dead"


async def test_a_killed_sandbox_is_dead_not_an_observation(bwrap: BwrapBackend) -> None:
    sandbox = await bwrap.start(SandboxSpec())
    try:
        os.kill(sandbox._keeper.pid, signal.SIGKILL)
        outcomes = [await _outcome(sandbox) for _ in range(2)]  # the first may still see its shell die before the rest
        assert outcomes[1] == "dead"
        assert not await sandbox.alive()
    finally:
        await sandbox.close()


async def test_a_killed_spawner_takes_its_sandboxes_and_the_next_start_gets_another(
    bwrap: BwrapBackend, processes: Processes
) -> None:
    sandbox = await bwrap.start(SandboxSpec())
    await sandbox.run("(setsid sleep 2201 &)")
    os.kill(sandbox._place.spawner.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # the place of this back end
    with pytest.raises(SandboxDead):
        await sandbox.run("sleep 5", timeout_s=5.0)
    fresh = await bwrap.start(SandboxSpec())
    try:
        assert (await fresh.run("echo again")).text == "again\n"
        _wait_for(lambda: not processes("sleep 2201"))
    finally:
        await fresh.close()
        await sandbox.close()


def _wait_for(condition: Callable[[], bool], timeout_s: float = 8.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


HOST = """
import sys, anyio
from pathlib import Path
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend

async def main():
    backend = HostBackend(directory=Path(sys.argv[2])) if sys.argv[1] == "host" else BwrapBackend()
    sandbox = await backend.start(SandboxSpec())
    await sandbox.run(f"sleep {sys.argv[4]} & (setsid env -i sleep {sys.argv[4]} &)")
    await sandbox.run(f"trap '' TERM INT HUP; nohup sleep {sys.argv[4]} >/dev/null 2>&1 &")
    print("up", flush=True)
    await sandbox.run(f"exec sleep {sys.argv[4]}")

anyio.run(main, backend=sys.argv[3])
"""


@pytest.mark.parametrize("kind", ["bwrap", "host"])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("spawner_too", [False, True], ids=["host-killed", "spawner-killed-too"])
def test_a_killed_host_leaves_nothing(
    kind: str, loop: str, spawner_too: bool, tmp_path: Path, processes: Processes
) -> None:
    script = tmp_path / "host.py"
    script.write_text(textwrap.dedent(HOST))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    mark = f"{random.randrange(10**6, 10**7)}"  # seconds to sleep: nobody else's processes are looked at
    command = [sys.executable, str(script), kind, str(scratch), loop, mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        _wait_for(lambda: len(processes(f"sleep {mark}")) >= 4)
        spawners = [
            pid
            for pid in processes("_spawner_main.py")
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(host.pid)
        ]
        assert len(spawners) == 1
        if spawner_too:
            os.kill(spawners[0], signal.SIGSTOP)  # so that it cannot tidy up between the two kills
        host.kill()
        if spawner_too:
            os.kill(spawners[0], signal.SIGKILL)
    try:
        _wait_for(lambda: processes(f"sleep {mark}") == [])
    finally:
        for pid in processes(f"sleep {mark}"):
            os.kill(pid, signal.SIGKILL)
    _wait_for(lambda: not any(pid in processes("_spawner_main.py") for pid in spawners))
    assert len(reap(scratch).directories) == (1 if kind == "host" else 0)
    assert list(scratch.iterdir()) == []
