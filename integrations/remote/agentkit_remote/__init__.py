"""Sandboxes of another machine: a server that runs any back end, and the back end that talks to it."""

from agentkit_remote.backend import RemoteBackend as RemoteBackend
from agentkit_remote.policy import ServerPolicy as ServerPolicy
from agentkit_remote.sandbox import RemoteSandbox as RemoteSandbox
from agentkit_remote.sandbox import RemoteSnapshot as RemoteSnapshot
from agentkit_remote.sandbox import RemoteTerminal as RemoteTerminal
from agentkit_remote.server import SandboxServer as SandboxServer
from agentkit_remote.server import serve as serve
