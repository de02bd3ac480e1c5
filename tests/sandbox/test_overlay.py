"""Roots that can be written to, and limits of what can be written."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import Limits, SandboxSpec
from agentkit.sandbox import BwrapBackend
from agentkit.sandbox.overlay import Owner, can_overlay, lay_out, size_of
from agentkit.testing.sandboxes import ConformanceSuite, SecuritySuite

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone shifts owners")
MIB = 1024 * 1024


def listing(directory: Path) -> Mapping[str, tuple[int, int, int, bytes]]:
    """What is below a directory of the machine: mode, owner, time of change, content."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


@pytest.mark.slow
@pytest.mark.timeout(180)
class TestRootfs(ConformanceSuite, SecuritySuite):
    loops: ClassVar[tuple[str, ...]] = ("asyncio",)
    may_lack: ClassVar[frozenset[str]] = frozenset({"python3"})

    @pytest.fixture(autouse=True)
    def take(self, rootfs: Path) -> None:
        self.rootfs = str(rootfs)

    @pytest.fixture
    def backend(self) -> BwrapBackend:
        return BwrapBackend()

    def spec(self, **changes: object) -> SandboxSpec:
        return SandboxSpec(rootfs=self.rootfs, **changes)  # type: ignore[arg-type]  # the suite's fields of a spec


@pytest.mark.slow
@pytest.mark.timeout(180)
class TestOverlay(ConformanceSuite):
    loops: ClassVar[tuple[str, ...]] = ("asyncio",)

    @pytest.fixture
    def backend(self) -> BwrapBackend:
        return BwrapBackend(overlay=True)


@pytest.mark.slow
async def test_a_root_is_written_to_but_never_changed(bwrap: BwrapBackend, rootfs: Path) -> None:
    before = listing(rootfs)
    mounts = Path("/proc/self/mountinfo").read_text()
    spec = SandboxSpec(rootfs=str(rootfs))
    async with await bwrap.start(spec) as sandbox, await bwrap.start(spec) as other:
        done = await sandbox.run(
            "set -e; touch /usr/bin/new; rm -r /data/full; mv /data/a /data/moved; echo more >> /etc/passwd;"
            "chmod 700 /etc; mkdir /opt /srv; ls /data; cat /data/moved/b/c/three; id -un; echo $HOME; umask"
        )
        assert (done.exit_code, done.text) == (0, "link\nmoved\ndata/a/b/c/three\nroot\n/root\n0022\n")
        assert (await other.run("ls /data /usr/bin/new")).text.startswith("ls: cannot access '/usr/bin/new'")
        assert (await other.run("ls /data")).text == "a\nfull\nlink\n"
    assert listing(rootfs) == before
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.slow
async def test_the_machines_programs_are_written_to_but_never_changed() -> None:
    backend = BwrapBackend(overlay=True)
    async with await backend.start(SandboxSpec()) as sandbox:
        done = await sandbox.run("touch /usr/agentkit-was-here && ls /usr/agentkit-was-here; id -u")
        assert done.text == "/usr/agentkit-was-here\n0\n"
        hidden = await sandbox.run("ls -d /etc/shadow /etc/ssh /root/.ssh /var/lib /home/* /work/*", timeout_s=5.0)
        assert hidden.text.count("No such file") == 6, hidden.text
        assert (await sandbox.run("echo x > /etc/hosts && cat /etc/hosts")).text == "x\n"
        assert (await sandbox.exec(["python3", "-c", "import ssl, multiprocessing as m; m.Lock()"])).exit_code == 0
    assert not Path("/usr/agentkit-was-here").exists()
    assert Path("/etc/hosts").read_text() != "x\n"


@needs_root
@pytest.mark.slow
async def test_root_inside_is_nobody_outside(bwrap: BwrapBackend, rootfs: Path) -> None:
    async with await bwrap.start(SandboxSpec(rootfs=str(rootfs))) as sandbox:
        done = await sandbox.run("set -e; touch f; chown 7:7 f; stat -c %u:%g f; cat /proc/self/uid_map | tr -s ' '")
        owner, mapped = done.text.splitlines()
        assert (done.exit_code, owner) == (0, "7:7")
        inside, outside, many = map(int, mapped.split())
        assert inside == 0
        assert many == 65536
        assert outside >= 0x70000000
        values = dict(line.split(":\t") for line in (await sandbox.run("grep Cap /proc/self/status")).text.splitlines())
        # chown, dac_*, fowner, fsetid, kill, set*id, setpcap, net_bind_service, sys_chroot, setfcap
        assert int(values["CapEff"], 16) == int(values["CapBnd"], 16) == 0x800405FF
        for command in (
            "mount -t tmpfs none /mnt",
            "mount -o remount,rw /proc/sys",
            "mknod /tmp/disk b 254 0",
            "test -w /proc/sys/net/ipv4/ip_forward",  # none of these does harm where the isolation is broken
            "test -w /proc/sys/kernel/core_pattern",
            "touch /dev/here",
        ):
            assert (await sandbox.run(command, timeout_s=5.0)).exit_code != 0, command
        # Whatever the root file system has as sh held this sandbox from the start: it was not the machine's root.
        holder = sandbox._keeper.pid
        (init,) = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        assert os.stat(f"/proc/{init}").st_uid == outside
        await sandbox.run("echo kept > file; kill -9 -1", timeout_s=5.0)
        assert (await sandbox.run("cat file")).text == "kept\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dev", "proc"])
