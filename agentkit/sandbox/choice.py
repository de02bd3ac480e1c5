"""Which back end to use where none was named."""

from agentkit.errors import ConfigError
from agentkit.protocols.sandbox import SandboxBackend
from agentkit.sandbox.bwrap import BwrapBackend
from agentkit.sandbox.host import HostBackend


def default_backend(*, allow_host: bool = False) -> SandboxBackend:
    """The isolated back end; one without isolation only where that was allowed and nothing better runs.

    Raises:
        ConfigError: bubblewrap cannot run here and the host back end was not allowed.
    """
    bwrap = BwrapBackend()
    reason = bwrap.available()
    if reason is None:
        return bwrap
    if allow_host:
        return HostBackend()
    raise ConfigError(f"no isolated sandbox can run here: {reason}; or allow commands on the host with allow_host=True")
