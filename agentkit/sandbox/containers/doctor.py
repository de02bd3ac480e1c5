"""Why no container starts on this machine, and what to do: found by starting one."""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from attrs import frozen

from agentkit.sandbox.containers.client import environment

PROBE_S = 60.0
_SYS_RESOURCE = 24
_HYBRID = Path("/sys/fs/cgroup/unified")


@frozen
class Obstacle:
    """One thing in the way: `found` says how it shows, `cure` what to type or write, word for word."""

    name: str
    found: str
    cure: str


_HYBRID_CURE = (
    "boot with systemd.unified_cgroup_hierarchy=1; or, without a reboot, run podman through scripts/podman-here.sh "
    "(command: /path/to/podman-here.sh), which does: unshare --mount --propagation private sh -c "
    "'umount /sys/fs/cgroup/unified && exec podman \"$@\"' podman ..."
)
_LIMITS_CURE = (
    'a file with the lines `[containers]` and `default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]`, named by '
    "CONTAINERS_CONF; scripts/podman-here.sh writes one"
)
# (name, what the engine says, all of it in lower case, how it shows, cure)
_KNOWN = (
    ("cgroups", ("cgroups in hybrid mode",), "the OCI runtime refuses the hybrid cgroup hierarchy", _HYBRID_CURE),
    (
        "limits",
        ("rlimit", "operation not permitted"),
        "limits cannot be raised: CAP_SYS_RESOURCE is missing",
        _LIMITS_CURE,
    ),
    (
        "subuid",
        ("newuidmap",),
        "this user has no range of user ids for the inside of containers",
        'apt-get install uidmap && usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "$USER" && '
        "podman system migrate",
    ),
    (
        "delegation",
        ("cgroup", "controller"),
        "this user may set no limits",
        "systemctl edit user@.service, with the lines `[Service]` and `Delegate=cpu cpuset io memory pids`, "
        "then log in again",
    ),
    (
        "userns",
        ("cannot clone",),
        "this user may make no user namespace",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    ("network", ("slirp4netns",), "rootless networks need slirp4netns", "apt-get install slirp4netns"),
    ("storage", ("fuse-overlayfs",), "the storage driver needs fuse-overlayfs", "apt-get install fuse-overlayfs"),
    ("runtime", ("no such file or directory", "crun"), "there is no OCI runtime", "apt-get install crun"),
    (
        "daemon",
        ("docker daemon",),
        "no docker daemon answers",
        'systemctl start docker && usermod --append --groups docker "$USER", then log in again',
    ),
)


def obstacles(command: str = "podman", *, limits: bool = False) -> tuple[Obstacle, ...]:
    """What is in the way of containers by `command`, or of containers with limits; nothing where one could be started.

    Blocks for some 300 ms.

    The container has the programs of this machine, so no image is needed; docker, which takes no directory for an
    image, is only asked for its daemon.
    """
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        name = words[0] if words else command
        return (
            Obstacle("missing", f"{name!r} is not installed", f"apt-get install {Path(name).name} (or dnf, pacman)"),
        )
    is_docker = Path(words[-1]).name == "docker"
    with tempfile.TemporaryDirectory(prefix="agentkit-doctor-") as root:
        call = [*words, "version"] if is_docker else [*words, *_probe(Path(root), limits)]
        try:
            done = subprocess.run(
                call, capture_output=True, timeout=PROBE_S, stdin=subprocess.DEVNULL, env=environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return (Obstacle("hangs", f"{command!r} does not run: {error}", f"run it by hand: {shlex.join(call)}"),)
    if done.returncode == 0:
        return ()
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
    found = {
        name: Obstacle(name, f"{shows} ({said[-300:]})", cure)
        for name, signs, shows, cure in _KNOWN
        if all(sign in said.lower() for sign in signs)
    }
    for obstacle in () if is_docker else _next():  # engines name one at a time
        found.setdefault(obstacle.name, obstacle)
    return tuple(found.values()) or (Obstacle("unknown", said[-1000:], f"run it by hand: {shlex.join(call)}"),)


def _probe(root: Path, limits: bool) -> list[str]:
    words = ["run", "--rm", "--network", "none", "--log-driver", "none", "--http-proxy=false"]
    words += ["--memory", "64m", "--cpus", "1", "--pids-limit", "20"] if limits else []
    for name in ("usr", "bin", "lib", "lib64"):
        (root / name).mkdir()
        if (Path("/") / name).exists():
            words += ["--volume", f"/{name}:/{name}:ro"]
    return [*words, "--rootfs", f"{root}:O", "/bin/true"]


def _next() -> list[Obstacle]:
    """What will be in the way once the first obstacle is not, as far as it can be seen from here."""
    found: list[Obstacle] = []
    if os.path.ismount(_HYBRID):
        found.append(
            Obstacle("cgroups", f"{_HYBRID} is mounted: a hybrid cgroup hierarchy, which crun refuses", _HYBRID_CURE)
        )
    capabilities = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
    if os.geteuid() == 0 and not capabilities >> _SYS_RESOURCE & 1:
        found.append(Obstacle("limits", "limits cannot be raised: CAP_SYS_RESOURCE is missing", _LIMITS_CURE))
    return found
