# ruff: noqa: S101  # pytest tests
"""What holds for files and trees."""

import contextlib
import os
import time
from pathlib import Path

from agentkit.errors import SandboxError
from agentkit.protocols import SandboxBackend
from agentkit.testing.sandboxes._pytest import pytest
from agentkit.testing.sandboxes.suite import SandboxSuite


class FileTests(SandboxSuite):
    """Tests of `Files` and `Transfer`."""

    async def test_files(self, backend: SandboxBackend) -> None:
        async with self.started(backend, read_limit_bytes=100_000) as sandbox:
            blob = bytes(range(256)) * 300
            await sandbox.write("deep/er/file name", blob)
            for path in ("deep/er/file name", "/work/deep/er/file name"):
                is_exact = await sandbox.read(path) == blob  # not in the assertion: pytest would compare byte by byte
                assert is_exact, path
            assert (await sandbox.run("cat 'deep/er/file name' | wc -c")).text == f"{len(blob)}\n"
            await sandbox.write("deep/er/file name", b"short")
            assert await sandbox.read("deep/er/file name") == b"short", "written over, not into"
            await sandbox.write("empty", b"")
            assert await sandbox.read("empty") == b""
            for name in ("-n", "ü \n'\"$x", "*"):
                await sandbox.write(name, name.encode())
                assert await sandbox.read(name) == name.encode()
            await sandbox.run("mkfifo fifo; head -c 100001 /dev/zero > large; head -c 100000 /dev/zero > fits")
            assert len(await sandbox.read("fits")) == 100_000
            for path in ("missing", "deep", "fifo", "large", "", "a\0b", "/dev/zero"):
                with pytest.raises(SandboxError):
                    await sandbox.read(path)
            for path in ("deep", "fifo", "empty/below", "/proc/x", "", "a\0b"):
                with pytest.raises(SandboxError):
                    await sandbox.write(path, b"x")
            assert await sandbox.alive()

    async def test_symlinks_lead_nowhere_on_the_host(self, backend: SandboxBackend, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("of the host")
        async with self.started(backend) as sandbox:
            await sandbox.run(f"ln -s {secret} link; ln -s {tmp_path} dir; ln -s / root")
            for path in ("link", "dir/secret", f"root{secret}", f"../../../../../..{secret}"):
                with pytest.raises(SandboxError):
                    await sandbox.read(path)
            for path in ("link", "dir/planted", f"root{tmp_path}/planted"):
                with contextlib.suppress(SandboxError):  # inside, the path may be one that can be written
                    await sandbox.write(path, b"evil")
            with contextlib.suppress(SandboxError):
                await sandbox.upload(Path(__file__), "dir/planted")
            with pytest.raises(SandboxError):
                await sandbox.download("dir/secret", tmp_path / "made")
            assert secret.read_text() == "of the host"
            assert not (tmp_path / "planted").exists()
            assert not (tmp_path / "made").exists()

    async def test_trees_go_in_and_come_out(self, backend: SandboxBackend, tmp_path: Path) -> None:
        source = _tree(tmp_path / "source")
        async with self.started(backend, read_limit_bytes=1_000_000) as sandbox:
            await sandbox.upload(source, "tree")
            assert (await sandbox.run("./tree/link; readlink tree/link")).text == "ran\nsub/run\n"
            await sandbox.upload(source / "sub" / "run", "/work/one/renamed")
            assert (await sandbox.run("one/renamed")).text == "ran\n"
            await sandbox.run("echo changed > tree/new; mkdir tree/empty")
            await sandbox.download("tree", tmp_path / "made")
            assert (tmp_path / "made" / "new").read_text() == "changed\n"
            assert (tmp_path / "made" / "empty").is_dir()
            assert os.readlink(tmp_path / "made" / "link") == "sub/run"
            assert os.access(tmp_path / "made" / "sub" / "run", os.X_OK)
            await sandbox.download("tree/new", tmp_path / "file")
            await sandbox.run("echo again > tree/new")
            await sandbox.download("tree/new", tmp_path / "file")
            assert (tmp_path / "file").read_text() == "again\n"
            with pytest.raises(SandboxError):
                await sandbox.download("missing", tmp_path / "missing")
            with pytest.raises(SandboxError):
                await sandbox.upload(tmp_path / "missing", "x")
        assert {"missing", "made", "file", "source"} & _names(tmp_path) == {"made", "file", "source"}

    async def test_a_tree_that_is_hostile_is_refused_whole(self, backend: SandboxBackend, tmp_path: Path) -> None:
        source = _tree(tmp_path / "source")
        before = _names(tmp_path)
        async with self.started(backend, read_limit_bytes=1_000_000) as sandbox:
            await sandbox.upload(source, "tree")
            for spoil in ("ln -s /etc tree/out", "mkfifo tree/fifo", "truncate -s 1T tree/bomb", "ln -s ../.. tree/up"):
                await sandbox.run(spoil)
                began = time.monotonic()
                with pytest.raises(SandboxError):
                    await sandbox.download("tree", tmp_path / "hostile")
                assert not (tmp_path / "hostile").exists(), spoil
                assert time.monotonic() - began < 3.5 + self.slack_s
                await sandbox.run("rm -f tree/out tree/fifo tree/bomb tree/up")
            await sandbox.download("tree", tmp_path / "harmless")
        assert _names(tmp_path) - before == {"harmless"}


def _tree(source: Path) -> Path:
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "sub" / "run").chmod(0o755)
    (source / "link").symlink_to("sub/run")
    return source


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
