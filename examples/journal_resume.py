"""A journal: stop a run early, go on later, and read what there is.

A script stands in for the policy. `python examples/journal_resume.py FOLDER` keeps the journal in FOLDER.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import anyio

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.models import ScriptedModel

agent = ak.Agent(ScriptedModel(["It is done."], token_s=0.01))
TASKS = [ak.Task(f"task-{number}", "Do it.") for number in range(8)]


# --8<-- [start:run]
async def run(folder: Path, *, take: int | None = None) -> list[ak.Trajectory]:
    """The trajectories of the rollouts that the journal does not hold as done, or the first `take` of them."""
    taken: list[ak.Trajectory] = []
    async with (
        Journal.open(folder) as journal,
        ak.Pool(agent, max_rollouts=2, sink=journal) as pool,
        pool.run(TASKS) as rollouts,  # leaving early cancels what is left
    ):
        async for trajectory in rollouts:
            taken.append(trajectory)
            if len(taken) == take:
                break
    return taken


# --8<-- [end:run]


def count_ends(reader: JournalReader) -> dict[str, int]:
    """How often each exit reason occurs."""
    return dict(Counter(str(summary.exit_reason) for summary in reader.summaries()))


async def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="agentkit-example-"))
    print("first run:", len(await run(folder, take=3)), "taken")
    with JournalReader.open(folder) as reader:
        # Rollouts under way when the run was left are sealed as `cancelled`; the next run gives each a new attempt,
        # which replaces what was sealed (`Journal.open(folder, repeat=())` would leave it). A killed process seals
        # nothing: its rollouts are in `reader.unfinished()`, and get a new attempt, too.
        print("sealed then:", count_ends(reader))
    print("second run:", len(await run(folder)), "more")
    with JournalReader.open(folder) as reader:
        print("sealed now:", count_ends(reader))
        trajectory = next(reader.trajectories())
        print("the first:", trajectory.key, repr(trajectory.turns[0].action.content))
    print("look around with: agentkit inspect", folder)


if __name__ == "__main__":
    anyio.run(main)
