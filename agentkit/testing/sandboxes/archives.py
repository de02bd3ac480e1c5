# ruff: noqa: S101  # pytest tests
"""Trees and archives that would write or read outside of where they go."""

import contextlib
import io
import os
import tarfile
from pathlib import Path

from agentkit.errors import SandboxError
from agentkit.protocols import SandboxBackend
from agentkit.testing.sandboxes.intrusion import SECRET, IsolatedSuite

_TAR = "#!/bin/sh\ncat /work/evil/archive\n"


class ArchiveTests(IsolatedSuite):
    """Tests of what goes up and comes down."""

    async def test_what_a_sandbox_packs_writes_nowhere_else(self, backend: SandboxBackend, tmp_path: Path) -> None:
        """The first `tar` of its PATH packs what it likes. No program is replaced: it may be the host's in truth."""
        target = tmp_path / "target"
        target.mkdir()
        (tmp_path / "kept").write_text("kept")
        path = "/work/evil:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        async with self.started(backend, env={"PATH": path}, read_limit_bytes=1_000_000) as sandbox:
            await sandbox.run("mkdir -p evil tree; echo x > tree/file")
            for name, archive in _hostile(tmp_path).items():
                await sandbox.write("evil/archive", archive)
                await sandbox.write("evil/tar", _TAR.encode())
                await sandbox.run("chmod +x evil/tar")
                with contextlib.suppress(SandboxError):  # that, or no more than what is really there
                    await sandbox.download("tree", target / "made")
                    assert _tree(target / "made") <= {"file"}, name
                assert _tree(target) <= {"made", "made/file"}, name
                assert not (tmp_path / "planted").exists(), name
                assert (tmp_path / "kept").read_text() == "kept", name
                _remove(target / "made")

    async def test_a_symlink_inside_does_not_lead_a_download_out(self, backend: SandboxBackend, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text(SECRET)
        (tmp_path / "secret").chmod(0o644)
        async with self.started(backend) as sandbox:
            await sandbox.run(f"mkdir tree; ln -s {tmp_path} tree/out; ln -s {tmp_path}/secret tree/secret")
            for name in ("tree", "tree/out", "tree/out/secret", "tree/secret"):
                with contextlib.suppress(SandboxError):
                    await sandbox.download(name, tmp_path / "made")
                made = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
                assert all(SECRET not in path.read_text() for path in made), name
                assert not (tmp_path / "made").is_file() or SECRET not in (tmp_path / "made").read_text()
                _remove(tmp_path / "made")

    async def test_a_symlink_at_the_destination_is_not_written_through(
        self, backend: SandboxBackend, tmp_path: Path
    ) -> None:
        kept = tmp_path / "kept"
        kept.write_text("kept")
        (tmp_path / "link").symlink_to(kept)
        async with self.started(backend) as sandbox:
            await sandbox.write("file", b"evil")
            with contextlib.suppress(SandboxError):
                await sandbox.download("file", tmp_path / "link")
        assert kept.read_text() == "kept"

    async def test_an_upload_takes_links_along_and_not_what_they_lead_to(
        self, backend: SandboxBackend, tmp_path: Path
    ) -> None:
        (tmp_path / "secret").write_text(SECRET)
        tree = tmp_path / "tree"
        tree.mkdir()
        (tree / "absolute").symlink_to(tmp_path / "secret")
        (tree / "relative").symlink_to("../secret")
        (tree / "file").write_text("plain")
        async with self.started(backend) as sandbox:
            with contextlib.suppress(SandboxError):  # or refused
                await sandbox.upload(tree, "tree")
            found = await sandbox.run("cat tree/*; grep -r hunter2 tree")
            assert SECRET not in found.text

    async def test_an_upload_goes_through_no_link_to_the_host(self, backend: SandboxBackend, tmp_path: Path) -> None:
        tree, outside = tmp_path / "tree", tmp_path / "outside"
        tree.mkdir()
        outside.mkdir(mode=0o777)
        (tree / "planted").write_text("evil")
        async with self.started(backend) as sandbox:
            await sandbox.run(f"ln -s {outside} out; mkdir -p {outside}")
            for destination in ("out", "out/deeper", f"../../..{outside}", str(outside)):
                with contextlib.suppress(SandboxError):  # inside, the path may be one that can be written
                    await sandbox.upload(tree, destination)
                with contextlib.suppress(SandboxError):
                    await sandbox.write(f"{destination}/planted", b"evil")
        assert list(outside.iterdir()) == []


def _hostile(outside: Path) -> dict[str, bytes]:
    """Archives that are no tree of one top entry, by what is wrong with them."""

    def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 4) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = kind, link, 0o777
        info.size = size if kind == tarfile.REGTYPE else 0
        return info

    top = member("./tree", tarfile.DIRTYPE)
    link = member("./tree/l", tarfile.SYMTYPE, str(outside))
    return {
        "a parent directory": _packed(top, member("./tree/../../planted")),
        "only a parent directory": _packed(member("../planted")),
        "an absolute path": _packed(top, member(str(outside / "planted"))),
        "a link, then through it": _packed(top, link, member("./tree/l/planted")),
        "a link that climbs": _packed(top, member("./tree/l", tarfile.SYMTYPE, "../.."), member("./tree/l/planted")),
        "the top as a link": _packed(member("./tree", tarfile.SYMTYPE, str(outside)), member("./tree/planted")),
        "a hard link to the host": _packed(top, member("./tree/h", tarfile.LNKTYPE, str(outside / "kept"))),
        "a hard link written to": _packed(
            top, member("./tree/h", tarfile.LNKTYPE, "../kept"), member("./tree/h", tarfile.REGTYPE)
        ),
        "a device": _packed(top, member("./tree/null", tarfile.CHRTYPE)),
        "a second top": _packed(top, member("./other")),
        "a bomb": _packed(top, member("./tree/bomb", size=1 << 40)),
        "no archive": b"\x00\xff" * 700,
        "nothing": b"",
    }


def _packed(*members: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for one in members:
            if one.size > 4:  # says so, and has nothing
                made.write(one.tobuf(tarfile.GNU_FORMAT))
                break
            archive.addfile(one, io.BytesIO(b"evil") if one.isreg() else None)
    return made.getvalue()


def _tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def _remove(made: Path) -> None:
    if made.is_symlink() or made.is_file():
        made.unlink()
    elif made.is_dir():
        for path in sorted(made.rglob("*"), reverse=True):
            path.unlink() if path.is_symlink() or not path.is_dir() else os.rmdir(path)
        made.rmdir()
