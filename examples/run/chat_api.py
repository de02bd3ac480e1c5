"""The run of chat.yaml in Python: messages to a chat API and back.

`API_KEY=... python examples/run/chat_api.py` needs `pip install -e '.[openai]'`, and a server at MODEL_URL.
"""

import os

import anyio
from agentkit_openai import ChatModel
from cities import population

import agentkit as ak
from agentkit.rewards import exact_match
from agentkit.tools import finish

URL = os.environ.get("MODEL_URL", "https://api.example.com/v1")
NAME = os.environ.get("MODEL_NAME", "some-model")


# --8<-- [start:agent]
async def main() -> None:
    async with ChatModel(URL, NAME, api_key=os.environ.get("API_KEY"), max_tokens=2048) as model:
        agent = ak.Agent(
            model,
            tools=[population, finish],
            reward=exact_match(),
            budget=ak.Budget(trajectory_s=300, generation_s=120, max_turns=8),
        )
        task = ak.Task("lima", "How many million people live in Lima?", data={"answer": "10.4"})
        async with ak.Pool(agent, group_size=4) as pool:
            async for trajectory in pool.run([task]):
                print(trajectory.exit_reason, trajectory.score, len(trajectory.turns), "turns")
        print(model.usage.completion_tokens, "tokens in", model.usage.answers, "answers")


# --8<-- [end:agent]

if __name__ == "__main__":
    anyio.run(main)
