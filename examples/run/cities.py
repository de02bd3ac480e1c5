"""What the configurations in this folder name: a tool, and a script that stands in for the policy."""

import re

import agentkit as ak
from agentkit.models import ScriptedModel

MILLIONS = {"Lima": "10.4", "Oslo": "0.7", "Quito": "2.8"}


@ak.tool
async def population(city: str) -> str:
    """Population of a city, in millions.

    Args:
        city: Its English name.
    """
    return MILLIONS.get(city, "unknown")


def offline_policy() -> ScriptedModel:
    """Looks the city up, then says what it read. It waits a little at each token, as a server would."""
    return ScriptedModel(_next_text, token_s=0.001)


def _next_text(prompt: str) -> str:
    asked = re.findall(r"live in (\w+)\?", prompt)[-1]
    found = re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", prompt)
    if found:
        return found[-1]
    return f'<tool_call>\n{{"name": "population", "arguments": {{"city": "{asked}"}}}}\n</tool_call>'
