"""What a snapshot keeps of a sandbox's files, and for how long."""

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import OutputCap, Sandbox, SandboxSpec, Snapshots
from agentkit.sandbox import BwrapBackend, HostBackend, reap

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

KINDS = ("plain", "rootfs", "overlay")
LIST = r"""
cd "$0" && find . \( -type d -printf '%P|%y|%m|%U|%G|%l\n' -o -printf '%P|%y|%m|%U|%G|%l|%n\n' \) | sort |
  sed "s/|$(id -u)|$(id -g)|/|mine|/" && find . -type f | sort | while read -r file; do
  sha256sum "$file" 2>&1; stat -c '%s %Y' "$file"
done
"""


def backend_of(kind: str, directory: Path | None = None) -> BwrapBackend:
    return BwrapBackend(overlay=kind == "overlay", directory=directory)


def spec_of(kind: str, rootfs: Path) -> SandboxSpec:
    return SandboxSpec(rootfs=str(rootfs) if kind == "rootfs" else None)


async def listing(sandbox: Sandbox, *directories: str) -> str:
    """The tree as the sandbox sees it: types, modes, owners, links, sizes, times, content."""
    said = ""
    for directory in directories:
        done = await sandbox.exec(["bash", "-c", LIST, directory], cap=OutputCap(10_000_000, 0))
        assert done.exit_code == 0
        said += done.text
    return said


NAMES = ("a", "b", "a/one", "a/b", "a/b/two", "a/b/c", "full", "full/four", "link", "new", "new/x", "a/new")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(("write", "append", "remove", "mkdir", "touch", "sparse", "fifo")), st.sampled_from(NAMES)
        ),
        st.tuples(
            st.sampled_from(("rename", "link", "symlink", "copy")), st.sampled_from(NAMES), st.sampled_from(NAMES)
        ),
        st.tuples(st.just("chmod"), st.sampled_from(NAMES), st.sampled_from(("0", "700", "2755", "4711", "1777"))),
        st.tuples(st.just("replace"), st.sampled_from(NAMES)),
        st.tuples(st.just("again"), st.just("")),
    ),
    max_size=10,
)
COMMANDS = {
    "write": "[ -p {0} ] || echo {n} > {0}",
    "append": "[ -p {0} ] || echo more >> {0}",
    "remove": "rm -rf {0}",
    "mkdir": "mkdir {0}",
    "touch": "touch {0}",
    "sparse": "truncate -s 50M {0}",
    "fifo": "mkfifo {0}",
    "rename": "mv -T {0} {1}",
    "link": "ln {0} {1}",
    "symlink": "ln -s {0} {1}",
    "copy": "cp -a {0} {1}",
    "chmod": "chmod {1} {0}",
    "replace": "if [ -d {0} ]; then rm -rf {0}; echo file > {0}; else rm -f {0}; mkdir {0}; echo x > {0}/inside; fi",
}


@pytest.mark.parametrize("kind", KINDS)
@given(operations=OPERATIONS)
@settings(max_examples=4, deadline=None)
def test_a_snapshot_shows_the_same_tree(kind: str, operations: list[tuple[str, ...]], rootfs: Path) -> None:
    async def live() -> None:
        backend = backend_of(kind)
        data = "/data" if kind == "rootfs" else "/work"
        home = {"plain": "/home/agent", "rootfs": "/root", "overlay": "/etc/alternatives"}[kind]
        async with backend:
            sandbox = await backend.start(spec_of(kind, rootfs))
            if kind != "rootfs":
                await sandbox.run("mkdir -p a/b/c full; echo 1 > a/one; echo 2 > a/b/two; echo 4 > full/four")
            for number, (what, *names) in enumerate([*operations, ("again", "")]):
                if what != "again":
                    await sandbox.run(f"cd {data}; " + COMMANDS[what].format(*names, n=number), timeout_s=10.0)
                    continue
                before = await listing(sandbox, data, "/tmp", home)  # inside
                async with await sandbox.snapshot() as snapshot:
                    fresh = await backend.start(evolve(spec_of(kind, rootfs), snapshot=snapshot))
                await sandbox.close()
                sandbox = fresh
                after = await listing(sandbox, data, "/tmp", home)
                assert after == before
            await sandbox.close()

    anyio.run(live)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_sandbox_is_multiplied(kind: str, rootfs: Path, scratch: Path) -> None:
    async with backend_of(kind, scratch) as backend, await backend.start(spec_of(kind, rootfs)) as first:
        assert isinstance(first, Snapshots)
        await first.run("echo 1 > /tmp/file; echo 2 > ~/file; echo 3 > file")
        async with await first.fork() as second:
            await first.run("echo changed > file")
            await second.run("echo other > /tmp/file")
            assert (await first.run("cat /tmp/file ~/file file")).text == "1\n2\nchanged\n"
            assert (await second.run("cat /tmp/file ~/file file")).text == "other\n2\n3\n"
            async with await second.fork() as third:
                assert (await third.run("cat /tmp/file file && rm file && ls")).text == "other\n3\n"
            assert (await second.run("cat file")).text == "3\n"
    assert list(scratch.iterdir()) == []


