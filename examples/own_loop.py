"""A loop of one's own: plain async code over a rollout. Limits, recording and the end are taken care of inside it.

A script stands in for the policy: it would look into box after box, had the loop no question for it.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel


# --8<-- [start:loop]
async def careful(rollout: ak.Rollout) -> None:
    """As `ak.react`, with a question every five turns."""
    async for action in rollout:  # samples until an end is reached
        result = await rollout.act(action)  # calls tools or steps the env; the observations are appended
        if not result.done and rollout.turns % 5 == 0:
            rollout.observe(ak.user("What have you ruled out so far?"))


# --8<-- [end:loop]


@ak.tool
async def look(box: int) -> str:
    """What is in a box."""
    return "the key" if box == 6 else "nothing"


def policy(prompt: str) -> str:
    """Looks into the next box, and thinks only when it is asked to."""
    if "What have you ruled out" in prompt:
        return "Boxes 1 to 5, so it is in box 6."
    box = 1 + prompt.count("<tool_response>")
    return f'<tool_call>\n{{"name": "look", "arguments": {{"box": {box}}}}}\n</tool_call>'


# --8<-- [start:agent]
agent = ak.Agent(ScriptedModel(policy), tools=[look], loop=careful, budget=ak.Budget(max_turns=20))
# --8<-- [end:agent]


async def main() -> None:
    trajectory = await agent.run("One of six boxes holds the key. Which one?")
    for turn in trajectory.turns:
        seen = [observation.content for observation in turn.observations]
        print(turn.index, turn.action.content or f"look {turn.action.calls[0].arguments['box']}", seen)
    chain = trajectory.chains[0]
    print(trajectory.exit_reason, sum(chain.response_mask), "of", len(chain), "tokens sampled")


if __name__ == "__main__":
    anyio.run(main)
