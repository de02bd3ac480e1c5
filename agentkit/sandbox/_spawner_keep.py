"""Copies what a sandbox has written to a directory of the machine; part of the spawner, standard library only.

The source is the upper directories of the sandbox's overlays, so a copy holds the marks of what was deleted (devices
0:0) and of directories that hide those below them (extended attributes), and can be a layer again. What is in it was
made by the sandbox: every name is opened relative to its directory and no symlink is followed. A file's holes stay
holes, else a sparse file of a terabyte would fill the disk. What vanishes meanwhile is left out.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence

DEEPEST = 400
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LAYER_MARKS = ("opaque", "redirect", "whiteout")
"""The attributes by which overlays say something of a layer; their others belong to one mount."""


class Copy:
    """One copy under way, into the directory `target`."""

    def __init__(self, target: str) -> None:
        self.top = os.open(target, DIRECTORY)
        self.links: dict[tuple[int, int], str] = {}

    def directory(self, source: int, name: str, target: int, path: str, depth: int = 0) -> None:
        """Copy a directory of the open directory `source` with all below it; `path` is its path from the top."""
        if depth > DEEPEST:
            raise OSError(errno.ENAMETOOLONG, f"directories are nested more than {DEEPEST} deep")
        new = os.path.basename(path)
        os.mkdir(new, 0o700, dir_fd=target)
        with opened(source, name, DIRECTORY) as below, opened(target, new, DIRECTORY) as made:
            for entry in os.listdir(below):
                with contextlib.suppress(FileNotFoundError):
                    self.entry(below, entry, made, f"{path}/{entry}", depth)
            finish(below, made, os.fstat(below))

    def entry(self, source: int, name: str, target: int, path: str, depth: int) -> None:
        """Copy whatever `name` is."""
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        kind, mode = stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode)
        deleted = kind == stat.S_IFCHR and found.st_rdev == 0
        if kind == stat.S_IFDIR:
            self.directory(source, name, target, path, depth + 1)
            return
        first = self.links.get((found.st_dev, found.st_ino))
        if first is not None and not deleted:
            os.link(first, name, src_dir_fd=self.top, dst_dir_fd=target, follow_symlinks=False)
            return
        if kind == stat.S_IFREG:
            with (
                opened(source, name, FILE) as read,
                opened(target, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC) as write,
            ):
                copy_data(read, write)
                finish(read, write, found)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
            times = (found.st_atime_ns, found.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)
        elif deleted:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)
        elif kind == stat.S_IFIFO:
            os.mknod(name, stat.S_IFIFO | 0o600, 0, dir_fd=target)
            os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
            os.chmod(name, mode, dir_fd=target)
        else:  # a socket, which nobody listens to any more
            return
        if found.st_nlink > 1 and len(path) < 4000:
            self.links[found.st_dev, found.st_ino] = path


@contextlib.contextmanager
def opened(directory: int, name: str, flags: int) -> Iterator[int]:
    """A descriptor of an entry of a directory."""
    fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def copy_data(read: int, write: int) -> None:
    """Copy a file's data, not its holes."""
    size = os.fstat(read).st_size
    os.ftruncate(write, size)
    start = 0
    while start < size:
        try:
            start = os.lseek(read, start, os.SEEK_DATA)
            end = os.lseek(read, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        os.lseek(write, start, os.SEEK_SET)
        while start < end:
            sent = os.sendfile(write, read, start, min(end - start, 1 << 24))
            if not sent:
                return
            start += sent


def finish(read: int, write: int, found: os.stat_result) -> None:
    """Give a file or directory the owner, mode, attributes and times of the other."""
    os.fchown(write, found.st_uid, found.st_gid)
    os.fchmod(write, stat.S_IMODE(found.st_mode))
    for name in os.listxattr(read):
        space, _, rest = name.partition(".overlay.")
        if space in ("trusted", "user") and rest and rest not in LAYER_MARKS and not rest.startswith("overlay."):
            continue
        try:
            os.setxattr(write, name, os.getxattr(read, name))
        except OSError as error:
            if not (name.startswith(("security.", "system.")) and error.errno in (errno.EPERM, errno.ENOTSUP)):
                raise
    os.utime(write, ns=(found.st_atime_ns, found.st_mtime_ns))


def keep(source: int, names: Sequence[str], target: str) -> None:
    """Copy directories of the open directory `source`, to `target`/0, 1, ..."""
    copy = Copy(target)
    for number, name in enumerate(names):
        copy.directory(source, name, copy.top, str(number))
