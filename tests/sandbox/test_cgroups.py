"""Where control groups are made, what is written into them, and that they bind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox import BwrapBackend
from agentkit.sandbox.cgroups import Hierarchy, enforced, find_hierarchies, groups_for, reap_cgroups
from agentkit.sandbox.leaks import PREFIX, owner

MB = 1024 * 1024
EVERYTHING = Limits(cpus=0.5, memory_bytes=64 * MB, processes=20)


class Machine:
    """A /proc/self and cgroup file systems of plain directories, which the search cannot tell from real ones."""

    def __init__(self, path: Path) -> None:
        self.proc = path / "proc"
        self.proc.mkdir()
        self.point = path / "cgroup"
        self._mounts: list[str] = []

    def v1(self, controllers: str, *, root: str = "/", own: str = "/", show: str = "") -> Path:
        directory = self.point / controllers
        (directory / show).mkdir(parents=True)
        self._mounts.append(f"32 31 0:29 {root} {directory} rw,relatime shared:9 - cgroup cgroup rw,{controllers}")
        self._own(f"{len(self._mounts)}:{controllers}:{own}")
        return directory / show

    def v2(self, groups: dict[str, tuple[str, str]], *, own: str, root: str = "/") -> Path:
        """`groups` maps a group to its controllers and those that its subgroups get."""
        directory = self.point / "unified"
        for name, (controllers, passed_on) in groups.items():
            (directory / name).mkdir(parents=True, exist_ok=True)
            (directory / name / "cgroup.controllers").write_text(controllers + "\n")
            (directory / name / "cgroup.subtree_control").write_text(passed_on + "\n")
            (directory / name / "cgroup.procs").touch()
        self._mounts.append(f"41 31 0:38 {root} {directory} rw,relatime - cgroup2 cgroup2 rw")
        self._own(f"0::{own}")
        return directory

    def _own(self, line: str) -> None:
        (self.proc / "mountinfo").write_text("\n".join(["22 1 8:1 / / rw - ext4 /dev/vda rw", *self._mounts]))
        with (self.proc / "cgroup").open("a") as file:
            file.write(f"{line}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_groups_of_v1_are_made_below_our_own(machine: Machine) -> None:
    cpu = machine.v1("cpu,cpuacct")
    memory = machine.v1("memory", own="/job/7", show="job/7")
    found = find_hierarchies(machine.proc)
    assert found == (Hierarchy(cpu, 1, frozenset({"cpu"})), Hierarchy(memory, 1, frozenset({"memory"})))
    assert enforced(found) == {"cpus", "memory_bytes"}
    assert groups_for("me-1", EVERYTHING, found) == [
        {
            "path": f"{cpu}/agentkit-me-1",
            "set": [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "50000")],
        },
        {
            "path": f"{memory}/agentkit-me-1",
            "set": [("memory.limit_in_bytes", str(64 * MB)), ("?memory.memsw.limit_in_bytes", str(64 * MB))],
        },
    ]
    assert groups_for("me-2", Limits(), found) == []
    assert [path.name for path in memory.iterdir()] == []


def test_a_container_sees_its_own_part_alone(machine: Machine) -> None:
    directory = machine.v1("pids", root="/docker/ab", own="/docker/ab/inner", show="inner")
    other = machine.v1("memory", root="/docker/ab", own="/elsewhere")
    assert [hierarchy.directory for hierarchy in find_hierarchies(machine.proc)] == [directory, other]


def test_a_group_of_v2_is_made_where_its_controllers_are_given(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = machine.v2(
        {
            "": ("cpu memory pids", "cpu memory pids"),
            "slice": ("cpu memory pids io", "memory pids cpu"),
            "slice/ours": ("cpu memory pids", ""),
        },
        own="/slice/ours",
    )
    monkeypatch.setattr(Path, "write_text", _busy)  # ours holds processes
    found = find_hierarchies(machine.proc)
    assert found == (Hierarchy(directory / "slice", 2, frozenset({"cpu", "memory", "pids"})),)
    assert enforced(found) == {"cpus", "memory_bytes", "processes"}
    (group,) = groups_for("me-1", EVERYTHING, found)
    assert group["set"] == [
        ("memory.max", str(64 * MB)),
        ("?memory.swap.max", "0"),
        ("pids.max", "24"),
        ("cpu.max", "50000 100000"),
    ]


def test_the_group_of_v2_that_gives_most_is_taken(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = machine.v2(
        {"": ("cpu memory pids", "cpu memory pids"), "a": ("memory pids", "memory"), "a/b": ("memory", "")},
        own="/a/b",
    )
    monkeypatch.setattr(Path, "write_text", _busy)
    found = find_hierarchies(machine.proc)
    assert found == (Hierarchy(directory, 2, frozenset({"cpu", "memory", "pids"})),)


def _busy(path: Path, text: str) -> int:
    raise OSError(16, "Device or resource busy", str(path))


def test_controllers_are_asked_for_where_a_group_may_pass_them_on(machine: Machine) -> None:
    directory = machine.v2({"": ("cpu memory pids", ""), "ours": ("", "")}, own="/ours")
    find_hierarchies(machine.proc)
    assert (directory / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_v1_comes_before_v2_where_both_are(machine: Machine) -> None:
    machine.v1("memory")
    machine.v2({"": ("memory pids", "memory pids")}, own="/")
    found = find_hierarchies(machine.proc)
    assert [(one.version, sorted(one.controllers)) for one in found] == [(1, ["memory"]), (2, ["pids"])]


def test_without_control_groups_nothing_is_promised(tmp_path: Path) -> None:
    assert find_hierarchies(tmp_path) == ()
    assert enforced(()) == frozenset()


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_in_proc_is_read(tmp_path_factory: pytest.TempPathFactory, mountinfo: str, cgroup: str) -> None:
    proc = tmp_path_factory.mktemp("proc")
    (proc / "mountinfo").write_text(f"32 31 0:29 / {proc} rw - cgroup cgroup rw,pids\n{mountinfo}", "utf-8", "replace")
    (proc / "cgroup").write_text(f"{cgroup}\n8:pids:/", "utf-8", "replace")
    assert enforced(find_hierarchies(proc)) <= {"cpus", "memory_bytes", "processes"}


def test_only_groups_of_the_dead_are_removed(tmp_path: Path) -> None:
    boot, pid, started = owner().split(".")
    dead = tmp_path / f"{PREFIX}{boot}.{pid}.{int(started) - 1}-3"  # our pid, but of an earlier process
    kept = [tmp_path / f"{PREFIX}{owner()}-3", tmp_path / "system.slice", tmp_path / f"{PREFIX}other"]
    for path in (dead, *kept):
        path.mkdir()
    assert reap_cgroups((Hierarchy(tmp_path, 1, frozenset({"pids"})),)) == (str(dead),)
    assert not dead.exists()
    assert all(path.exists() for path in kept)


JOIN = """
import os, sys
sys.path.insert(0, sys.argv[1])
import _spawner_confine as confine
groups = [{"path": sys.argv[2], "set": []}]
confine.make_groups(groups)
if os.fork() == 0:
    confine.join_groups(groups)
    print(open("/proc/self/cgroup").read(), flush=True)
    os._exit(len(confine.remove_groups(groups)))