async def test_what_was_started_from_a_snapshot_outlives_it(bwrap: BwrapBackend, scratch: Path) -> None:
    backend = backend_of("plain", scratch)
    async with await backend.start(SandboxSpec()) as first:
        await first.run("echo kept > file")
        snapshot = await first.snapshot()
    assert len(list(scratch.iterdir())) == 1
    second = await backend.start(SandboxSpec(snapshot=snapshot))
    await snapshot.close()
    await snapshot.close()
    with pytest.raises(ConfigError, match="is closed"):
        await backend.start(SandboxSpec(snapshot=snapshot))
    inner = await second.snapshot()
    await second.close()
    assert len(list(scratch.iterdir())) == 2
    async with await backend.start(SandboxSpec(snapshot=inner)) as third:
        assert (await third.run("cat file")).text == "kept\n"
        await inner.close()
        assert (await third.run("cat file")).text == "kept\n"
    assert list(scratch.iterdir()) == []


async def test_leaving_the_back_end_closes_its_snapshots(scratch: Path) -> None:
    async with backend_of("plain", scratch) as backend:
        async with await backend.start(SandboxSpec()) as sandbox:
            kept = await sandbox.snapshot()
        assert len(list(scratch.iterdir())) == 1
    assert kept.closed
    assert list(scratch.iterdir()) == []


async def test_long_chains(kind: str, rootfs: Path, scratch: Path) -> None:
    async with backend_of(kind, scratch) as backend:
        sandbox = await backend.start(spec_of(kind, rootfs))
        for number in range(12):
            await sandbox.run(f"echo {number} > file; touch made-{number}; rm -f made-{number - 2}")
            fresh = await sandbox.fork()
            await sandbox.close()
            sandbox = fresh
        async with sandbox:
            assert (await sandbox.run("cat file; ls")).text == "11\nfile\nmade-10\nmade-11\n"
    assert list(scratch.iterdir()) == []


async def test_a_chain_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    monkeypatch.setattr("agentkit.sandbox.overlay.MOST_LAYERS", 2)
    async with backend_of("plain", scratch) as backend, await backend.start(SandboxSpec()) as first:
        second = await first.fork()
        third = await second.fork()
        with pytest.raises(ConfigError, match="at most 2 can be stacked"):
            await third.fork()
        await second.close()
        await third.close()
    assert list(scratch.iterdir()) == []


async def test_holes_stay_holes(scratch: Path) -> None:
    async with backend_of("plain", scratch) as backend, await backend.start(SandboxSpec()) as sandbox:
        made = await sandbox.run("truncate -s 1T hole && echo end >> hole && stat -c %s hole && ln hole again")
        assert made.exit_code == 0, made.text
        async with await sandbox.snapshot() as snapshot:
            (directory,) = scratch.iterdir()
            used = int(subprocess.run(["du", "-sk", str(directory)], capture_output=True, check=True).stdout.split()[0])
            assert used < 200
            async with await backend.start(SandboxSpec(snapshot=snapshot)) as other:
                assert (await other.run("stat -c '%s %h' hole again; tail -c 4 again")).text == (
                    "1099511627780 2\n1099511627780 2\nend\n"
                )


async def test_attributes_and_modes_are_kept(scratch: Path) -> None:
    code = "import os; os.setxattr('f', 'user.note', b'x'); os.chmod('f', 0o4750); os.mkdir('d', 0); os.mkfifo('p')"
    async with backend_of("plain", scratch) as backend, await backend.start(SandboxSpec()) as sandbox:
        assert (await sandbox.exec(["sh", "-c", f'echo > f; python3 -c "{code}"'])).exit_code == 0
        async with await sandbox.fork() as other:
            read = (
                "import os; print(os.getxattr('f', 'user.note'), oct(os.stat('f').st_mode), oct(os.stat('d').st_mode))"
            )
            assert (await other.exec(["python3", "-c", read])).text == "b'x' 0o104750 0o40000\n"
            assert (await other.run("test -p p && rmdir d && echo gone")).text == "gone\n"


