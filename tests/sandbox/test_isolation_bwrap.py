"""What programs inside bubblewrap cannot reach of the kernel, by root's or anybody's start, and what still works."""

import errno
import json
import os
import random
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import agentkit
from agentkit.protocols import SandboxSpec
from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox import BwrapBackend
from agentkit.sandbox.masks import DIRECTORIES, FILES

pytestmark = pytest.mark.slow

PROBE = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    return 0 if result >= 0 else ctypes.get_errno()

def family(number, sort=socket.SOCK_STREAM, protocol=0):
    try:
        socket.socket(number, sort, protocol).close()
    except OSError as error:
        return error.errno
    return 0

print(json.dumps({
    "user namespace": call(272, 0x10000000),
    "mount namespace": call(272, 0x00020000),
    "clone into a user namespace": call(56, 0x10000000 | 17, 0, 0, 0, 0),
    "clone3": call(435, 0, 0),
    "setns": call(308, 0, 0),
    "mount": call(165, 0, 0, 0, 0, 0),
    "fsopen": call(430, 0, 0),
    "add_key": call(248, 0, 0, 0, 0, 0),
    "keyctl": call(250, 0, -3, 0, 0, 0),
    "bpf": call(321, 0, 0, 0),
    "perf_event_open": call(298, 0, 0, 0, 0, 0),
    "io_uring_setup": call(425, 8, 0),
    "userfaultfd": call(323, 0),
    "open_by_handle_at": call(304, 0, 0, 0),
    "syslog": call(103, 3, 0, 0),
    "TIOCSTI": call(16, 0, 0x5412, 0),
    "vsock": family(40),
    "ciphers": family(38, socket.SOCK_SEQPACKET),
    "netlink audit": family(16, socket.SOCK_RAW, 9),
    "packets": family(17, socket.SOCK_RAW),
}))
"""
NOT_PERMITTED = {
    "clone3": errno.ENOSYS,
    "vsock": errno.EAFNOSUPPORT,
    "ciphers": errno.EAFNOSUPPORT,
    "packets": errno.EAFNOSUPPORT,
    "netlink audit": errno.EPROTONOSUPPORT,
}


def refused(said: str) -> None:
    found = json.loads(said)
    assert found == {name: NOT_PERMITTED.get(name, errno.EPERM) for name in found}


@pytest.fixture(params=["the machine's programs", "a root of its own"])
def either(request: pytest.FixtureRequest, bwrap: BwrapBackend) -> BwrapBackend:
    """Where programs are root inside, with the capabilities of a user namespace, they can do no more to the kernel."""
    if request.param == "the machine's programs":
        return bwrap
    if not bwrap.capabilities.rootfs:
        pytest.skip("no sandbox can have a root of its own here")
    return BwrapBackend(overlay=True)


x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")


@x86_64
async def test_calls_are_refused_in_the_shell_and_in_programs(either: BwrapBackend) -> None:
    async with await either.start(SandboxSpec()) as sandbox:
        await sandbox.write("probe.py", PROBE.encode())
        refused((await sandbox.run("python3 probe.py")).text)
        refused((await sandbox.exec(["python3", "probe.py"])).text)


async def test_every_process_inside_is_filtered(either: BwrapBackend) -> None:
    # Also what holds the sandbox: where it has the user of its programs, they can make it call what they like.
    async with await either.start(SandboxSpec()) as sandbox:
        said = (await sandbox.run("grep -h ^Seccomp: /proc/[0-9]*/status; (grep ^Seccomp: /proc/self/status)")).text
        assert len(said.splitlines()) >= 3
        assert set(said.splitlines()) == {"Seccomp:\t2"}


async def test_no_nested_namespaces(either: BwrapBackend) -> None:
    async with await either.start(SandboxSpec()) as sandbox:
        for kind in ("user", "mount", "net", "pid", "uts", "ipc", "cgroup", "map-root-user"):
            result = await sandbox.run(f"unshare --{kind} true")
            assert result.exit_code != 0, kind
            assert "not permitted" in result.text


async def test_proc_tells_nothing_of_the_machine(either: BwrapBackend) -> None:
    async with await either.start(SandboxSpec()) as sandbox:
        for name in FILES:
            if Path(f"/proc/{name}").exists():
                for opening in ("<", "<>"):
                    result = await sandbox.run(f"( exec 3{opening}/proc/{name} )")
                    assert "Permission denied" in result.text, (name, result.text)
        for name in DIRECTORIES:
            if Path(f"/proc/{name}").exists():
                assert (await sandbox.run(f"ls -A /proc/{name}")).text == ""
                assert (await sandbox.run(f"touch /proc/{name}/x")).exit_code != 0
        written = "find /proc -maxdepth 3 ! -path '/proc/[0-9]*' ! -path '/proc/*self*' -type f -writable 2>/dev/null"
        opened = await sandbox.run(f"for file in $({written}); do ( : >> $file ) 2>/dev/null && echo $file; done")
        assert opened.text == ""
        assert (await sandbox.run("ls /sys")).exit_code != 0


async def test_no_path_or_variable_of_the_host_is_seen(
    bwrap: BwrapBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "sk-hunter2")
    (tmp_path / "data").mkdir()
    spec = SandboxSpec(env={"GIVEN": "yes"}, read_only=((str(tmp_path / "data"), "/data"),))
    async with await bwrap.start(spec) as sandbox:
        seen = await sandbox.run("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'")
        assert "GIVEN=yes" in seen.text.splitlines()
        assert "hunter2" not in seen.text
        assert str(tmp_path) not in seen.text
        names = await sandbox.exec(["env"])
        allowed = {"PATH", "LANG", "TERM", "PAGER", "GIT_PAGER", "HOME", "USER", "GIVEN"}
        assert {line.partition("=")[0] for line in names.text.splitlines()} <= allowed


async def test_no_descriptor_is_inherited(either: BwrapBackend, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w+") as file:
        os.set_inheritable(file.fileno(), True)
        async with await either.start(SandboxSpec()) as sandbox:
            own = (await sandbox.run("for fd in /proc/$$/fd/*; do readlink $fd; done")).text.splitlines()
            assert {name.partition(":")[0] for name in own} <= {"pipe", "/dev/null", "/memfd"}
            assert (await sandbox.exec(["ls", "/proc/self/fd"])).text == "0\n1\n2\n3\n"
            assert (await sandbox.run("ls /proc/self/fd")).text == "0\n1\n2\n3\n"


async def test_a_crash_leaves_no_core_and_starts_no_handler(either: BwrapBackend) -> None:
    async with await either.start(SandboxSpec()) as sandbox:
        crashed = await sandbox.run("ulimit -c unlimited; bash -c 'kill -SEGV $$'; echo $?; ls")
        assert crashed.text.splitlines()[-1] == "139"
        limits = await sandbox.exec(["python3", "-c", "import resource; print(resource.getrlimit(4))"])
        assert limits.text in ("(1, 1)\n", "(0, 0)\n")  # none of bytes at all where the host allows none


async def test_abstract_sockets_of_the_host_are_out_of_reach(bwrap: BwrapBackend) -> None:
    name = f"agentkit-test-{random.randrange(10**9)}"
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        async with await bwrap.start(SandboxSpec()) as sandbox:
            assert "refused" in (await sandbox.exec(["python3", "-c", connect])).text
        async with await bwrap.start(SandboxSpec(network="host")) as sandbox:  # else the test would show nothing
            assert (await sandbox.exec(["python3", "-c", connect])).exit_code == 0


async def test_sandboxes_share_nothing(either: BwrapBackend) -> None:
    async with await either.start(SandboxSpec()) as one, await either.start(SandboxSpec()) as other:
        await one.run("for place in /tmp /dev/shm /work ~; do echo secret > $place/mine; done; ipcmk -Q; sleep 60 &")
        left = await other.run("ls /tmp /dev/shm /work ~ | grep mine; ipcs -q | grep 0x; pgrep -f 'sleep 60'")
        assert left.text == ""


async def test_each_sandbox_of_root_has_a_user_of_its_own(bwrap: BwrapBackend) -> None:
    if os.geteuid() != 0:
        pytest.skip("everybody else has one user")
    async with await bwrap.start(SandboxSpec()) as one, await bwrap.start(SandboxSpec()) as other:
        users = [(await sandbox.run("id -u")).text for sandbox in (one, other)]
        assert users[0] != users[1]


async def test_programs_go_before_the_host_when_memory_is_short(either: BwrapBackend) -> None:
    async with await either.start(SandboxSpec()) as sandbox:
        assert (await sandbox.run("cat /proc/self/oom_score_adj")).text == "1000\n"
        assert (await sandbox.exec(["cat", "/proc/self/oom_score_adj"])).text == "1000\n"
        assert (await sandbox.run("cat /proc/1/oom_score_adj")).text.strip() != "1000"


async def test_a_full_disk_is_an_error_inside_and_nobody_elses(either: BwrapBackend) -> None:
    spec = SandboxSpec(limits=Limits(disk_bytes=20 * 1024 * 1024))
    async with await either.start(spec) as sandbox, await either.start(spec) as other:
        fill = "for place in /work /tmp ~ /dev/shm; do head -c 30M /dev/zero > $place/x; done"
        filled = await sandbox.run(f"{fill}; du -smc /work/x /tmp/x ~/x /dev/shm/x | tail -1")
        assert filled.text.count("No space left") == 4
        assert int(filled.text.splitlines()[-1].split()[0]) <= 21
        assert (await other.run("echo on > file; cat file")).text == "on\n"
        assert (await sandbox.run("rm /work/x /tmp/x ~/x /dev/shm/x; echo on > file; cat file")).text == "on\n"


EVERYDAY = {
    "threads": "python3 -c 'import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()'",
    "processes": "python3 -c 'import multiprocessing as m; p = m.Process(target=id); p.start(); p.join()'",
    "addresses": "python3 -c 'import socket; socket.getaddrinfo(\"localhost\", 80); socket.if_nameindex()'",
    "venv": "python3 -m venv --without-pip v && v/bin/python -c 'import sys'",
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m x && git gc -q",
    "gcc": "echo 'int main(){return 0;}' > a.c && gcc a.c -o a && ./a",
    "make": "printf 'all:\\n\\ttrue\\n' > Makefile && make -s",
    "node": 'node -e \'setTimeout(() => require("fs").readFile("/etc/hosts", (e) => process.exit(e ? 1 : 0)), 5)\'',
    "npm": "npm --version",
    "java": "java -version",
    "perl": "perl -e 'exit 0'",
    "tar": "mkdir t && tar czf t.tgz t && tar xzf t.tgz",
    "strace": "strace -f -o /dev/null true",
}


async def test_everyday_programs_run(either: BwrapBackend) -> None:
    async with await either.start(SandboxSpec()) as sandbox:
        missing: list[str] = []
        for command in EVERYDAY.values():
            if (await sandbox.run(f"command -v {command.split()[0]}")).exit_code != 0:
                missing.append(command)
                continue
            result = await sandbox.run(f"( {command} )", timeout_s=60.0)
            assert result.exit_code == 0, (command, result.text)
        assert len(missing) < len(EVERYDAY) / 2, "too few of them are installed to say anything"


ORDINARY = """
import sys
sys.path[:0] = sys.argv[2:]
import anyio, json, os
from agentkit.errors import ConfigError
from agentkit.protocols import SandboxSpec
from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox import BwrapBackend

