"""Tools that show what they see."""

import agentkit as ak
from agentkit.protocols import Observation, ToolCall, ToolContext, image

SHOT = image(b"\x89PNG\r\n\x1a\n")


async def test_medium_that_a_tool_returns_is_shown() -> None:
    @ak.tool
    async def look() -> object:
        """Look."""
        return SHOT

    context = ToolContext(ToolCall("c", "look"), None, "r", 60.0)
    assert await look.call({}, context) == Observation.of(SHOT)
