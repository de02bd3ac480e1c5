"""What the page on snapshots shows. It needs bubblewrap, and a kernel whose overlays do."""

# --8<-- [start:imports]
from collections.abc import Callable

import anyio
from anyio import create_task_group

import agentkit as ak
from agentkit.envs import SandboxEnv
from agentkit.models import ScriptedModel
from agentkit.protocols import SandboxSpec, Snapshot
from agentkit.sandbox import BwrapBackend, WarmPool
from agentkit.tools import execute_bash

# --8<-- [end:imports]


COMMAND = "cat state; echo mine >> state"
CALL = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "%s"}}\n</tool_call>'


def agent_in(env: Callable[[], SandboxEnv]) -> ak.Agent:
    return ak.Agent(ScriptedModel([CALL % COMMAND, "Done."]), env=env, tools=[execute_bash])


# --8<-- [start:keep]
async def prepare(backend: BwrapBackend) -> Snapshot:
    async with await backend.start(SandboxSpec()) as sandbox:
        await sandbox.run("echo slow to make > state; echo also > /usr/local/here", timeout_s=60)
        return await sandbox.snapshot()


# --8<-- [end:keep]


# --8<-- [start:group]
async def try_eight_times(backend: BwrapBackend) -> None:
    snapshot = await prepare(backend)
    agent = agent_in(lambda: SandboxEnv(backend, SandboxSpec(snapshot=snapshot)))
    async with snapshot, ak.Pool(agent, max_rollouts=8, group_size=8) as pool:
        async for trajectory in pool.run([ak.Task("try", "Go on from there.")]):
            assert trajectory.turns[0].observations[0].content == "slow to make\n[exit code 0]"


# --8<-- [end:group]


# --8<-- [start:fork]
async def explore(backend: BwrapBackend) -> None:
    async with await backend.start(SandboxSpec()) as sandbox:
        await sandbox.run("echo before > state")
        async with await sandbox.fork() as other:  # files as they are now; processes and variables are not copied
            await other.run("echo after > state")
            assert await sandbox.read("state") == b"before\n"


# --8<-- [end:fork]


# --8<-- [start:warm]
async def warm(backend: BwrapBackend) -> None:
    spec = SandboxSpec(lifetime_s=3600)  # at least what a rollout may last: SandboxEnv asks for that
    async with WarmPool(backend, spec, size=4) as pool, create_task_group() as group:
        agent = agent_in(lambda: SandboxEnv(pool))
        for _ in range(4):
            group.start_soon(agent.run, "Begin at once.")


# --8<-- [end:warm]


async def main() -> None:
    if not BwrapBackend(overlay=True).capabilities.snapshots:
        return
    # --8<-- [start:overlay]
    async with BwrapBackend(overlay=True) as backend:  # one for all
        await try_eight_times(backend)
        # --8<-- [end:overlay]
        await explore(backend)
        await warm(backend)


if __name__ == "__main__":
    anyio.run(main)
