"""The mounts of one sandbox, made by the process that is about to become its bwrap; part of the spawner.

Standard library only.

One tmpfs of a limited size holds everything that is written. It is mounted in a mount namespace of its own, over a
directory that no sandbox needs, so that neither a path nor a mount of the machine changes and the end of the sandbox is
the end of its files:

    /sys/l0, l1, ...   directories of the machine, read-only, their owners shifted where that was asked for
    /sys/r0, r1, ...   what of the machine is shown as it is
    /sys/u0, u1, ...   what is written, one directory for each place inside
    /sys/w0, w1, ...   work directories of overlays
    /sys/m0, m1, ...   overlays: some l's below, the u of the same number above

Without a layer below, the u is the place. Started by root, owners are shifted by id-mapped mounts: what belongs to
0 in a root file system belongs to the sandbox's own 0, an id that means nothing outside of it. Anybody else makes a
user namespace first, in which they are 0.
"""

import contextlib
import ctypes
import errno
import json
import os
import stat
import sys
from typing import Any

SCRATCH = "/sys"
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE = 1, 2, 4, 1 << 14, 1 << 19
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_MOUNT_F_EMPTY_PATH = 1, 0o2000000, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_IDMAP = 1, 0x100000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Attributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("users", ctypes.c_uint64),
    )


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, flags: int, options: str, what: str) -> None:
    check(LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode() or None), what)


def user_namespace(inside: int, outside: int, count: int) -> int:
    """A descriptor of a new user namespace in which `count` ids from `inside` on are those from `outside` on."""
    ready, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            if LIBC.unshare(CLONE_NEWUSER) == 0:
                os.write(tell, b"x")
                os.read(wait, 1)
        finally:
            os._exit(0)
    try:
        os.close(tell)
        if not os.read(ready, 1):
            raise OSError(errno.EPERM, "a user namespace cannot be made here")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"{inside} {outside} {count}\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    finally:
        for fd in (ready, wait, go):
            os.close(fd)
        os.waitpid(pid, 0)


def become_root_of_a_namespace() -> None:
    """As an ordinary user: a user namespace in which that user is 0, and a mount namespace of it."""
    uid, gid = os.geteuid(), os.getegid()
    check(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS), "a user namespace cannot be made here")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def attach(path: str, target: str, users: int | None, *, recursive: bool = False) -> None:
    """Show `path` at `target`, read-only, with the owners that the user namespace `users` says."""
    what = f"{path!r} cannot be mounted"
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    tree = check(LIBC.syscall(SYS_OPEN_TREE, AT_FDCWD, path.encode(), flags), what)
    try:
        attributes = Attributes(MOUNT_ATTR_RDONLY, 0, 0, 0)
        if users is not None:
            attributes = Attributes(MOUNT_ATTR_RDONLY | MOUNT_ATTR_IDMAP, 0, 0, users)
            what = f"the owners of {path!r} cannot be shifted; its file system may have no id-mapped mounts"
        size = ctypes.sizeof(attributes)
        check(LIBC.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), size), what)
        flags = MOVE_MOUNT_F_EMPTY_PATH
        check(LIBC.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), flags), what)
    finally:
        os.close(tree)


