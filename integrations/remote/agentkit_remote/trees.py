"""Trees on their way through the wire: a tar that the receiving side judges before it writes anything.

The judge refuses symlinks that leave the tree, since on the receiving machine they could lead anywhere. Into a sandbox
they are fine (a virtual environment is full of them), so on upload they travel apart, as text, and are made last, in
a directory that is packed again without following them.
"""

import os
import posixpath
import tarfile
from pathlib import Path
from typing import IO

from agentkit.errors import SandboxError
from agentkit.sandbox import archive
from agentkit.sandbox.archive import MAX_MEMBERS

TOP = "tree"
Links = list[list[str]]


def pack(source: Path, into: IO[bytes]) -> Links:
    """Write the file or tree `source` as `TOP`; the (path below it, target) pairs of symlinks that leave it. Blocking.

    Raises:
        SandboxError: there is no such file, or it holds something that is no file, directory or symlink.
    """
    links: Links = []

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise SandboxError(f"cannot upload {member.name!r}: neither file, directory nor symlink")
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        path = member.name.partition("/")[2]
        if member.issym() and _leaves(path, member.linkname):
            links.append([path, member.linkname])
            return None
        return member

    try:
        if source.is_symlink() and not source.is_dir():
            source = source.resolve(strict=True)  # what it names: a link alone would lead nowhere
        with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(f"{source}/." if source.is_dir() else source, arcname=TOP, filter=plain)
    except (OSError, ValueError, RuntimeError) as error:
        raise SandboxError(f"cannot upload {str(source)!r}: {error}") from error
    return links


def unpack(spool: IO[bytes], links: tuple[tuple[str, str], ...], directory: Path, *, limit_bytes: int) -> Path:
    """The tree of `spool`, made in the fresh `directory`, with `links`. Blocking.

    Raises:
        SandboxError: it is hostile, damaged or larger than `limit_bytes`.
    """
    top = directory / TOP
    archive.unpack(spool, top, limit_bytes=limit_bytes)
    if len(links) > MAX_MEMBERS:
        raise SandboxError(f"archive holds more than {MAX_MEMBERS} symlinks")
    real = os.path.realpath(top)
    try:
        for path, target in links:
            parent, name = os.path.split(path)
            if not name or name in (".", "..") or "\0" in path + target or path.startswith("/"):
                raise SandboxError(f"archive symlink {path!r} leaves the destination")
            above = os.path.realpath(top / parent)
            if above != real and not above.startswith(f"{real}/"):
                raise SandboxError(f"archive symlink {path!r} leaves the destination")
            os.symlink(target, top / parent / name)
        _restore_modes(spool, top)
    except (OSError, ValueError, tarfile.TarError) as error:
        raise SandboxError(f"cannot unpack: {error}") from error
    return top


def _leaves(path: str, target: str) -> bool:
    end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return not path or target.startswith("/") or end.split("/")[0] == ".."


def _restore_modes(spool: IO[bytes], top: Path) -> None:
    """The judge leaves every file writable to its owner; those that were not are made so again."""
    spool.seek(0)
    with tarfile.open(fileobj=spool, mode="r:") as tar:
        for member in tar:
            if member.isreg() and member.mode & 0o600 == 0o400:
                os.chmod(top / member.name.partition("/")[2], member.mode & 0o777)
