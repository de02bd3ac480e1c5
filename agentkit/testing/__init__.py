"""Fakes, virtual clocks and strategies: public, for users' tests too."""

from agentkit.testing.clocks import AutojumpLoop as AutojumpLoop
from agentkit.testing.clocks import virtual_asyncio as virtual_asyncio
from agentkit.testing.clocks import virtual_trio as virtual_trio
