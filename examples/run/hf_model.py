"""A transformers model in this process.

`python examples/run/hf_model.py MODEL` needs `pip install -e '.[hf]'`, torch, and a model: a folder, or a hub name.
"""

import sys

import anyio
from agentkit_hf import HFModel

import agentkit as ak


# --8<-- [start:model]
async def main(model: str) -> None:
    async with HFModel(model, interleave=8, seed=1) as policy:  # or a loaded module, with tokenizer=...
        agent = ak.Agent(policy, params={"temperature": 0.7}, budget=ak.Budget(max_tokens=256))
        async with ak.Pool(agent, group_size=4) as pool:
            async for trajectory in pool.run([ak.Task("lima", "Where is Lima?")]):
                print(trajectory.exit_reason, repr(trajectory.turns[0].action.content))


# --8<-- [end:model]

if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
