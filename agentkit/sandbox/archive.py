"""Trees as tar streams: packing ours, and unpacking one that may be hostile. Blocking; run in a thread.

Unpacking trusts nothing. Every member is judged before the first byte is written. Everything is written into a fresh
directory beside the destination, symlinks last so that nothing goes through one; then one rename puts it in place.
"""

import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from agentkit.errors import SandboxError
from agentkit.sandbox.leaks import remove_tree

MAX_MEMBERS = 200_000


def pack(source: Path, name: str, into: IO[bytes]) -> None:
    """Write `source`, a file or tree, as member `name`; modes and symlinks kept, owners not.

    Raises:
        SandboxError: there is no such file, or it holds something that is no file, directory or symlink.
    """

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise SandboxError(f"cannot upload {member.name!r}: neither file, directory nor symlink")
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    try:
        with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(source, arcname=name, filter=plain)
    except OSError as error:
        raise SandboxError(f"cannot upload {str(source)!r}: {error}") from error


def unpack(archive: IO[bytes], destination: Path, *, limit_bytes: int) -> None:
    """Unpack the one top-level entry of `archive` as `destination`.

    That must not exist or be an empty directory, or, for a file, may be a file, which is replaced.

    Raises:
        SandboxError: the archive is hostile, damaged or larger than `limit_bytes`; nothing was written then.
    """
    destination = destination.parent.resolve() / destination.name
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            members = _judge(tar, limit_bytes)
            destination.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=".agentkit-", dir=destination.parent))
            try:
                _write(tar, members, work / "top")
                _place(work / "top", destination)
            finally:
                remove_tree(work)
    except (tarfile.TarError, OSError, ValueError) as error:
        raise SandboxError(f"cannot unpack into {str(destination)!r}: {error}") from error


def _judge(tar: tarfile.TarFile, limit_bytes: int) -> dict[str, tarfile.TarInfo]:
    """The members by their path below the top entry ("" for the top itself), all of them harmless."""
    found: dict[str, tarfile.TarInfo] = {}
    top: str | None = None
    total = 0
    for member in tar:
        name = member.name.removeprefix("./") if member.name != "." else "."
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "" in parts or "\0" in name:
            raise SandboxError(f"archive member {member.name!r} leaves the destination")
        top = parts[0] if top is None else top
        if parts[0] != top:
            raise SandboxError(f"archive has a second top entry {parts[0]!r} beside {top!r}")
        path = "/".join(parts[1:])
        if path in found:
            raise SandboxError(f"archive has {member.name!r} twice")
        if member.issym():
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
            if not path or member.linkname.startswith("/") or target.split("/")[0] == "..":
                raise SandboxError(f"archive symlink {member.name!r} -> {member.linkname!r} leaves the destination")
        elif member.islnk():
            target = "/".join(member.linkname.removeprefix("./").split("/")[1:])
            if target not in found or not found[target].isreg():
                raise SandboxError(f"archive hard link {member.name!r} -> {member.linkname!r} is to no earlier file")
        elif not (member.isreg() or member.isdir()) or member.issparse():
            raise SandboxError(f"archive member {member.name!r} is neither file, directory nor link")
        parent = path
        while parent:
            parent = posixpath.dirname(parent)
            if parent in found and not found[parent].isdir():
                raise SandboxError(f"archive member {member.name!r} goes through {parent!r}, which is no directory")
            if parent not in found and path:
                raise SandboxError(f"archive member {member.name!r} comes before its directory")
        total += member.size
        found[path] = member
        if total > limit_bytes or len(found) > MAX_MEMBERS:
            raise SandboxError(f"archive holds more than {limit_bytes} bytes or {MAX_MEMBERS} entries")
    if not found:
        raise SandboxError("archive is empty")
    return found


def _write(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], top: Path) -> None:
    for path, member in members.items():
        place = top / path if path else top
        if member.isdir():
            place.mkdir(mode=0o700)
        elif member.isreg():
            content = tar.extractfile(member)
            if content is None:
                raise SandboxError(f"archive member {member.name!r} has no content")
            fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                shutil.copyfileobj(content, file)
            os.chmod(place, member.mode & 0o777 | 0o600)
        elif member.islnk():
            os.link(top / "/".join(member.linkname.removeprefix("./").split("/")[1:]), place, follow_symlinks=False)
    for path, member in members.items():
        if member.issym():
            os.symlink(member.linkname, top / path)
    for path, member in reversed(members.items()):
        if member.isdir():
            os.chmod(top / path if path else top, member.mode & 0o777 | 0o700)


def _place(made: Path, destination: Path) -> None:
    try:
        there = destination.lstat()
    except FileNotFoundError:
        there = None
    if there is not None and stat.S_ISDIR(there.st_mode) and made.is_dir():
        os.rmdir(destination)  # fails where it is not empty
    elif there is not None and not (stat.S_ISREG(there.st_mode) and made.is_file()):
        raise SandboxError(f"{str(destination)!r} exists and is not of the kind to replace")
    os.rename(made, destination)