async def test_a_root_cannot_lead_mounts_astray(bwrap: BwrapBackend, rootfs: Path, tmp_path: Path, name: str) -> None:
    hostile = tmp_path / "hostile"
    shutil.copytree(rootfs, hostile, symlinks=True)
    (hostile / name).rmdir()
    (hostile / name).symlink_to(f"../..{tmp_path}/outside")
    with pytest.raises(SandboxError, match=f"'{name}' in the sandbox must be a directory"):
        await bwrap.start(SandboxSpec(rootfs=str(hostile)))
    assert not (tmp_path / "outside").exists()


@pytest.mark.slow
async def test_a_root_cannot_lead_files_astray(bwrap: BwrapBackend, rootfs: Path, tmp_path: Path) -> None:
    hostile, outside = tmp_path / "hostile", tmp_path / "outside"
    shutil.copytree(rootfs, hostile, symlinks=True)
    outside.mkdir()
    (outside / "resolv.conf").write_text("precious")
    (hostile / "etc/resolv.conf").symlink_to(outside / "resolv.conf")
    async with await bwrap.start(SandboxSpec(rootfs=str(hostile), network="host")) as sandbox:
        assert (await sandbox.run("cat /etc/resolv.conf")).text == Path("/etc/resolv.conf").read_text()
    assert (outside / "resolv.conf").read_text() == "precious"
    shutil.rmtree(hostile / "etc")
    (hostile / "etc").symlink_to(outside)
    with pytest.raises(SandboxError, match="'etc' in the sandbox must be a directory"):
        await bwrap.start(SandboxSpec(rootfs=str(hostile), network="host"))
    assert (outside / "resolv.conf").read_text() == "precious"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "rootfs", "overlay"])
async def test_all_that_is_written_counts_to_one_limit(rootfs: Path, kind: str) -> None:
    backend = BwrapBackend(overlay=kind == "overlay")
    limits = Limits(disk_bytes=8 * MIB)
    spec = SandboxSpec(rootfs=str(rootfs) if kind == "rootfs" else None, limits=limits)
    async with await backend.start(spec) as sandbox:
        wrote = 0
        for directory in ("/tmp", "/work", "~", "/dev/shm", "/dev", "/", "/proc", "/etc"):  # inside
            await sandbox.run(f"head -c 3M /dev/zero > {directory}/blob")
            there = await sandbox.run(f"stat -c %s {directory}/blob")
            wrote += int(there.text) if there.exit_code == 0 else 0
        assert 7 * MIB < wrote <= 8 * MIB
        assert "No space left" in (await sandbox.run("head -c 100K /dev/zero > /tmp/more")).text


@pytest.mark.slow
async def test_many_small_files_are_limited_too(bwrap: BwrapBackend) -> None:
    async with await bwrap.start(SandboxSpec(limits=Limits(disk_bytes=1 * MIB))) as sandbox:
        await sandbox.run("for i in {1..6000}; do : > /tmp/$i || break; done 2>/dev/null", timeout_s=30.0)
        assert int((await sandbox.run("ls /tmp | wc -l")).text) < 4200


@pytest.mark.slow
async def test_a_full_disk_is_no_death(bwrap: BwrapBackend) -> None:
    if "memory_bytes" not in bwrap.capabilities.limits:
        pytest.skip("no control groups for memory here")
    async with await bwrap.start(SandboxSpec(limits=Limits(memory_bytes=64 * MIB))) as sandbox:
        done = await sandbox.run("head -c 60M /dev/zero > /tmp/blob; echo $?; rm /tmp/blob; echo on")
        assert "No space left" in done.text
        assert done.text.endswith("1\non\n")


