"""What the pages on sandboxes show. Without bubblewrap, commands run as you."""

import anyio

# --8<-- [start:imports]
import agentkit as ak
from agentkit.envs import SandboxEnv
from agentkit.models import ScriptedModel
from agentkit.protocols import Sandbox, SandboxSpec
from agentkit.sandbox import default_backend

# --8<-- [end:imports]

# --8<-- [start:env]
backend = default_backend(allow_host=True)  # without allow_host, a machine that lacks bubblewrap is an error


def make_env() -> SandboxEnv:  # what ak.Agent(..., env=make_env) takes
    return SandboxEnv(backend, SandboxSpec(env={"LANG": "C.UTF-8"}), setup=put_notes)


async def put_notes(sandbox: Sandbox, task: ak.Task) -> None:
    await sandbox.write("notes.txt", b"one\ntwo\n")


# --8<-- [end:env]


# --8<-- [start:tool]
@ak.tool(timeout_s=20)
async def count_lines(path: str, shell: ak.Shell) -> str:
    """How many lines a file has.

    Args:
        path: Which file.
        shell: Comes from the env; the policy is not told.
    """
    result = await shell.exec(["wc", "-l", path], timeout_s=10)
    if result.timed_out:
        return f"no end after {result.duration_s:.0f} s"
    if result.exit_code != 0:
        raise ak.ToolError(result.text)  # the policy reads it
    return result.text.split()[0]


# --8<-- [end:tool]


async def main() -> None:
    # --8<-- [start:run]
    call = '<tool_call>\n{"name": "count_lines", "arguments": {"path": "%s"}}\n</tool_call>'
    policy = ScriptedModel([call % "notes.txt", call % "nothing.txt", "2"])
    agent = ak.Agent(policy, env=make_env, tools=[count_lines])
    trajectory = await agent.run("How many lines has notes.txt?")
    found, missing = [turn.observations[0] for turn in trajectory.turns[:2]]
    assert found.content == "2"
    assert missing.status == "error"
    assert "nothing.txt: No such file or directory" in missing.content
    # --8<-- [end:run]


if __name__ == "__main__":
    anyio.run(main)
