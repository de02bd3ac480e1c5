"""Control groups for sandboxes: where this process may make some, and what to write into them.

    v1   one hierarchy a controller: <mount>/<our own group>/agentkit-<owner>-<n>
    v2   one hierarchy: the nearest group from ours upwards in which we may make others and whose subgroups get the
         controllers. That is never the group we are in, unless it is the root: with controllers for its subgroups a
         group cannot hold processes itself.

The spawner makes a group before the processes it is for, and removes it after their end; a group carries its owner in
its name, so `reap_cgroups` can remove what both left when they were killed.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox.leaks import PREFIX, is_dead

CONTROLLERS = {"memory_bytes": "memory", "processes": "pids", "cpus": "cpu"}
OWN_PROCESSES = 3
"""Processes of a sandbox that are not its programs': bwrap outside, its init, and what holds the namespaces."""
PERIOD_US = 100_000

_PROC = Path("/proc/self")


@frozen
class Hierarchy:
    """A directory in which groups can be made, and the controllers that bind them there."""

    directory: Path
    version: int
    controllers: frozenset[str]


@frozen
class Mount:
    """A mounted cgroup file system: where, which part of it, and the controllers of v1 (none for v2)."""

    point: Path
    root: str
    version: int
    controllers: frozenset[str]


def find_hierarchies(proc: Path = _PROC) -> tuple[Hierarchy, ...]:
    """Where this process can make groups that bind memory, processes or processors; makes and removes one to see."""
    try:
        mounts = tuple(_mounts((proc / "mountinfo").read_text()))
        groups = _own_groups((proc / "cgroup").read_text())
    except OSError:
        return ()
    found: list[Hierarchy] = []
    left = set(CONTROLLERS.values())
    for mount in mounts:
        wanted = mount.controllers & left
        if mount.version == 1 and wanted:
            own = groups.get(next(iter(sorted(wanted))))
            directory = mount.point if own is None else _below(mount, own)
            if _can_make(directory):
                found.append(Hierarchy(directory, 1, frozenset(wanted)))
                left -= wanted
    for mount in mounts:
        if mount.version == 2 and left:
            hierarchy = _nearest(mount, _below(mount, groups.get("", "/")), frozenset(left))
            if hierarchy is not None:
                found.append(hierarchy)
                left -= hierarchy.controllers
    return tuple(found)


def enforced(hierarchies: tuple[Hierarchy, ...]) -> frozenset[str]:
    """The fields of `Limits` that groups there can keep."""
    there = {controller for hierarchy in hierarchies for controller in hierarchy.controllers}
    return frozenset(limit for limit, controller in CONTROLLERS.items() if controller in there)


def groups_for(name: str, limits: Limits, hierarchies: tuple[Hierarchy, ...]) -> list[dict[str, object]]:
    """What the spawner is to make for sandbox `name`: groups with the files to write, none where nothing is limited."""
    groups: list[dict[str, object]] = []
    for hierarchy in hierarchies:
        files = list(_files(limits, hierarchy))
        if files:
            groups.append({"path": str(hierarchy.directory / f"{PREFIX}{name}"), "set": files})
    return groups


def reap_cgroups(hierarchies: tuple[Hierarchy, ...] | None = None) -> tuple[str, ...]:
    """Remove the groups of owners that have ended, and return their paths. Safe to run at any time.

    Their processes are dead by then, or dying: a group that still holds one stays for the next time.
    """
    removed: list[str] = []
    for hierarchy in find_hierarchies() if hierarchies is None else hierarchies:
        for path in hierarchy.directory.glob(f"{PREFIX}*"):
            if path.is_dir() and not path.is_symlink() and is_dead(path.name.removeprefix(PREFIX)):
                try:
                    path.rmdir()
                except OSError:
                    continue
                removed.append(str(path))
    return tuple(removed)


def _mounts(mountinfo: str) -> Iterator[Mount]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *rest) = before.split(), after.split() or [""]
        if len(fields) < 5 or kind not in ("cgroup", "cgroup2"):
            continue
        options = frozenset(rest[-1].split(",")) if rest else frozenset[str]()
        point = Path(fields[4].encode().decode("unicode_escape"))
        version = 2 if kind == "cgroup2" else 1
        yield Mount(point, fields[3], version, options if version == 1 else frozenset())


def _own_groups(cgroup: str) -> Mapping[str, str]:
    """Our group by controller; that of v2 has the empty name."""
    groups: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            groups[name] = path
    return groups


def _below(mount: Mount, group: str) -> Path:
    """The directory of `group` as far as the mount shows it: a container may see no more than its own part."""
    root = mount.root.rstrip("/")
    inside = group.removeprefix(root) if f"{group}/".startswith(f"{root}/") else ""
    directory = mount.point / inside.strip("/")
    return directory if directory.is_dir() and ".." not in Path(inside).parts else mount.point


def _nearest(mount: Mount, own: Path, wanted: frozenset[str]) -> Hierarchy | None:
    best: Hierarchy | None = None
    for directory in (own, *own.parents):
        given = _given(directory, wanted)
        better = best is None or len(given) > len(best.controllers)
        if given and better and os.access(directory / "cgroup.procs", os.W_OK) and _can_make(directory):
            best = Hierarchy(directory, 2, given)
        if directory == mount.point or (best is not None and best.controllers == wanted):
            break
    return best


def _given(directory: Path, wanted: frozenset[str]) -> frozenset[str]:
    """The controllers that bind groups made in `directory`."""
    try:
        there = frozenset((directory / "cgroup.controllers").read_text().split()) & wanted
        given = frozenset((directory / "cgroup.subtree_control").read_text().split()) & wanted
        if there - given and os.access(directory / "cgroup.subtree_control", os.W_OK):
            try:
                (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(there)))
            except OSError:  # it holds processes itself
                return given
            given = frozenset((directory / "cgroup.subtree_control").read_text().split()) & wanted
    except OSError:
        return frozenset()
    return given


def _can_make(directory: Path) -> bool:
    probe = directory / f"agentkit.probe.{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _files(limits: Limits, hierarchy: Hierarchy) -> Iterator[tuple[str, str]]:
    first = hierarchy.version == 1
    if limits.memory_bytes is not None and "memory" in hierarchy.controllers:
        yield ("memory.limit_in_bytes" if first else "memory.max", str(limits.memory_bytes))
        # Nothing more in swap. The file is missing where the kernel does not account for swap: then it cannot be bound.
        yield ("?memory.memsw.limit_in_bytes", str(limits.memory_bytes)) if first else ("?memory.swap.max", "0")
    if limits.processes is not None and "pids" in hierarchy.controllers:
        waiting = 1  # in the group, to start the next program
        yield ("pids.max", str(limits.processes + OWN_PROCESSES + waiting))
    if limits.cpus is not None and "cpu" in hierarchy.controllers:
        quota = str(max(1000, round(limits.cpus * PERIOD_US)))
        if first:
            yield ("cpu.cfs_period_us", str(PERIOD_US))
            yield ("cpu.cfs_quota_us", quota)
        else:
            yield ("cpu.max", f"{quota} {PERIOD_US}")
