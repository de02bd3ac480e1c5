"""What the files of a bubblewrap sandbox are made of: which directories, one over another, and who may write them.

Three kinds, which share one tmpfs of a limited size for all that is written:

plain     the machine's programs read-only; /tmp, the home and the working directory are empty and private.
rootfs    a directory of the machine is the root, copy-on-write.
overlay   the machine's programs, copy-on-write: what is read-only in a plain sandbox can be written.

In the last two programs are root inside: 0 of a user namespace, which outside is an id of this sandbox alone, with the
capabilities that concern files and users and none that concern mounts, networks or devices.

A snapshot is what was written to each place; it is one more layer below the same place of another sandbox.
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from agentkit.errors import ConfigError
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox._spawner_mounts import SCRATCH
from agentkit.sandbox.snapshot import Layer

HOME = "/home/agent"
ROOT_HOME = "/root"
IDS = 65536
MOST_LAYERS = 200
"""As many snapshots can be one over another: their names must fit on one page."""
CAPABILITIES = sum(1 << number for number in (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 18, 31))
"""chown, dac_override, dac_read_search, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot,
setfcap."""
MOST_OPENED = 400
_INSTALLED_TO = (
    *("bin", "sbin", "include", "lib", "lib/python3", "lib/python3/dist-packages", "libexec", "local", "share"),
    *("share/man", "share/man/man1", "share/doc", "src"),
)
PRIVATE = ("/tmp", HOME)  # noqa: S108  # the sandbox's own
SHARED_MEMORY = "/dev/shm"  # noqa: S108
ETC_DIRECTORIES = (
    *("alternatives", "ca-certificates", "fonts", "java-17-openjdk", "ld.so.conf.d", "perl", "pki", "python3"),
    *("python3.11", "ssl/certs", "terminfo", "vim", "xdg"),
)
ETC_FILES = (
    *("bash.bashrc", "ca-certificates.conf", "debian_version", "gitconfig", "host.conf", "hosts", "inputrc"),
    *("ld.so.cache", "ld.so.conf", "localtime", "login.defs", "magic", "mime.types", "networks", "nsswitch.conf"),
    *("os-release", "profile", "protocols", "rpc", "services", "shells", "ssl/openssl.cnf", "timezone"),
)
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@frozen
class Owner:
    """Who owns what a sandbox writes: `first` of `count` ids. `ordinary` where root did not start it."""

    first: int
    count: int
    ordinary: bool


@frozen
class Source:
    """A place inside, and the directory of the machine that it starts from, if any."""

    inside: str
    below: str | None = None


@frozen
class Layout:
    """The files of one sandbox. `kept` names the directories of the tmpfs that a snapshot consists of."""

    sources: tuple[Source, ...]
    words: tuple[str, ...]
    plan: Mapping[str, Any] = field(repr=False)

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(f"u{number}" for number in range(len(self.sources)))


def kind_of(spec: SandboxSpec, overlay: bool) -> str:
    """Snapshots fit sandboxes of the kind that they were taken of."""
    if spec.rootfs is not None:
        return f"rootfs {spec.rootfs}"
    return "overlay" if overlay else "plain"


def can_overlay(*, root: bool, release: str | None = None, proc: Path = Path("/proc")) -> bool:
    """Whether this kernel has overlays as needed: over id-mapped mounts as root, with attributes in a tmpfs else."""
    release = release or platform.release()
    numbers = [int(part) for part in release.split("-")[0].split("+")[0].split(".")[:2] if part.isdecimal()]
    try:
        known = "\toverlay\n" in (proc / "filesystems").read_text()
    except OSError:
        known = False
    known = known or (root and Path(f"/lib/modules/{release}/kernel/fs/overlayfs").exists())
    return known and numbers >= ([5, 19] if root else [6, 6])


def size_of(spec: SandboxSpec, most: int) -> int:
    """The size of the tmpfs: with limited memory, which it counts to, no more than leaves room for programs."""
    size = spec.limits.disk_bytes or most
    if spec.limits.memory_bytes is not None:
        size = min(size, max(spec.limits.memory_bytes * 3 // 4, 4096))
    return size


def lay_out(spec: SandboxSpec, *, overlay: bool, owner: Owner, size: int, layers: Sequence[Layer]) -> Layout:
    """The files for `spec`; `layers` are those of its snapshot, topmost first.

    Raises:
        ConfigError: there are too many layers, or the root file system is none.
    """
    if len(layers) > MOST_LAYERS:
        raise ConfigError(f"snapshot is the last of {len(layers)} in a row, and at most {MOST_LAYERS} can be stacked")
    rooted = spec.rootfs is not None or overlay
    if spec.rootfs is not None and not (spec.rootfs.startswith("/") and Path(spec.rootfs).is_dir()):
        raise ConfigError(f"rootfs must be the absolute path of a directory, found {spec.rootfs!r}")
    sources = {source.inside: source for source in _sources(spec, overlay)}
    for layer in layers:  # whatever it has is shown, also what this spec would not have asked for
        for inside in layer.insides:
            sources.setdefault(inside, Source(inside))
    places = tuple(sources.values())
    paths: dict[tuple[str, int], int] = {}
    wire: list[tuple[str, tuple[int, int, int] | None]] = []

    def number_of(path: str, first: int, count: int) -> int:
        """The number of the layer that shows `path`, whose owners are `count` ids from `first` on."""
        if (path, first) not in paths:
            paths[path, first] = len(wire)
            shift = not owner.ordinary and rooted_or_other(first)
            wire.append((path, (first, owner.first, min(count, owner.count)) if shift else None))
        return paths[path, first]

    def rooted_or_other(first: int) -> bool:
        return first != owner.first

    plans: list[dict[str, Any]] = []
    for place in places:
        below = [
            number_of(f"{layer.directory}/{layer.insides.index(place.inside)}", layer.owner, layer.count)
            for layer in layers
            if place.inside in layer.insides
        ]
        if place.below is not None:
            below.append(number_of(place.below, 0, IDS))
        opened: list[tuple[str, int]] = []
        if owner.ordinary and place.below is not None and len(below) == 1:
            opened = _foreign(Path(place.below), "usr/" if place.inside == "/" else "")
        plans.append({"layers": below, "mode": None if below else _mode(place.inside), "open": opened})
    plans.append({"layers": [], "mode": 0o1777, "open": []})
    root = 0 if rooted else None
    make, write, link = _contents(spec, places, overlay=overlay, fresh=not layers) if rooted else ([], [], [])
    plan = {
        "ordinary": owner.ordinary,
        "owner": 0 if owner.ordinary else owner.first,
        "users": rooted and not owner.ordinary,
        "size": size,
        "inodes": max(size // 4096, 4096),
        "layers": wire,
        "places": plans,
        "shared": [outside for outside, _ in spec.read_only] if rooted else [],
        "make": [(root, path, mode) for path, mode in make],
        "write": [(root, path, text, source) for path, text, source in write],
        "link": [(root, path, target) for path, target in link],
    }
    words: list[str] = []
    for number, (place, made) in enumerate(zip(places, plans, strict=False)):
        words += ["--bind", f"{SCRATCH}/{'m' if made['layers'] else 'u'}{number}", place.inside]
    return Layout(places, tuple(words), plan)


def _sources(spec: SandboxSpec, overlay: bool) -> list[Source]:
    if spec.rootfs is not None:
        return [Source("/", spec.rootfs)]
    if not overlay:
        return [Source(path) for path in dict.fromkeys((*PRIVATE, spec.cwd)) if not _is_below(path, PRIVATE)]
    real = [f"/{name}" for name in SYSTEM if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
    etc = [f"/etc/{name}" for name in ETC_DIRECTORIES if os.path.isdir(f"/etc/{name}")]
    own = [] if sys.base_prefix.startswith("/usr") else [sys.base_prefix]
    return [Source("/"), *(Source(path, path) for path in ("/usr", *real, *own, *etc))]


def _foreign(root: Path, usr: str) -> list[tuple[str, int]]:
    """The directories of others in which an ordinary user's root inside is to make, replace and delete entries.

    Each is made again in what is written, and so is that user's; what they hold is shown as before. A few that programs
    are installed to, and not all: there may be tens of thousands.
    """
    wanted = [f"{usr}{name}" for name in _INSTALLED_TO]
    if usr:
        wanted = ["etc", "home", "opt", "root", "srv", "tmp", "usr", "var", "var/lib", "var/tmp", *wanted]
    for name in sorted(f"{usr}{entry}" for entry in ("local", "lib/python3")):
        for directory, below, _ in os.walk(root / name):
            wanted += [str(Path(directory, entry).relative_to(root)) for entry in below]
            if len(wanted) > MOST_OPENED:
                break
    found: dict[str, int] = {}
    for name in sorted(set(wanted[:MOST_OPENED])):
        above = os.path.dirname(name)
        path = root / name
        if (
            (not above or above in found)
            and path.is_dir()
            and not path.is_symlink()
            and path.stat().st_uid != os.geteuid()
        ):
            found[name] = path.stat().st_mode & 0o1777
    return list(found.items())


def _is_below(path: str, others: Sequence[str]) -> bool:
    return any(path.startswith(f"{other}/") for other in others)


def _mode(inside: str) -> int:
    return 0o755 if inside == "/" else 0o1777


Contents = tuple[list[tuple[str, int]], list[tuple[str, str | None, str | None]], list[tuple[str, str]]]


def _contents(spec: SandboxSpec, places: Sequence[Source], *, overlay: bool, fresh: bool) -> Contents:
    """What the root must hold before bwrap mounts on it: directories, files and symlinks."""
    make = [("proc", 0o755), ("dev", 0o755), ("tmp", 0o1777)]
    write: list[tuple[str, str | None, str | None]] = []
    link: list[tuple[str, str]] = []
    make += [(place.inside.strip("/"), 0o755) for place in places if place.inside != "/"]
    for outside, inside in spec.read_only:
        target = inside if os.path.isdir(outside) else os.path.dirname(inside)
        if not _is_below(target, [place.inside for place in places if place.inside != "/"]):
            make.append((target.strip("/"), 0o755))
    if spec.rootfs is None and overlay and fresh:
        make += [("root", 0o700), ("var/tmp", 0o1777), ("run", 0o755), ("opt", 0o755), ("srv", 0o755), ("mnt", 0o755)]
        write += [(f"etc/{name}", None, f"/etc/{name}") for name in ETC_FILES]
        write.append(("etc/passwd", _PASSWD, None))
        write.append(("etc/group", _GROUP, None))
        link += [(name, os.readlink(f"/{name}")) for name in SYSTEM if os.path.islink(f"/{name}")]
    if spec.network == "host":
        write.append(("etc/resolv.conf", None, "/etc/resolv.conf"))
    return make, write, link


_PASSWD = """root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = "root:x:0:\ndaemon:x:1:\nstaff:x:50:\nnogroup:x:65534:\n"
