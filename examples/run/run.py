"""The run of run.yaml, composed in Python from the same classes. Keeps it in the folder given, or in runs/cities-1.

A script stands in for the policy.
"""

import sys
from pathlib import Path

import anyio
from cities import offline_policy, population

import agentkit as ak
from agentkit.rewards import exact_match
from agentkit.runs import Dataset, PoolLimits, RunConfig, execute

# --8<-- [start:run]
config = RunConfig(
    name="cities",
    agent=ak.Agent(
        offline_policy(),
        tools=[population],
        reward=exact_match(),
        budget=ak.Budget(trajectory_s=60, max_turns=5),
    ),
    dataset=Dataset(Path(__file__).with_name("tasks.jsonl")),
    pool=PoolLimits(max_rollouts=64, group_size=4),
)


async def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    result = await execute(config, folder)  # folder: None takes the next free runs/cities-1, -2, ...
    print(result.why, dict(result.progress.reasons), result.progress.mean_score)


# --8<-- [end:run]

if __name__ == "__main__":
    anyio.run(main)
