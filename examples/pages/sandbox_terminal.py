"""What the page on terminals shows. Needs the extra `terminal`; without bubblewrap, commands run as you."""

import anyio

# --8<-- [start:imports]
import agentkit as ak
from agentkit.envs import SandboxEnv
from agentkit.models import ScriptedModel
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend
from agentkit.tools import terminal

# --8<-- [end:imports]

backend = BwrapBackend() if BwrapBackend().available() is None else HostBackend()

CALL = '<tool_call>\n{"name": "terminal", "arguments": {"keys": "%s"}}\n</tool_call>'
policy = ScriptedModel([CALL % "cat > notes.txt<Enter>two lines<Enter>", CALL % "of notes<Enter><C-d>", "Done."])


# --8<-- [start:tool]
async def count_lines(trajectory: ak.Trajectory, env: SandboxEnv) -> float:
    return float((await env.read("notes.txt")).count(b"\n"))


agent = ak.Agent(
    policy,
    env=lambda: SandboxEnv(backend),
    tools=[terminal],  # or lambda: terminal(argv=["python3", "-q"], rows=40, columns=120)
    reward=count_lines,
)
# --8<-- [end:tool]


async def main() -> None:
    trajectory = await agent.run("Write down two lines of notes.")
    assert trajectory.score == 2.0, trajectory.grade
    # --8<-- [start:session]
    async with await backend.start(SandboxSpec()) as sandbox:
        session = await sandbox.terminal(["python3", "-q"], rows=10, columns=60)
        await session.send("name = input('Who? ')\r")
        screen = await session.read(settle_s=0.5)
        await session.send("Ada\r")
        await session.send("print(name.upper())\r\x04")  # Ctrl-D ends it
        while screen.exit_code is None:
            screen = await session.read()
        print(screen.text, screen.cursor, screen.exit_code)
        await session.close()
    # --8<-- [end:session]
    assert "ADA" in screen.text


if __name__ == "__main__":
    anyio.run(main)
