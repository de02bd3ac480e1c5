"""Groups for GRPO: several rollouts of each task, and a fault of the server that is no failure of the policy.

A script stands in for the policy: its answers go round, and the server "fails" at the third request.
"""

import statistics
from collections.abc import Sequence
from itertools import count

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.rewards import exact_match

_requests = count(1)


def policy(prompt: str) -> str:
    """Right every other time."""
    number = next(_requests)
    if number == 3:
        raise ak.ModelError("the server was restarted")
    return "10.4" if number % 2 else "12"


outcomes = ak.OutcomePolicy(
    exits={**ak.OutcomePolicy().exits, ak.ExitReason.MODEL_ERROR: ak.Outcome.REPLACE}, replacements=2
)
agent = ak.Agent(ScriptedModel(policy), reward=exact_match(), outcomes=outcomes)


def advantages(group: Sequence[ak.Trajectory]) -> dict[int, float]:
    """Each trained rollout's score against its group (Shao et al. 2024, arXiv 2402.03300, section 4.1.2).

    What was dropped or replaced is out of the baseline, what is masked stays in it.
    """
    scores = {t.key.index: t.score for t in group if t.outcome in (ak.Outcome.TRAIN, ak.Outcome.MASK)}
    known = {index: score for index, score in scores.items() if score is not None}
    mean, spread = statistics.mean(known.values()), statistics.pstdev(known.values())
    return {index: (score - mean) / (spread + 1e-6) for index, score in sorted(known.items())}


async def main() -> None:
    tasks = [ak.Task("lima", "Population of Lima?", data={"answer": "10.4"})]
    async with ak.Pool(agent, group_size=4) as pool:
        async for group in pool.run(tasks).groups():  # as they complete, replacements included
            for t in sorted(group, key=lambda t: t.key.index):
                after = "" if t.replaces is None else f"(replaces {t.replaces})"
                print(t.key, t.exit_reason, f"blame={t.blame} score={t.score} outcome={t.outcome}", after)
            print(group[0].task_id, "advantages", [round(value, 2) for value in advantages(group).values()])


if __name__ == "__main__":
    anyio.run(main)
