"""Branching: several candidates for one prompt, a turn taken back, and a long history compacted.

A script stands in for the policy. All of it is one trajectory: every token that was sampled is in it once, on chains
that share what they have in common.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.tokens import chain_weights


# --8<-- [start:loop]
async def careful(rollout: ak.Rollout) -> None:
    """The best of three plans, no answer without a number, and a short history at the end."""
    plans = await rollout.candidates(3)  # three turns that answer the same prompt
    rollout.take(min(plans, key=lambda plan: len(plan.content)))  # the conversation goes on from this one
    rollout.observe("Do it, and say what came of it.")
    for _ in range(5):
        action = await rollout.sample()
        if any(letter.isdigit() for letter in action.content):
            break
        rollout.rollback()  # the policy sees the same prompt again, as if it had not spoken
    task, plan = rollout.messages[0], rollout.messages[1]
    rollout.rewrite([task, plan, ak.user(f"Result: {action.content} Now answer in one word.")])  # forks after the plan
    await rollout.sample()


# --8<-- [end:loop]

SCRIPT = ["Ask around, then count.", "Count.", "Guess, then count.", "I counted.", "There are 7.", "Seven"]
agent = ak.Agent(ScriptedModel(SCRIPT), loop=careful)


async def main() -> None:
    trajectory = await agent.run("How many geese are there?")
    print("sampled:", [turn.action.content for turn in trajectory.turns])
    print("kept:", [turn.action.content for turn in trajectory.path()])
    weights = chain_weights(trajectory)  # the rollout counts as much as one that did not branch
    total = 0.0
    for number, chain in enumerate(trajectory.chains):
        begins = "a prompt" if chain.parent is None else f"chain {chain.parent[0]}, at token {chain.parent[1]}"
        total += weights[number] * sum(chain.response_mask)
        print(f"chain {number}: {sum(chain.response_mask)} tokens sampled, begins with {begins}")
    print(f"weights add up to {total:.2f}")


if __name__ == "__main__":
    anyio.run(main)
