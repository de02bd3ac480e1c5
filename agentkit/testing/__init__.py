"""Fakes, virtual clocks and strategies: public, for users' tests too."""

from agentkit.testing.clocks import AutojumpLoop as AutojumpLoop
from agentkit.testing.clocks import virtual_asyncio as virtual_asyncio
from agentkit.testing.clocks import virtual_trio as virtual_trio
from agentkit.testing.fakes import FakeTool as FakeTool
from agentkit.testing.fakes import MemorySink as MemorySink
from agentkit.testing.fakes import World as World
from agentkit.testing.fakes import WorldEnv as WorldEnv
from agentkit.testing.fakes import hide_behind_a_shield as hide_behind_a_shield
from agentkit.testing.fakes import swallow_cancellation as swallow_cancellation
from agentkit.testing.steps import Steps as Steps
