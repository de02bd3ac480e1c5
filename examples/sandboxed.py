"""An agent in a sandbox of its own: a shell as a tool, files for the grader, nothing left behind.

A script stands in for the policy. With `--host`, commands run without isolation where bubblewrap is missing.
"""

import json
import sys

import anyio

import agentkit as ak
from agentkit.envs import SandboxEnv
from agentkit.models import ScriptedModel
from agentkit.protocols import Sandbox, SandboxBackend
from agentkit.sandbox import default_backend
from agentkit.tools import execute_bash, submit


def bash(command: str) -> str:
    return f'<tool_call>\n{{"name": "execute_bash", "arguments": {{"command": {json.dumps(command)}}}}}\n</tool_call>'


SCRIPT = [
    bash("cat numbers.txt; mkdir drafts; cd drafts"),
    bash("basename $PWD; sleep 30"),  # the session keeps its directory; what hangs costs its own time only
    bash("cd .. && sort -n numbers.txt > sorted.txt && cat sorted.txt"),
    '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>',
]


async def put_numbers(sandbox: Sandbox, task: ak.Task) -> None:
    """What the sandbox is prepared with; returning messages here would open the conversation with them."""
    await sandbox.write("numbers.txt", str(task.data["numbers"]).encode())


async def is_sorted(trajectory: ak.Trajectory, env: SandboxEnv) -> float:
    """Looks into the sandbox, which is still open. Relative paths start at its working directory."""
    numbers = [int(line) for line in (await env.read("sorted.txt")).split()]
    return float(numbers == sorted(map(int, str(trajectory.task.data["numbers"]).split())))


# --8<-- [start:agent]
def make_agent(backend: SandboxBackend) -> ak.Agent:
    return ak.Agent(
        ScriptedModel(SCRIPT),
        env=lambda: SandboxEnv(backend, setup=put_numbers),
        tools=[execute_bash, submit],
        reward=is_sorted,
        budget=ak.Budget(trajectory_s=60, tool_s=3),
    )


# --8<-- [end:agent]


async def main() -> None:
    try:
        backend = default_backend(allow_host="--host" in sys.argv)
    except ak.ConfigError as error:
        print(error)
        print("install bubblewrap (apt-get install bubblewrap), or run again with --host: commands then run as you")
        return
    trajectory = await make_agent(backend).run(ak.Task("sort", "Sort numbers.txt.", data={"numbers": "10\n9\n2\n"}))
    for turn in trajectory.turns:
        for observation in turn.observations:
            print(f"[{observation.status}]", " | ".join(observation.content.splitlines()))
    print(trajectory.exit_reason, trajectory.score)


if __name__ == "__main__":
    anyio.run(main)