@pytest.mark.slow
async def test_a_root_that_is_none(bwrap: BwrapBackend, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rootfs must be the absolute path of a directory"):
        await bwrap.start(SandboxSpec(rootfs=str(tmp_path / "nowhere")))
    with pytest.raises(SandboxError, match="bwrap could not make a sandbox"):
        await bwrap.start(SandboxSpec(rootfs=str(tmp_path)))


ORDINARY = """
import json, os, sys, anyio
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend

async def main():
    said = {"uid": os.geteuid()}
    for kind in ("plain", "rootfs", "overlay"):
        backend = BwrapBackend(overlay=kind == "overlay")
        said[f"{kind} available"] = backend.available()
        spec = SandboxSpec(rootfs=sys.argv[1] if kind == "rootfs" else None)
        async with backend, await backend.start(spec) as sandbox:
            await sandbox.run("echo kept > /tmp/file; rm -r /data/full; mkdir /usr/local/made; kill -9 $$")
            said[kind] = (await sandbox.run("id -u; ls /usr/local")).text.split()
            async with await sandbox.fork() as other:
                said[f"{kind} again"] = (await other.run("cat /tmp/file; ls /data /usr/local")).text.split()
    print(json.dumps(said))

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_an_ordinary_user_has_it_too(rootfs: Path) -> None:
    python = sys.executable
    if os.geteuid() == 0:  # the one that runs this may be root's alone
        python = shutil.which("python3", path="/usr/bin") or ""
        if not python or not shutil.which("setpriv"):
            pytest.skip("no Python or setpriv for another user")
    packages = Path(anyio_path()).parents[1]
    home = Path("/var/tmp") / f"agentkit-test-{os.getpid()}"  # where that user may go
    shutil.copytree(rootfs, home / "root", symlinks=True)
    shutil.copytree(Path(__file__).parents[2] / "agentkit", home / "code/agentkit", symlinks=True)
    for package in ("anyio", "attr", "attrs", "sniffio", "idna", "cattrs", "typing_extensions.py"):
        source = packages / package
        if source.is_dir():
            shutil.copytree(source, home / "code" / package)
        elif source.exists():
            shutil.copy(source, home / "code")
    try:
        as_user = []
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "1234:1234", str(home)], check=True)
            words = "setpriv --reuid 1234 --regid 1234 --clear-groups --inh-caps=-all --bounding-set=-all"
            as_user = words.split()
        env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(home / "code"), "TMPDIR": str(home)}
        command = [*as_user, python, "-c", ORDINARY, str(home / "root")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=50, check=False)
        version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout
        if done.returncode and "Python 3.11" not in version:
            pytest.skip(f"the other user's is {version}")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["uid"] != 0
        assert said["plain available"] is said["rootfs available"] is said["overlay available"] is None
        assert said["plain"][0] == str(said["uid"])
        assert said["plain again"][0] == said["overlay again"][0] == "kept"
        assert said["rootfs"] == ["0", "made"]
        assert said["rootfs again"][:3] == ["kept", "/data:", "a"]
        assert "full" not in said["rootfs again"]
        assert "made" in said["overlay"]
        assert "made" in said["overlay again"]
        assert not list(home.glob("agentkit-*"))
    finally:
        shutil.rmtree(home)


def anyio_path() -> str:
    import anyio

    return anyio.__file__


@pytest.mark.parametrize(
    ("release", "root", "there", "can"),
    [
        ("5.18.0", True, True, False),
        ("5.19.0-1-amd64", True, True, True),
        ("6.5.3", False, True, False),
        ("6.6.0+", False, True, True),
        ("7.0-rc1", False, True, True),
        ("6.18.1", False, False, False),
        ("strange", True, True, False),
    ],
)
def test_which_kernels_can(tmp_path: Path, release: str, root: bool, there: bool, can: bool) -> None:
    (tmp_path / "filesystems").write_text("nodev\tproc\nnodev\toverlay\n" if there else "nodev\tproc\n")
    assert can_overlay(root=root, release=release, proc=tmp_path) is can


def test_how_much_may_be_written() -> None:
    assert size_of(SandboxSpec(), 100) == 100
    assert size_of(SandboxSpec(limits=Limits(disk_bytes=7)), 100) == 7
    assert size_of(SandboxSpec(limits=Limits(memory_bytes=80_000)), 10**9) == 60_000
    assert size_of(SandboxSpec(limits=Limits(memory_bytes=80_000, disk_bytes=10_000)), 10**9) == 10_000


def test_places_of_a_plain_sandbox_do_not_cover_one_another() -> None:
    owner = Owner(5, 1, ordinary=False)
    for cwd, places in (("/work", 3), ("/tmp/x", 2), ("/tmp", 2), ("/home/agent/w", 2)):  # inside
        layout = lay_out(SandboxSpec(cwd=cwd), overlay=False, owner=owner, size=1, layers=())
        assert len(layout.sources) == places
