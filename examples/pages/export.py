"""What the page on exports shows."""

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.journal.export import Selection, export_jsonl
from agentkit.models import ScriptedModel


async def main() -> None:
    agent = ak.Agent(ScriptedModel(["Hello."]))
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        async with Journal.open(folder, writer="inline") as journal, ak.Pool(agent, group_size=4, sink=journal) as pool:
            await pool.run([ak.Task("hello", "Say hello.")])

        # --8<-- [start:read]
        with JournalReader.open(folder) as reader:
            for trajectory in reader.trajectories():  # one in memory at a time
                for number, chain in enumerate(trajectory.chains):
                    weights = trajectory.loss_mask(number)
                    assert len(weights) == len(chain.token_ids) == len(chain.logprobs)

        done = export_jsonl(folder, folder / "train.jsonl", select=Selection(outcomes={ak.Outcome.TRAIN}))
        assert done.written == 4
        # --8<-- [end:read]


if __name__ == "__main__":
    anyio.run(main)
