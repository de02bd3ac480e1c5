"""What sandboxed.yaml names: files for the sandbox, a reward that looks into it, and a script for the policy."""

import agentkit as ak
from agentkit.envs import SandboxEnv
from agentkit.models import ScriptedModel
from agentkit.protocols import Sandbox


async def put_numbers(sandbox: Sandbox, task: ak.Task) -> None:
    """What the sandbox is prepared with."""
    await sandbox.write("numbers.txt", str(task.data["numbers"]).encode())


async def is_sorted(trajectory: ak.Trajectory, env: SandboxEnv) -> float:
    """1 where sorted.txt has the numbers in order. The sandbox is still open."""
    numbers = [int(line) for line in (await env.read("sorted.txt")).split()]
    return float(numbers == sorted(map(int, str(trajectory.task.data["numbers"]).split())))


def offline_policy() -> ScriptedModel:
    """Sorts, then submits."""
    command = '{"name": "execute_bash", "arguments": {"command": "sort -n numbers.txt > sorted.txt"}}'
    submit = '{"name": "submit", "arguments": {}}'
    return ScriptedModel([f"<tool_call>\n{call}\n</tool_call>" for call in (command, submit)])
