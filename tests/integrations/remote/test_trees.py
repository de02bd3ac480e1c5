import contextlib
import io
import os
import tarfile
from pathlib import Path

import pytest
from agentkit_remote import trees
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import SandboxError

LIMIT = 10_000_000


def carry(source: Path, directory: Path) -> Path:
    spool = io.BytesIO()
    links = trees.pack(source, spool)
    spool.seek(0)
    directory.mkdir()
    return trees.unpack(spool, tuple((path, target) for path, target in links), directory, limit_bytes=LIMIT)


def picture(top: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = (path.stat().st_mode & 0o777, path.read_bytes())
    return found


def test_a_tree_arrives_with_modes_and_all_its_symlinks(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "bin" / "deep").mkdir(parents=True)
    (source / "bin" / "python").symlink_to("/usr/bin/python3")
    (source / "bin" / "up").symlink_to("../../beside")
    (source / "bin" / "in").symlink_to("deep")
    (source / "dangling").symlink_to("nowhere")
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "locked").write_text("x")
    (source / "locked").chmod(0o444)
    os.link(source / "run", source / "again")
    got = carry(source, tmp_path / "to")
    assert picture(got) == picture(source)
    single = carry(source / "locked", tmp_path / "one")
    assert (single.read_text(), single.stat().st_mode & 0o777) == ("x", 0o444)
    (tmp_path / "link").symlink_to(source)
    assert picture(carry(tmp_path / "link", tmp_path / "linked")) == picture(source)


def test_what_cannot_be_packed_is_said(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="missing"):
        trees.pack(tmp_path / "missing", io.BytesIO())
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree" / "pipe")
    with pytest.raises(SandboxError, match="pipe"):
        trees.pack(tmp_path / "tree", io.BytesIO())


def spool_of(*names: str) -> io.BytesIO:
    spool = io.BytesIO()
    with tarfile.open(fileobj=spool, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            tar.addfile(member, io.BytesIO())
    spool.seek(0)
    return spool


HOSTILE = [
    "../escaped", "/escaped", "sub/../../escaped", "..", ".", "", "sub/..", "jump/escaped", "sub\0/x",
    "sub/a/b/../../../../e",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_symlink_lands_nowhere(path: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    directory = tmp_path / "to"
    directory.mkdir()
    links = (("jump", str(outside)), (path, "/etc"))
    with pytest.raises(SandboxError):
        trees.unpack(spool_of("tree/", "tree/sub/"), links, directory, limit_bytes=LIMIT)
    assert list(outside.iterdir()) == []
    assert sorted(found.name for found in tmp_path.iterdir()) == ["outside", "to"]
    assert [found.name for found in directory.iterdir()] in ([], ["tree"])


PATHS = st.lists(st.sampled_from(["..", ".", "a", "b", "sub", "", "/"]), min_size=1, max_size=5).map("/".join)


@given(st.lists(st.tuples(PATHS, PATHS), max_size=6))
def test_whatever_the_symlinks_nothing_is_made_outside(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]]
) -> None:
    base = tmp_path_factory.mktemp("links")
    (base / "to").mkdir()
    with contextlib.suppress(SandboxError):
        trees.unpack(spool_of("tree/", "tree/sub/", "tree/a"), tuple(links), base / "to", limit_bytes=LIMIT)
    assert [path.name for path in base.iterdir()] == ["to"]
    assert [path.name for path in (base / "to").iterdir()] == ["tree"]


def test_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 2000)
    spool = io.BytesIO()
    trees.pack(tmp_path / "large", spool)
    spool.seek(0)
    (tmp_path / "to").mkdir()
    with pytest.raises(SandboxError, match="1000"):
        trees.unpack(spool, (), tmp_path / "to", limit_bytes=1000)
    assert list((tmp_path / "to").iterdir()) == []