async def test_depth_has_an_end(scratch: Path) -> None:
    async with backend_of("plain", scratch) as backend, await backend.start(SandboxSpec()) as sandbox:
        deep = "for i in {1..500}; do mkdir d && cd d || break; done; cd /work; echo ok"
        assert (await sandbox.run(deep, timeout_s=30.0)).text == "ok\n"
        with pytest.raises(SandboxError, match="more than 400 deep"):
            await sandbox.snapshot()
        assert list(scratch.iterdir()) == []
        assert (await sandbox.run("rm -r d; echo on")).text == "on\n"


async def test_a_cancelled_snapshot_leaves_nothing(scratch: Path) -> None:
    async with backend_of("plain", scratch) as backend, await backend.start(SandboxSpec()) as sandbox:
        await sandbox.run("for i in {1..3000}; do echo $i > $i; done", timeout_s=30.0)
        for seconds in (0.0, 0.002, 0.01, 0.03):
            with anyio.move_on_after(seconds) as scope:
                async with await sandbox.snapshot():
                    pass
            if scope.cancelled_caught:
                assert list(scratch.iterdir()) == []
        async with await sandbox.fork() as other:
            assert (await other.run("ls | wc -l")).text == "3000\n"


async def test_snapshots_that_do_not_fit(rootfs: Path, scratch: Path) -> None:
    class Other:
        name = "of another back end"

        async def close(self) -> None:
            pass

    async with backend_of("plain", scratch) as backend, await backend.start(SandboxSpec()) as sandbox:
        snapshot = await sandbox.snapshot()
        with pytest.raises(ConfigError, match=r"of the files 'plain', the spec's are 'rootfs"):
            await backend.start(SandboxSpec(rootfs=str(rootfs), snapshot=snapshot))
        with pytest.raises(ConfigError, match="'overlay'"):
            await backend_of("overlay").start(SandboxSpec(snapshot=snapshot))
        with pytest.raises(ConfigError, match="of another back end"):
            await backend.start(SandboxSpec(snapshot=Other()))
        with pytest.raises(ConfigError, match="snapshot is nothing that host sandboxes take"):
            await HostBackend(directory=scratch).start(SandboxSpec(snapshot=snapshot))


async def test_a_root_comes_with_its_snapshot(bwrap: BwrapBackend, rootfs: Path) -> None:
    async with bwrap, await bwrap.start(SandboxSpec(rootfs=str(rootfs))) as sandbox:
        changes = (
            "echo kept > /etc/made; rm -r /data/a/b; mkdir /data/a/b; touch /data/a/b/only; mv /data/full /data/moved"
        )
        assert (await sandbox.run(changes)).exit_code == 0
        async with (
            await sandbox.snapshot() as snapshot,
            await bwrap.start(SandboxSpec(snapshot=snapshot)) as other,
        ):
            assert (await other.run("cat /etc/made /data/link")).text == "kept\ndata/a/one\n"
            assert (await other.run("ls /data /data/a/b /data/moved")).text == (
                "/data:\na\nlink\nmoved\n\n/data/a/b:\nonly\n\n/data/moved:\nfour\n"
            )


async def test_the_dead_are_not_kept(bwrap: BwrapBackend) -> None:
    sandbox = await bwrap.start(SandboxSpec())
    await sandbox.close()
    with pytest.raises(SandboxDead):
        await sandbox.snapshot()
    with pytest.raises(SandboxDead):
        await sandbox.fork()


HOST = """
import sys, anyio
from pathlib import Path
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend

async def main():
    backend = BwrapBackend(directory=Path(sys.argv[1]))
    sandbox = await backend.start(SandboxSpec())
    await sandbox.run("mkdir -m 0 locked; echo x > file")
    snapshot = await sandbox.snapshot()
    print("up", flush=True)
    await anyio.sleep(60)

anyio.run(main)
"""


@pytest.mark.parametrize("end", ["killed", "left"])
def test_snapshots_of_a_process_that_ended_are_removed(scratch: Path, end: str) -> None:
    script = HOST if end == "killed" else HOST.replace("await anyio.sleep(60)", "await sandbox.close()")
    with subprocess.Popen([sys.executable, "-c", script, str(scratch)], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        if end == "killed":
            host.send_signal(signal.SIGKILL)
    assert len(list(scratch.iterdir())) == (1 if end == "killed" else 0)
    assert len(reap(scratch).directories) == (1 if end == "killed" else 0)
    assert list(scratch.iterdir()) == []
