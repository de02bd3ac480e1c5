"""Rewards of one's own: a number, a score with metrics, a weighted sum, and what happens when a grader breaks.

A script stands in for the policy.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.rewards import answer_of, exact_match, weighted


# --8<-- [start:score]
async def brevity(trajectory: ak.Trajectory, env: object) -> ak.Score:
    """1 for an answer of one word, less for longer ones."""
    words = len(answer_of(trajectory).split())
    return ak.Score(1 / max(words, 1), metrics={"words": words})


reward = weighted({"right": (exact_match(), 1.0), "brief": (brevity, 0.1)})
# --8<-- [end:score]


# --8<-- [start:broken]
async def broken(trajectory: ak.Trajectory, env: object) -> float:
    """A grader whose own data is missing."""
    return float(answer_of(trajectory) == trajectory.task.data["solution"])


# --8<-- [end:broken]


async def main() -> None:
    # --8<-- [start:run]
    task = ak.Task("lima", "Capital of Peru?", data={"answer": "Lima"})
    trajectory = await ak.Agent(ScriptedModel(["Lima"]), reward=reward).run(task)
    print(trajectory.score, dict(trajectory.grade.score.metrics))

    trajectory = await ak.Agent(ScriptedModel(["Lima"]), reward=broken).run(task)
    print(trajectory.score, trajectory.grade.status, trajectory.grade.blame, trajectory.outcome)
    print(trajectory.grade.error.splitlines()[-1])
    # --8<-- [end:run]


if __name__ == "__main__":
    anyio.run(main)
