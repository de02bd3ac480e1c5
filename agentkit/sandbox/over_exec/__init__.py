"""Sandboxes that can only be reached by "run this program": a whole `Sandbox` over one such call."""

from agentkit.sandbox.over_exec.session import ExecChannel as ExecChannel
from agentkit.sandbox.over_exec.session import ExecSession as ExecSession
from agentkit.sandbox.over_exec.sandbox import ExecSandbox as ExecSandbox
from agentkit.sandbox.over_exec.pace import Pace as Pace