async def main():
    backend = BwrapBackend()
    why = backend.available()
    if why is not None:
        print(json.dumps({"why": why}))
        return
    said = {"limits": sorted(backend.capabilities.limits), "shortcomings": backend.shortcomings()}
    limits = Limits(processes=40) if "processes" in said["limits"] else Limits()
    async with await backend.start(SandboxSpec(limits=limits)) as one, await backend.start(SandboxSpec()) as other:
        await one.write("probe.py", sys.argv[1].encode())
        said["calls"] = (await one.run("python3 probe.py")).text
        said["calls of a program"] = (await one.exec(["python3", "probe.py"])).text
        said["filters"] = (await one.run("grep -h ^Seccomp: /proc/[0-9]*/status | sort -u")).text
        said["capabilities"] = (await one.run("grep -h ^Cap /proc/self/status | cut -f2 | sort -u")).text
        said["files"] = (await one.run("touch /usr/x /etc/x; id -u")).text
        await one.run("for i in {1..80}; do sleep 60 & done; :", timeout_s=1.5)
        said["processes"] = int((await one.run("set -- /proc/[0-9]*; echo $#")).text or 0)
        said["other"] = (await other.run("echo $(echo on)")).text
    print(json.dumps(said))

anyio.run(main)
"""


def _python(user: int) -> str | None:
    """A python that `user` may run, with our requirements readable."""
    for program in (sys.executable, "/usr/bin/python3"):
        words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", program, "-c"]
        check = (
            "import subprocess, sys; assert sys.version_info >= (3, 11)\n"
            "subprocess.run([sys.executable, '-c', ''], check=True)\n"
            "for path in sys.argv[1:]: open(path + '/__init__.py').close()"
        )
        packages = [os.path.dirname(str(module.__file__)) for module in (agentkit, sys.modules["anyio"])]
        try:
            done = subprocess.run([*words, check, *packages], capture_output=True, cwd="/")
        except OSError:
            return None
        if done.returncode == 0:
            return program
    return None


@x86_64
def test_an_ordinary_user_gets_the_same(bwrap: BwrapBackend, tmp_path: Path) -> None:
    del bwrap
    user = 1000
    if os.geteuid() != 0:
        pytest.skip("we are an ordinary user, and so is every other test here")
    python = _python(user)
    if python is None:
        pytest.skip("no python here can be run by an ordinary user, or this checkout is not readable to one")
    script = textwrap.dedent(ORDINARY)
    places = [str(Path(str(module.__file__)).parents[1]) for module in (agentkit, sys.modules["anyio"])]
    done = subprocess.run(
        ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", python, "-B", "-c", script, PROBE, *places],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": os.defpath, "HOME": "/nonexistent", "TMPDIR": "/tmp"},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    if "why" in said:
        pytest.skip(f"ordinary users can make no sandbox here: {said['why']}")
    refused(said["calls"])
    refused(said["calls of a program"])
    assert said["filters"] == "Seccomp:\t2\n"
    assert said["capabilities"] == "0000000000000000\n"
    assert said["files"].count("Read-only file system") + said["files"].count("Permission denied") >= 1
    assert said["files"].splitlines()[-1] == str(user)
    assert said["other"] == "on\n"
    if "processes" in said["limits"]:
        assert said["processes"] <= 43
    for limit in ("memory_bytes", "cpus"):
        assert (limit in said["limits"]) != any(f"limits.{limit}" in line for line in said["shortcomings"])
