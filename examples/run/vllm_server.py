"""The run of vllm.yaml in Python: token ids from a vLLM server, with log-probabilities.

Needs `pip install -e '.[openai,hf]'`, and the server that vllm.yaml names. `python examples/run/vllm_server.py`
"""

import os
from pathlib import Path

import anyio
from agentkit_hf import hf_renderer
from agentkit_openai import CompletionsModel
from cities import population

import agentkit as ak
from agentkit.parsing import HermesParser
from agentkit.rewards import exact_match
from agentkit.runs import Dataset, PoolLimits, RunConfig, execute
from agentkit.tools import finish

URL = os.environ.get("MODEL_URL", "http://127.0.0.1:8000/v1")
NAME = os.environ.get("MODEL_NAME", "Qwen/Qwen2.5-7B-Instruct")


def make_config(tokenizer: str = NAME) -> RunConfig:
    model = CompletionsModel(URL, NAME, logprobs="processed")
    agent = ak.Agent(
        model,
        renderer=hf_renderer(tokenizer),
        parser=HermesParser(),
        tools=[population, finish],
        reward=exact_match(),
        params={"temperature": 1.0},
        budget=ak.Budget(trajectory_s=300, generation_s=60, tool_s=30, max_turns=8, max_tokens=8192),
    )
    dataset = Dataset(Path(__file__).with_name("tasks.jsonl"))
    return RunConfig(name="cities-vllm", agent=agent, dataset=dataset, pool=PoolLimits(group_size=8))


async def main() -> None:
    result = await execute(make_config())
    print(result.folder, result.why, result.progress.mean_score)


if __name__ == "__main__":
    anyio.run(main)
