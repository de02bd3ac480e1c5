"""A parent that asks sub-agents, side by side, within what remains of its own time.

Scripts stand in for both policies. They see the whole decoded prompt, and answer from it.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel


def research(prompt: str) -> str:
    """The policy of the sub-agents."""
    return "10.4 million" if "Lima" in prompt.rpartition("user")[2] else "0.7 million"


def lead(prompt: str) -> str:
    """The policy of the parent: asks twice in one turn, then concludes."""
    if "<tool_response>" in prompt:
        return "Lima is larger."
    calls = [{"Lima": "How large is Lima?", "Oslo": "How large is Oslo?"}[city] for city in ("Lima", "Oslo")]
    return "\n".join(
        f'<tool_call>\n{{"name": "researcher", "arguments": {{"prompt": "{question}"}}}}\n</tool_call>'
        for question in calls
    )


researcher = ak.Agent(ScriptedModel(research, token_s=0.01), name="researcher", budget=ak.Budget(max_turns=3))
parent = ak.Agent(
    ScriptedModel(lead),
    tools=[ak.SubAgent(researcher, description="Answers one question about one city.")],
    budget=ak.Budget(trajectory_s=60, tool_s=30),
)


async def main() -> None:
    trajectory = await parent.run("Which is larger, Lima or Oslo?")
    print("parent:", trajectory.exit_reason, repr(trajectory.turns[-1].action.content))
    for child in trajectory.children:  # each a whole trajectory, with chains to train on
        sampled = sum(child.chains[0].response_mask)
        print("child:", child.exit_reason, repr(child.turns[-1].action.content), sampled, "tokens sampled")
    print(len(list(trajectory.walk())), "trajectories in one record")


if __name__ == "__main__":
    anyio.run(main)
