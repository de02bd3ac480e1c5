import io
import os
import tarfile
from pathlib import Path

import pytest

from agentkit.errors import SandboxError
from agentkit.sandbox.archive import pack, unpack

LIMIT = 1_000_000


def _member(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", data: bytes = b"x"
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    buffer.seek(0)
    return buffer


TOP = _member("top", tarfile.DIRTYPE)
HOSTILE = {
    "absolute": [_member("/tmp/evil")],
    "parent": [TOP, _member("top/../../evil")],
    "parent as top": [_member("..", tarfile.DIRTYPE)],
    "second top": [TOP, _member("other")],
    "absolute symlink": [TOP, _member("top/link", tarfile.SYMTYPE, link="/etc/passwd")],
    "climbing symlink": [TOP, _member("top/link", tarfile.SYMTYPE, link="../../evil")],
    "symlink as top": [_member("top", tarfile.SYMTYPE, link="elsewhere")],
    "write through a symlink": [
        TOP,
        _member("top/d", tarfile.DIRTYPE),
        _member("top/link", tarfile.SYMTYPE, link="d"),
        _member("top/link/evil"),
    ],
    "symlink replaces a directory": [
        TOP,
        _member("top/d", tarfile.DIRTYPE),
        _member("top/d", tarfile.SYMTYPE, link="."),
    ],
    "hard link out": [TOP, _member("top/hard", tarfile.LNKTYPE, link="/etc/passwd")],
    "hard link to later": [TOP, _member("top/hard", tarfile.LNKTYPE, link="top/later"), _member("top/later")],
    "hard link to symlink": [
        TOP,
        _member("top/s", tarfile.SYMTYPE, link="x"),
        _member("top/hard", tarfile.LNKTYPE, link="top/s"),
    ],
    "device": [TOP, _member("top/null", tarfile.CHRTYPE)],
    "block device": [TOP, _member("top/sda", tarfile.BLKTYPE)],
    "fifo": [TOP, _member("top/fifo", tarfile.FIFOTYPE)],
    "no directory first": [TOP, _member("top/a/b")],
    "too large": [TOP, _member("top/bomb", data=b"0" * (LIMIT + 1))],
    "too large in sum": [TOP, *[_member(f"top/{n}", data=b"0" * 600_000) for n in range(2)]],
    "twice": [TOP, _member("top/a"), _member("top/a")],
    "empty": [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(SandboxError):
        unpack(_archive(*HOSTILE[name]), inner / "destination", limit_bytes=LIMIT)
    assert [str(path) for path in tmp_path.rglob("*")] == [str(inner)]


@pytest.mark.parametrize("junk", [b"", b"not a tar at all" * 100, b"\0" * 512])
def test_damaged_archives_are_refused(junk: bytes, tmp_path: Path) -> None:
    with pytest.raises(SandboxError):
        unpack(io.BytesIO(junk), tmp_path / "destination", limit_bytes=LIMIT)
    assert list(tmp_path.iterdir()) == []


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "deep").mkdir(parents=True)
    (source / "a" / "script").write_bytes(b"#!/bin/sh\n")
    (source / "a" / "script").chmod(0o755)
    (source / "a" / "deep" / "data").write_bytes(bytes(range(256)))
    (source / "link").symlink_to("a/script")
    os.link(source / "a" / "script", source / "hard")
    buffer = io.BytesIO()
    pack(source, "source", buffer)
    buffer.seek(0)
    made = tmp_path / "made"
    unpack(buffer, made, limit_bytes=LIMIT)
    assert (made / "a" / "deep" / "data").read_bytes() == bytes(range(256))
    assert (made / "a" / "script").stat().st_mode & 0o777 == 0o755
    assert os.readlink(made / "link") == "a/script"
    assert (made / "hard").read_bytes() == b"#!/bin/sh\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "source"]


def test_set_user_id_does_not_come_along(tmp_path: Path) -> None:
    info, data = _member("top")
    info.mode = 0o6755
    unpack(_archive((info, data)), tmp_path / "made", limit_bytes=LIMIT)
    assert (tmp_path / "made").stat().st_mode & 0o7777 == 0o755


def test_a_destination_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(SandboxError):
        unpack(_archive(_member("top")), tmp_path / "link", limit_bytes=LIMIT)
    assert (tmp_path / "target").read_text() == "precious"


def test_special_files_are_not_packed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SandboxError):
        pack(tmp_path, "x", io.BytesIO())
    with pytest.raises(SandboxError):
        pack(tmp_path / "missing", "x", io.BytesIO())