def prepare(plan: dict[str, Any]) -> None:
    """Make the mounts that `plan` wants, and become who is to make the sandbox.

    Keys: `ordinary` (whether it needs a user namespace to make mounts at all), `users` (whether, started by root, it is
    0 of a user namespace from then on: whatever of a root file system runs as 0 must not be the machine's root),
    `owner` (of what is made), `size`, `inodes`, `layers` ([path, null or [id on disk, id here, how many]]), `shared`
    (paths to show as they are), `places` ({layers: numbers, topmost first, mode or null, open:
    directories below to make ours}), and what a place must have
    from the start: `make` ([place, path, mode]), `write` ([place, path, text or null, path to copy]), `link` ([place,
    path, target]). Paths in a place follow no symlink.
    """
    if plan["ordinary"]:
        become_root_of_a_namespace()
    else:
        check(LIBC.unshare(CLONE_NEWNS), "a mount namespace cannot be made here")
    mount("none", "/", "none", MS_REC | MS_SLAVE, "", "mounts cannot be made private")
    size = f"mode=0755,size={plan['size']},nr_inodes={plan['inodes']}"
    mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, size, "a tmpfs cannot be mounted")
    os.chdir(SCRATCH)
    os.umask(0)
    owner = plan["owner"]
    maps = {(0, owner, 65536): user_namespace(0, owner, 65536)} if plan["users"] else {}
    for number, (path, ids) in enumerate(plan["layers"]):
        os.mkdir(f"l{number}")
        if ids is not None and tuple(ids) not in maps:
            maps[tuple(ids)] = user_namespace(*ids)
        attach(path, f"l{number}", None if ids is None else maps[tuple(ids)])
    for number, path in enumerate(plan["shared"]):
        if os.path.isdir(path):
            os.mkdir(f"r{number}")
        else:
            os.close(os.open(f"r{number}", os.O_CREAT | os.O_WRONLY, 0o600))
        attach(path, f"r{number}", None, recursive=True)
    for number, place in enumerate(plan["places"]):
        os.mkdir(f"u{number}", 0o755 if place["mode"] is None else place["mode"])
        os.chown(f"u{number}", owner, owner)
        for path, mode in place["open"]:
            os.mkdir(f"u{number}/{path}", mode)
            os.chown(f"u{number}/{path}", owner, owner)
        if place["layers"]:
            if place["mode"] is None:  # that of the directory it covers
                os.chmod(f"u{number}", stat.S_IMODE(os.stat(f"l{place['layers'][0]}").st_mode))
            os.mkdir(f"w{number}", 0o755)
            os.mkdir(f"m{number}")
            extra = "userxattr" if plan["ordinary"] else "redirect_dir=on,metacopy=off"
            lower = ":".join(f"l{layer}" for layer in place["layers"])
            options = f"lowerdir={lower},upperdir=u{number},workdir=w{number},index=off,{extra}"
            flags = MS_NOSUID | MS_NODEV
            mount("overlay", f"m{number}", "overlay", flags, options, "an overlay cannot be mounted")
    for number, path, mode in plan["make"]:
        os.close(directory(root_of(plan, number), path, owner, mode))
    for number, path, text, source in plan["write"]:
        write(root_of(plan, number), path, text, source, owner)
    for number, path, target in plan["link"]:
        above = directory(root_of(plan, number), os.path.dirname(path), owner, 0o755)
        os.symlink(target, os.path.basename(path), dir_fd=above)
        os.chown(os.path.basename(path), owner, owner, dir_fd=above, follow_symlinks=False)
        os.close(above)
    os.umask(0o022)
    os.chdir("/")
    if plan["users"]:
        check(LIBC.setns(maps[0, owner, 65536], CLONE_NEWUSER), "setns user")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def root_of(plan: dict[str, Any], number: int) -> str:
    """Where a place is, seen from the tmpfs."""
    return f"{'m' if plan['places'][number]['layers'] else 'u'}{number}"


def directory(root: str, path: str, owner: int, mode: int) -> int:
    """A descriptor of the directory `path` below `root`, made where missing; a symlink on the way is an error."""
    found = os.open(root, DIRECTORY)
    parts = [part for part in path.split("/") if part]
    for number, part in enumerate(parts, 1):
        made = True
        try:
            os.mkdir(part, mode if number == len(parts) else 0o755, dir_fd=found)
        except FileExistsError:
            made = False
        try:
            below = os.open(part, DIRECTORY, dir_fd=found)
        except OSError as error:
            raise OSError(error.errno, f"{'/'.join(parts[:number])!r} in the sandbox must be a directory") from error
        finally:
            os.close(found)
        found = below
        if made:
            os.chown(found, owner, owner)
    return found


def write(root: str, path: str, text: str | None, source: str | None, owner: int) -> None:
    """Put a file below `root`, in place of whatever is there: `text`, or a copy of the machine's `source`."""
    data = b"" if text is None else text.encode()
    mode = 0o644
    if source is not None:
        try:
            with open(source, "rb") as file:
                data = file.read()
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        except OSError:
            return
    above = directory(root, os.path.dirname(path), owner, 0o755)
    try:
        name = os.path.basename(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=above)
        with open(fd, "wb") as new:
            new.write(data)
            os.fchown(fd, owner, owner)
    finally:
        os.close(above)


def main() -> None:
    """Make mounts and become a program: what `available` tries."""
    prepare(json.loads(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
