"""What a sandbox should be like, and what a back end can do, as values."""

import math
from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from attrs import field, frozen

from agentkit.errors import ConfigError


@frozen(kw_only=True)
class Limits:
    """What a sandbox may use; None leaves it to the back end's default.

    `cpus` are processors (0.5 is half of one), `processes` counts threads as well, `disk_bytes` bounds what may be
    written.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("cpus", "memory_bytes", "processes", "disk_bytes"):
            _check_positive(f"limits.{name}", getattr(self, name))

    @property
    def named(self) -> frozenset[str]:
        """The limits that are set."""
        names = ("cpus", "memory_bytes", "processes", "disk_bytes")
        return frozenset(name for name in names if getattr(self, name) is not None)


@frozen
class Allow:
    """A network that reaches these hosts and no other; `*.example.org` stands for all below example.org."""

    hosts: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        for host in self.hosts:
            if not host or set(host) & set(" /:@\t\n\0"):
                raise ConfigError(f"network.hosts holds names of hosts, found {host!r}")


Network: TypeAlias = Literal["none", "host"] | Allow
"""`none` is loopback alone, `host` whatever the machine reaches."""


@runtime_checkable
class Snapshot(Protocol):
    """The files of a sandbox at one moment, kept until closed."""

    @property
    def name(self) -> str:
        """Names it in logs."""
        ...

    async def close(self) -> None:
        """Let go of it; sandboxes started from it live on. Safe to call twice."""
        ...


@frozen
class SandboxSpec:
    """What a sandbox should be like.

    `cwd` is the working directory inside, made if need be; `env` is all of the environment a command sees beside a
    minimal PATH and HOME; nothing is inherited from the host process. `image` names a container image, `rootfs` a
    directory of this machine that is the sandbox's root and itself never written to.

    A sandbox ends by itself `lifetime_s` seconds after its start, whatever became of its owner; None leaves that to who
    starts it (`SandboxEnv`: what is left of the rollout's budget). `labels` go to back ends that keep any; never put a
    secret there.
    """

    cwd: str = "/work"
    env: Mapping[str, str] = field(factory=dict)
    network: Network = "none"
    read_only: tuple[tuple[str, str], ...] = ()
    """(host path, path inside) pairs mounted read-only."""
    read_limit_bytes: int = 64 * 1024 * 1024
    image: str | None = None
    rootfs: str | None = None
    limits: Limits = field(factory=Limits)
    lifetime_s: float | None = None
    labels: Mapping[str, str] = field(factory=dict)
    snapshot: Snapshot | None = None
    """Start from the files of this snapshot."""

    def __attrs_post_init__(self) -> None:
        if self.network not in ("none", "host") and not isinstance(self.network, Allow):
            raise ConfigError(f"network must be 'none', 'host' or Allow(hosts), found {self.network!r}")
        _check_positive("lifetime_s", self.lifetime_s)
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in f"{name}{value}":
                raise ConfigError(f"env holds a variable that cannot be: {name!r}")


def _check_positive(name: str, value: float | None) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and value > 0 and not math.isnan(value)):
        raise ConfigError(f"{name} must be greater than 0, found {value!r}")


@frozen(kw_only=True)
class Capabilities:
    """What a back end can do on this machine. A spec that asks for more is refused, never quietly weakened."""

    isolated: bool
    image: bool = False
    rootfs: bool = False
    read_only: bool = False
    networks: frozenset[str] = frozenset({"none"})
    """Of `none`, `host` and `allow`."""
    limits: frozenset[str] = frozenset()
    """The fields of `Limits` that are enforced."""
    snapshots: bool = False
    terminal: bool = False
    lifetime: bool = False
    """Whether a sandbox ends at its lifetime also where its owner cannot see to it."""

    def check(self, spec: SandboxSpec, name: str) -> None:
        """Check that back end `name` can give what `spec` asks for.

        Raises:
            ConfigError: it cannot; the message names the field.
        """
        asked = {
            "image": spec.image is not None,
            "rootfs": spec.rootfs is not None,
            "read_only": bool(spec.read_only),
            "snapshots": spec.snapshot is not None,
        }
        for capability, wanted in asked.items():
            if wanted and not getattr(self, capability):
                field_name = "snapshot" if capability == "snapshots" else capability
                raise ConfigError(
                    f"{field_name} is nothing that {name} sandboxes take, found {getattr(spec, field_name)!r}"
                )
        network = "allow" if isinstance(spec.network, Allow) else spec.network
        if network not in self.networks:
            can = " or ".join(sorted(self.networks))
            raise ConfigError(f"network of {name} sandboxes can be {can} here, found {network!r}")
        for limit in sorted(spec.limits.named - self.limits):
            can = ", ".join(sorted(self.limits)) or "none"
            raise ConfigError(f"limits.{limit} cannot be kept by {name} sandboxes here; what they can: {can}")
