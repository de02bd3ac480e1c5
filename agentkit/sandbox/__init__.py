"""Where commands run: isolated by bubblewrap, in containers, or tidily on the host."""

from agentkit.sandbox.bwrap import BwrapBackend as BwrapBackend
from agentkit.sandbox.bwrap import BwrapSandbox as BwrapSandbox
from agentkit.sandbox.choice import default_backend as default_backend
from agentkit.sandbox.collect import Collected as Collected
from agentkit.sandbox.collect import collect as collect
from agentkit.sandbox.config import SandboxConfig as SandboxConfig
from agentkit.sandbox.config import sandbox_from as sandbox_from
from agentkit.sandbox.containers import ApptainerBackend as ApptainerBackend
from agentkit.sandbox.containers import DockerBackend as DockerBackend
from agentkit.sandbox.containers import PodmanBackend as PodmanBackend
from agentkit.sandbox.embedded import EmbeddedSandbox as EmbeddedSandbox
from agentkit.sandbox.host import HostBackend as HostBackend
from agentkit.sandbox.leaks import Reaped as Reaped
from agentkit.sandbox.leaks import reap as reap
from agentkit.sandbox.registry import Entry as Entry
from agentkit.sandbox.registry import Registry as Registry
from agentkit.sandbox.snapshot import BwrapSnapshot as BwrapSnapshot
from agentkit.sandbox.starts import StartPolicy as StartPolicy
from agentkit.sandbox.starts import start_sandbox as start_sandbox
from agentkit.sandbox.warm import WarmPool as WarmPool
