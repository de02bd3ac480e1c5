"""What a server allows its clients."""

import os

from attrs import evolve, field, frozen

from agentkit.errors import ConfigError
from agentkit.protocols.sandbox import Capable, SandboxBackend
from agentkit.protocols.sandbox_spec import Allow, Capabilities, SandboxSpec


@frozen(kw_only=True)
class ServerPolicy:
    """What a server allows its clients, and for how long.

    `orphan_s` seconds after a client was last heard of, its sandboxes are closed. A client that was cut off may come
    back until then. `heartbeat_s` is how often either side says that it is there; after two and a half without a word a
    connection counts as broken.
    """

    orphan_s: float = 60.0
    heartbeat_s: float = 10.0
    max_sandboxes: int = 4096
    """Of all clients together, alive or being started."""
    max_sessions: int = 1024
    max_requests: int = 8192
    """Of one client, at a time."""
    max_transfers: int = 8
    """Files and trees of one client, in either direction, at a time; others wait."""
    body_limit_bytes: int = 64 * 1024 * 1024
    """Largest command, standard input, file written or read, or output kept."""
    memory_limit_bytes: int = 1024**3
    """Of commands, inputs and outputs kept of one client, at a time."""
    tree_limit_bytes: int = 1024**3
    """Largest tree uploaded, on disk while it is received."""
    share: tuple[str, ...] = ()
    """Directories of this machine that specs may name in `rootfs` and `read_only`, and what is below."""
    networks: frozenset[str] = field(default=frozenset({"none", "host", "allow"}))
    """Networks that specs may ask for, of those that the back end has."""

    def __attrs_post_init__(self) -> None:
        for name in ("orphan_s", "heartbeat_s", "max_sandboxes", "max_sessions", "max_requests", "max_transfers"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0, found {getattr(self, name)!r}")
        for path in self.share:
            if not os.path.isabs(path):
                raise ConfigError(f"share holds absolute paths, found {path!r}")

    def narrow(self, capabilities: Capabilities) -> Capabilities:
        """Those of the back end that clients may use."""
        return evolve(
            capabilities,
            networks=capabilities.networks & self.networks,
            read_only=capabilities.read_only and bool(self.share),
            rootfs=capabilities.rootfs and bool(self.share),
        )

    def check(self, spec: SandboxSpec, backend: SandboxBackend) -> None:
        """Check that a client may ask for `spec`.

        Raises:
            ConfigError: it may not; the message names the field.
        """
        if isinstance(backend, Capable):
            self.narrow(backend.capabilities).check(spec, "remote")
        if spec.read_limit_bytes > self.body_limit_bytes:
            found = f"{spec.read_limit_bytes} is more than the {self.body_limit_bytes} that this server gives"
            raise ConfigError(f"read_limit_bytes {found}")
        network = "allow" if isinstance(spec.network, Allow) else spec.network
        if network not in self.networks:
            raise ConfigError(f"network {network!r} is not allowed by this server")
        for name, path in (*(("read_only", pair[0]) for pair in spec.read_only), ("rootfs", spec.rootfs)):
            if path is not None and not self._is_shared(path):
                raise ConfigError(f"{name} {path!r} is not in a directory that this server shares")

    def _is_shared(self, path: str) -> bool:
        if not os.path.isabs(path) or "\0" in path:
            return False
        real = os.path.realpath(path)
        roots = [os.path.realpath(root) for root in self.share]
        return any(real == root or real.startswith(f"{root.rstrip('/')}/") for root in roots)
