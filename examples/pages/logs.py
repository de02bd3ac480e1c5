"""What the page on logging shows."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

import agentkit as ak
from agentkit.logs import Redactor, configure, redact
from agentkit.models import ScriptedModel

KEY = "correct-horse-battery"
CALL = '<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>'


@ak.tool
async def look_up() -> str:
    """Looks it up, and says too much in the log."""
    logging.getLogger(__name__).warning("asked with key %s", KEY)
    return "in the attic"


async def main() -> None:
    agent = ak.Agent(ScriptedModel([CALL, "It is in the attic."]), tools=[look_up])
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # --8<-- [start:configure]
        with configure(level="INFO", to=folder / "run.log", per_rollout=folder / "rollouts", redactor=Redactor([KEY])):
            await agent.run(ak.Task("key", "Where is the key?"))
        told = (folder / "rollouts" / "key#0.0.log").read_text()
        assert "user: Where is the key?" in told
        assert "ends: finished" in told
        # --8<-- [end:configure]
        for text in (told, (folder / "run.log").read_text()):
            assert "asked with key" in text
            assert KEY not in text

    # --8<-- [start:redact]
    assert "hunter2" not in redact("GET https://me:hunter2@example.com/ failed")
    # --8<-- [end:redact]


if __name__ == "__main__":
    anyio.run(main)
