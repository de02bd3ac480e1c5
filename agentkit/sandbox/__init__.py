"""Where commands run: isolated by bubblewrap, or tidily on the host."""

from agentkit.sandbox.bwrap import BwrapBackend as BwrapBackend
from agentkit.sandbox.choice import default_backend as default_backend
from agentkit.sandbox.embedded import EmbeddedSandbox as EmbeddedSandbox
from agentkit.sandbox.host import HostBackend as HostBackend
from agentkit.sandbox.leaks import Reaped as Reaped
from agentkit.sandbox.leaks import reap as reap