print("busy", os.waitstatus_to_exitcode(os.wait()[1]))
print("left", len(confine.remove_groups(groups)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_groups_are_made_joined_and_removed(kind: str, tmp_path: Path) -> None:
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [Path(words[4]) for words in lines if words[words.index("-") + 1] == kind]
    point = next((point for point in points if os.access(point, os.W_OK)), None)
    if point is None:
        pytest.skip(f"there is no writable {kind}")
    name = f"{PREFIX}{owner()}-test"
    script = tmp_path / "join.py"
    script.write_text(JOIN)
    beside = str(Path(__file__).parents[2] / "agentkit" / "sandbox")
    command = [sys.executable, "-I", "-S", str(script), beside, str(point / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"/{name}\n" in done.stdout, done
    assert done.stdout.endswith("busy 1\nleft 0\n"), done
    assert not (point / name).exists()


def ours() -> list[Path]:
    return [path for one in find_hierarchies() for path in one.directory.glob(f"{PREFIX}{owner()}-*")]


@pytest.fixture
def limited(bwrap: BwrapBackend) -> Iterator[BwrapBackend]:
    missing = {"cpus", "memory_bytes", "processes"} - enforced(find_hierarchies())
    if missing:
        pytest.skip(f"no control groups for {sorted(missing)} can be made here")
    yield bwrap
    assert ours() == []


@pytest.mark.slow
async def test_a_command_that_takes_too_much_memory_is_killed_and_the_sandbox_lives(limited: BwrapBackend) -> None:
    spec = SandboxSpec(limits=Limits(memory_bytes=96 * MB))
    async with await limited.start(spec) as sandbox, await limited.start(spec) as other:
        await sandbox.run("echo kept > file; export STATE=kept")
        greedy = "python3 -c 'b = bytearray(400 * 1024 * 1024); print(len(b))'"
        for _ in range(3):
            assert (await sandbox.run(greedy, timeout_s=60.0)).exit_code == 137
            assert (await sandbox.exec(["bash", "-c", greedy], timeout_s=60.0)).exit_code == 137
        assert (await sandbox.run("cat file; echo $STATE")).text == "kept\nkept\n"
        assert (await other.run("echo on")).text == "on\n"
        small = await sandbox.run("python3 -c 'print(len(bytearray(20 * 1024 * 1024)))'")
        assert small.exit_code == 0


@pytest.mark.slow
async def test_files_in_memory_count_as_memory(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(memory_bytes=96 * MB))) as sandbox:
        written = await sandbox.run("! head -c 300M /dev/zero > /tmp/much && rm /tmp/much", timeout_s=60.0)
        assert written.exit_code == 0, written
        assert await sandbox.alive()
        assert (await sandbox.run("echo on")).text == "on\n"


@pytest.mark.slow
async def test_processes_are_bounded_and_those_outside_are_not(limited: BwrapBackend) -> None:
    spec = SandboxSpec(limits=Limits(processes=30))
    async with await limited.start(spec) as sandbox, await limited.start(spec) as other:
        await sandbox.run("for i in {1..60}; do sleep 60 & done; :", timeout_s=1.5)
        await sandbox.run("sleep 60 & sleep 60 & sleep 60 & :", timeout_s=1.5)
        group = next(path for path in ours() if path.parent.name == "pids" and path.name.endswith(sandbox.name))
        assert int((group / "pids.current").read_text()) <= 34
        assert (await other.run("echo $(echo on)")).text == "on\n"


@pytest.mark.slow
async def test_a_sandbox_full_of_processes_is_not_taken_for_dead(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(processes=12))) as sandbox:
        bomb = "while True:\n  try:\n    if os.fork() == 0: break\n  except OSError: time.sleep(0.01)"
        daemons = f"import os, time\n{bomb}\ntime.sleep(60)"
        with anyio.fail_after(20.0):
            await sandbox.run(f"python3 -c '{daemons}' &")
            group = next(path for path in ours() if path.parent.name == "pids" or (path / "pids.peak").exists())
            while int((group / "pids.current").read_text()) < int((group / "pids.max").read_text()):
                await anyio.sleep(0.01)
            refused = await sandbox.exec(["true"], timeout_s=5.0)
            assert refused.exit_code == 126, refused
            assert "temporarily unavailable" in refused.text
        assert await sandbox.alive()


@pytest.mark.slow
async def test_a_share_of_a_processor_is_not_exceeded(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(cpus=0.25))) as sandbox:
        began = time.monotonic()
        busy = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
        used = await sandbox.exec(["python3", "-c", busy], timeout_s=60.0)
        took = time.monotonic() - began
        assert float(used.text) < 0.25 * took + 0.2


@pytest.mark.slow
async def test_the_holder_and_what_is_entered_are_in_the_group(limited: BwrapBackend) -> None:
    async with await limited.start(SandboxSpec(limits=Limits(processes=40))) as sandbox:
        await sandbox.run("sleep 60 & (setsid sleep 60 &)")
        (group,) = ours()
        assert (
            len((group / "cgroup.procs").read_text().split()) == 7
        )  # bwrap, its init, sleep; the shell, two sleeps; one waits
        shown = (await sandbox.run("grep :pids: /proc/self/cgroup || cat /proc/self/cgroup")).text
        assert "agentkit" not in shown


@pytest.mark.slow
async def test_a_start_that_fails_leaves_no_group(limited: BwrapBackend) -> None:
    backend = BwrapBackend(bwrap="/nonexistent/bwrap")
    with pytest.raises(SandboxError, match="could not be started"):
        await backend.start(SandboxSpec(limits=EVERYTHING))
    assert ours() == []


@pytest.mark.slow
async def test_what_cannot_be_kept_is_refused(bwrap: BwrapBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.sandbox.bwrap.find_hierarchies", lambda: ())
    with pytest.raises(ConfigError, match=r"limits\.memory_bytes cannot be kept"):
        await BwrapBackend().start(SandboxSpec(limits=Limits(memory_bytes=64 * MB)))
    with pytest.raises(ConfigError, match=r"limits\.cpus cannot be kept"):
        await BwrapBackend().start(SandboxSpec(limits=Limits(cpus=1)))


@pytest.mark.slow
async def test_back_ends_of_one_process_do_not_meet(limited: BwrapBackend) -> None:
    spec = SandboxSpec(limits=Limits(processes=20))
    async with await limited.start(spec), await BwrapBackend().start(spec):
        assert len({path.name for path in ours()}) == 2


HOST = """
import anyio, sys
from agentkit.protocols import SandboxSpec
from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox import BwrapBackend

async def main():
    sandbox = await BwrapBackend().start(SandboxSpec(limits=Limits(processes=20, memory_bytes=2**27)))
    await sandbox.run("sleep 60 &")
    print(sandbox.name, sandbox._place.spawner.pid, flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("spawner_too", [False, True], ids=["host-killed", "spawner-killed-too"])
def test_groups_of_a_killed_host_go(limited: BwrapBackend, spawner_too: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        name, spawner = host.stdout.readline().split()
        groups = [one.directory / f"{PREFIX}{name}" for one in find_hierarchies()]
        groups = [group for group in groups if group.exists()]
        assert groups
        if spawner_too:
            os.kill(int(spawner), signal.SIGSTOP)  # so that it cannot tidy up between the two kills
        host.kill()
        if spawner_too:
            os.kill(int(spawner), signal.SIGKILL)
    deadline = time.monotonic() + 8.0
    while any(group.exists() for group in groups) and time.monotonic() < deadline:
        if spawner_too:
            reap_cgroups()
        time.sleep(0.02)
    assert not any(group.exists() for group in groups)
