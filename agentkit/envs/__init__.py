"""What an agent lives in."""

from agentkit.envs.sandbox import SandboxEnv as SandboxEnv
from agentkit.envs.preparation import Preparation as Preparation
from agentkit.envs.gymnasium import GymnasiumEnv as GymnasiumEnv
from agentkit.envs.returns import episode_return as episode_return
from agentkit.envs.openenv import OpenEnv as OpenEnv
