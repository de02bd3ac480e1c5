"""What the page on failures shows."""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel


async def main() -> None:
    # --8<-- [start:outcomes]
    outcomes = ak.OutcomePolicy(
        exits={**ak.OutcomePolicy().exits, ak.ExitReason.TRAJECTORY_TIMEOUT: ak.Outcome.MASK},
        blames={ak.Blame.INFRASTRUCTURE: ak.Outcome.REPLACE},
        retries=3,
        backoff_s=2.0,
    )
    only_finished = ak.OutcomePolicy.mask_abnormal()
    # --8<-- [end:outcomes]

    model = ScriptedModel(["word " * 100], chunk_tokens=1, token_s=0.5)
    for policy, outcome in ((outcomes, ak.Outcome.MASK), (only_finished, ak.Outcome.MASK)):
        trajectory = await ak.Agent(model, outcomes=policy, budget=ak.Budget(trajectory_s=3)).run("Go.")
        assert trajectory.exit_reason is ak.ExitReason.TRAJECTORY_TIMEOUT
        assert trajectory.outcome is outcome
        assert set(trajectory.loss_mask(0)) == {0}


if __name__ == "__main__":
    anyio.run(main)
