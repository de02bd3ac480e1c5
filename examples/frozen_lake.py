"""An agent in an env of gymnasium, played from text. A script stands in for the policy: it knows the way.

Needs the extra `gymnasium`.
"""

import anyio

import agentkit as ak
from agentkit.envs import GymnasiumEnv, episode_return
from agentkit.models import ScriptedModel


# --8<-- [start:agent]
def make_env() -> GymnasiumEnv:
    return GymnasiumEnv(
        "FrozenLake-v1",
        arguments={"is_slippery": False, "render_mode": "ansi"},  # shown in letters, where you are in brackets
        instructions="Reach G, avoid H. Answer with a number: 0 left, 1 down, 2 right, 3 up.",
    )


policy = ScriptedModel(["Down: 1", "1", "What now?", "2", "1", "2", "2"])
agent = ak.Agent(policy, env=make_env, reward=episode_return, budget=ak.Budget(max_turns=20))
# --8<-- [end:agent]


async def main() -> None:
    # --8<-- [start:run]
    trajectory = await agent.run(ak.Task("lake", "Cross the lake.", data={"seed": 0}))
    for turn in trajectory.turns:
        print(turn.observations[0].content.splitlines()[0].strip(), turn.observations[0].metadata["reward"])
    print(trajectory.exit_reason, trajectory.score)
    # --8<-- [end:run]


if __name__ == "__main__":
    anyio.run(main)
