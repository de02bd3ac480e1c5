"""What the page on budgets shows."""

import anyio

import agentkit as ak


async def main() -> None:
    # --8<-- [start:budget]
    budget = ak.Budget(trajectory_s=600, generation_s=120, tool_s=30, max_turns=50)
    assert budget.override({"max_turns": 5}).max_turns == 5  # what ak.Task("id", "...", budget={"max_turns": 5}) does
    # --8<-- [end:budget]


if __name__ == "__main__":
    anyio.run(main)
