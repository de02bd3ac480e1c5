"""What an agent lives in."""

from agentkit.envs.sandbox import SandboxEnv as SandboxEnv
from agentkit.envs.preparation import Preparation as Preparation
