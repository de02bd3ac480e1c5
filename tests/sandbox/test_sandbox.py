"""What holds for a sandbox of either back end, beyond the shell cases."""

import contextlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import OutputCap, Sandbox, SandboxBackend, SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend, default_backend

pytestmark = pytest.mark.slow

Processes = Callable[[str], list[int]]


async def test_it_is_a_sandbox(backend: SandboxBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        assert isinstance(sandbox, Sandbox)
        assert await sandbox.alive()
    finally:
        await sandbox.close()
        await sandbox.close()
    assert not await sandbox.alive()
    with pytest.raises(SandboxDead):
        await sandbox.run("true")
    with pytest.raises(SandboxDead):
        await sandbox.exec(["true"])
    with pytest.raises(SandboxDead):
        await sandbox.read("x")


async def test_programs(backend: SandboxBackend) -> None:
    sandbox = await backend.start(SandboxSpec(env={"A": "b c"}))
    try:
        blob = random.Random(1).randbytes(500_000)
        cap = OutputCap(1_000_000, 0)
        echoed = await sandbox.exec(["cat"], stdin=blob, cap=cap)
        assert (echoed.exit_code, echoed.output) == (0, blob)
        pieces: list[bytes] = []
        both = await sandbox.exec(
            ["sh", "-c", "echo $A $B; pwd; echo e >&2; exit 5"], env={"B": "d"}, on_output=pieces.append
        )
        assert both.exit_code == 5
        first, directory, last = both.text.splitlines()
        assert (first, Path(directory).name, last) == ("b c d", "work", "e")
        assert b"".join(pieces) == both.output
        assert (await sandbox.exec(["sh", "-c", "kill -9 $$"])).exit_code == 137
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        assert (await sandbox.exec(["pwd"], cwd="/usr")).text == "/usr\n"
        with pytest.raises(SandboxError, match="nowhere"):
            await sandbox.exec(["true"], cwd="nowhere")
        with pytest.raises(SandboxError):
            await sandbox.exec([])
        with pytest.raises(SandboxError):
            await sandbox.exec(["a\0b"])
        with pytest.raises(SandboxError):
            await sandbox.run("a\0b")
        await sandbox.run("echo shared > file")
        assert (await sandbox.exec(["cat", "file"])).text == "shared\n"
        ignored = await sandbox.exec(["true"], stdin=blob)  # a program that does not read its input
        assert ignored.exit_code == 0
    finally:
        await sandbox.close()


async def test_a_program_that_outlives_its_limit(backend: SandboxBackend, processes: Processes) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        polite = await sandbox.exec(["sh", "-c", "echo part; exec sleep 8801"], timeout_s=0.3)
        assert (polite.timed_out, polite.text, polite.exit_code) == (True, "part\n", 130)
        stubborn = await sandbox.exec(
            ["bash", "-c", "trap '' INT TERM; (setsid sleep 8802 &); while :; do sleep 8803; done"], timeout_s=0.3
        )
        assert (stubborn.timed_out, stubborn.exit_code) == (True, 137)
        assert 0.6 < stubborn.duration_s < 2.5
        assert processes("sleep 880") == []
    finally:
        await sandbox.close()


async def test_a_daemon_holding_the_output_does_not_hold_the_program(backend: SandboxBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        result = await sandbox.exec(["sh", "-c", "sleep 8811 & echo done"])
        assert (result.text, result.exit_code) == ("done\n", 0)
        assert result.duration_s < 2.0
    finally:
        await sandbox.close()


async def test_an_error_in_on_output_ends_the_program(backend: SandboxBackend, processes: Processes) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:

        def fail(_: bytes) -> None:
            raise LookupError("enough")

        with pytest.raises(LookupError):
            await sandbox.exec(["sh", "-c", "echo x; exec sleep 8821"], on_output=fail)
        assert processes("sleep 8821") == []
    finally:
        await sandbox.close()


async def test_cancelling_kills_at_once_and_the_session_goes_on(backend: SandboxBackend, processes: Processes) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        await sandbox.run("cd /usr; export KEPT=1; sleep 7701 &")
        for command in (
            "sleep 7702",
            "trap '' INT TERM; (setsid sleep 7702 &); while :; do sleep 7702; done",
            "yes",
            "while :; do :; done",
        ):
            with anyio.move_on_after(0.25) as scope:
                await sandbox.run(command)
            late = anyio.current_time() - scope.deadline
            assert scope.cancelled_caught
            assert late < 0.5, late  # 0.1 on an idle machine
            assert processes("sleep 7702") == []
            after = await sandbox.run("pwd; echo $KEPT")
            assert (after.text, after.exit_code) == ("/usr\n1\n", 0)
        with anyio.move_on_after(0.25) as scope:
            await sandbox.exec(["sh", "-c", "trap '' INT TERM; sleep 7703; sleep 7703"])
        assert scope.cancelled_caught
        assert processes("sleep 7703") == []
        assert len(processes("sleep 7701")) == 1  # an earlier command's job is not this one's
    finally:
        await sandbox.close()
    assert processes("sleep 7701") == []


async def test_cancelling_at_any_moment_leaves_nothing(
    backend: SandboxBackend, processes: Processes, scratch: Path
) -> None:
    chance = random.Random(7)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(15):
        with anyio.move_on_after(chance.uniform(0.0, 0.08)):
            sandbox = await backend.start(SandboxSpec())
            try:
                while True:
                    await sandbox.run("sleep 0.003; sleep 6601 & true")
                    await sandbox.exec(["cat"], stdin=b"x" * 100_000)
                    await sandbox.write("f", b"x")
            finally:
                await sandbox.close()
    assert processes("sleep 6601") == []
    assert processes(f"{_name()}") == []
    assert list(scratch.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= before + 4  # what the event loop keeps for threads


def _name() -> str:
    from agentkit.sandbox.leaks import owner

    return owner()


async def test_commands_wait_for_their_turn(backend: SandboxBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        texts: list[str] = []

        async def one(number: int) -> None:
            texts.append((await sandbox.run(f"echo {number}; sleep 0.01; echo {number}")).text)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(one, number)
        assert sorted(texts) == [f"{number}\n{number}\n" for number in range(8)]
    finally:
        await sandbox.close()


async def test_closing_during_a_command_is_sandbox_dead(backend: SandboxBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    outcomes: list[str] = []

    async def expect_dead(what: str) -> None:
        try:
            await (sandbox.run("sleep 5501") if what == "run" else sandbox.exec(["sleep", "5501"]))
        except SandboxDead:
            outcomes.append(what)

    async with anyio.create_task_group() as group:
        group.start_soon(expect_dead, "run")
        group.start_soon(expect_dead, "exec")
        await anyio.sleep(0.2)
        await sandbox.close()
    assert sorted(outcomes) == ["exec", "run"]


async def test_fifty_at_once_and_nothing_left(backend: SandboxBackend, processes: Processes, scratch: Path) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    mounts = Path("/proc/self/mounts").read_text()
    texts: list[str] = []
    ready = 0
    everybody = anyio.Event()

    async def one(number: int) -> None:
        nonlocal ready
        sandbox = await backend.start(SandboxSpec(env={"N": str(number)}))
        try:
            ready += 1
            if ready == 50:
                everybody.set()
            await everybody.wait()
            await sandbox.run("(setsid sleep 4401 &); echo $N > mine")
            texts.append((await sandbox.run("cat mine; ls")).text)
        finally:
            await sandbox.close()

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one, number)
    assert sorted(texts) == sorted(f"{number}\nmine\n" for number in range(50))
    assert processes("sleep 4401") == []
    assert processes("_spawner_main.py") == [] or not _ours(processes("_spawner_main.py"))
    assert list(scratch.iterdir()) == []
    assert Path("/proc/self/mounts").read_text() == mounts
    assert len(os.listdir("/proc/self/fd")) <= fds + 4


def _ours(pids: list[int]) -> list[int]:
    def parent(pid: int) -> int:
        try:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0

    return [pid for pid in pids if parent(pid) == os.getpid()]


async def test_files(backend: SandboxBackend) -> None:
    sandbox = await backend.start(SandboxSpec(read_limit_bytes=100_000))
    try:
        blob = bytes(range(256)) * 300
        await sandbox.write("deep/er/file name", blob)
        assert await sandbox.read("deep/er/file name") == blob
        assert await sandbox.read("/work/deep/er/file name") == blob
        assert (await sandbox.run("cat 'deep/er/file name' | wc -c")).text == f"{len(blob)}\n"
        await sandbox.write("empty", b"")
        assert await sandbox.read("empty") == b""
        await sandbox.run(
            "mkfifo fifo; head -c 100001 /dev/zero > large; head -c 100000 /dev/zero > fits; ln -s fits -- -n"
        )
        assert len(await sandbox.read("fits")) == 100_000
        assert len(await sandbox.read("-n")) == 100_000
        for path in ("missing", "deep", "fifo", "large", "", "a\0b", "/dev/zero"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        for path in ("deep", "fifo", "empty/below", "/proc/x"):
            with pytest.raises(SandboxError):
                await sandbox.write(path, b"x")
        assert await sandbox.alive()
    finally:
        await sandbox.close()


async def test_symlinks_lead_nowhere_on_the_host(backend: SandboxBackend, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    sandbox = await backend.start(SandboxSpec())
    try:
        await sandbox.run(f"ln -s {secret} link; ln -s {tmp_path} dir; ln -s / root")
        for path in ("link", "dir/secret", f"root{secret}", f"../../../../../..{secret}"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        for path in ("link", "dir/planted", f"root{tmp_path}/planted"):
            with contextlib.suppress(SandboxError):  # inside, the path may be one that can be written
                await sandbox.write(path, b"evil")
        with pytest.raises(SandboxError):
            await sandbox.download("dir", tmp_path / "made")
        assert secret.read_text() == "of the host"
        assert not (tmp_path / "planted").exists()
        assert not (tmp_path / "made").exists()
    finally:
        await sandbox.close()


async def test_trees_go_in_and_come_out(backend: SandboxBackend, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "sub" / "run").chmod(0o755)
    (source / "link").symlink_to("sub/run")
    sandbox = await backend.start(SandboxSpec(read_limit_bytes=1_000_000))
    try:
        await sandbox.upload(source, "tree")
        assert (await sandbox.run("./tree/link; readlink tree/link")).text == "ran\nsub/run\n"
        await sandbox.upload(source / "sub" / "run", "/work/one/renamed")
        assert (await sandbox.run("one/renamed")).text == "ran\n"
        await sandbox.run("echo changed > tree/new")
        await sandbox.download("tree", tmp_path / "made")
        assert (tmp_path / "made" / "new").read_text() == "changed\n"
        assert os.readlink(tmp_path / "made" / "link") == "sub/run"
        assert os.access(tmp_path / "made" / "sub" / "run", os.X_OK)
        await sandbox.download("tree/new", tmp_path / "file")
        await sandbox.download("tree/new", tmp_path / "file")
        assert (tmp_path / "file").read_text() == "changed\n"
        for spoil in ("ln -s /etc tree/out", "mkfifo tree/fifo", "truncate -s 1T tree/bomb", "ln -s ../.. tree/up"):
            await sandbox.run(spoil)
            began = time.monotonic()
            with pytest.raises(SandboxError):
                await sandbox.download("tree", tmp_path / "hostile")
            assert not (tmp_path / "hostile").exists()
            assert time.monotonic() - began < 5.0
            await sandbox.run("rm -f tree/out tree/fifo tree/bomb tree/up")
        with pytest.raises(SandboxError):
            await sandbox.download("missing", tmp_path / "missing")
        with pytest.raises(SandboxError):
            await sandbox.upload(tmp_path / "missing", "x")
    finally:
        await sandbox.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "made", "scratch", "source"]


async def test_nothing_of_our_environment_is_inside(backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    sandbox = await backend.start(SandboxSpec())
    try:
        for result in (await sandbox.run("env; set"), await sandbox.exec(["env"])):
            assert "hunter2" not in result.text
            assert "PATH=" in result.text
        everybody = await sandbox.run("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c hunter2")
        assert everybody.text == "0\n"  # neither in the spawner, nor in what keeps the sandbox
    finally:
        await sandbox.close()


async def test_a_cwd_that_cannot_be_is_refused(backend: SandboxBackend) -> None:
    for cwd in ("relative", "/"):
        with pytest.raises(SandboxError):
            await backend.start(SandboxSpec(cwd=cwd))


async def test_shared_read_only_paths(backend: SandboxBackend, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("given")
    sandbox = await backend.start(SandboxSpec(read_only=((str(shared), "/work/given"),)))
    try:
        assert (await sandbox.run("cat given/data")).text == "given"
        if getattr(backend, "isolated", False):
            assert (await sandbox.run("echo x > given/data")).exit_code != 0
            assert (shared / "data").read_text() == "given"
    finally:
        await sandbox.close()


def test_the_default_is_isolated_or_asked_for() -> None:
    broken = BwrapBackend(bwrap="no-such-bwrap")
    assert "no-such-bwrap" in (broken.available() or "")
    backend = default_backend(allow_host=True)
    assert isinstance(backend, BwrapBackend if BwrapBackend().available() is None else HostBackend)


def test_no_host_back_end_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="bubblewrap"):
        default_backend()
    assert isinstance(default_backend(allow_host=True), HostBackend)


async def test_the_host_back_end_says_so(scratch: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = HostBackend(directory=scratch)
    for _ in range(2):
        await (await backend.start(SandboxSpec())).close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "NO ISOLATION" in caplog.text
