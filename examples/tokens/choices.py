"""A chat template that rewrites history, and four things to do about it: what the policy sees, what is trained.

Needs `pip install -e '.[hf]'`, the tokenizer of a Qwen3, and a training template for it:
`python examples/tokens/choices.py Qwen/Qwen3-8B qwen3_training.jinja`
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from agentkit_hf import hf_renderer

import agentkit as ak
from agentkit.errors import ConfigError
from agentkit.models import ScriptedModel

REASONS = ["<think>\nIn the north.\n</think>\n\nOslo.", "<think>\nBy the sea.\n</think>\n\nLima."]
PLAIN = ["Oslo.", "Lima."]


class Asks:
    """An env that asks two questions, one after the other."""

    async def start(self, task: ak.Task) -> list[ak.Message]:
        self.answers = 0
        return [ak.user("The capital of Norway?")]

    async def step(self, action: ak.Action) -> ak.Observation:
        self.answers += 1
        return ak.Observation("And of Peru?") if self.answers == 1 else ak.Observation("Thanks.", done=True)

    async def close(self) -> None: ...


def agents(tokenizer: Any, training_template: str) -> dict[str, ak.Agent]:
    """An agent for each choice. A script stands in for the policy, in the real tokens of the tokenizer."""
    policy = ScriptedModel(REASONS, renderer=hf_renderer(tokenizer, keep_history=True))
    silent = ScriptedModel(PLAIN, renderer=hf_renderer(tokenizer, reasoning=False))

    # --8<-- [start:keep]
    renderer = hf_renderer(tokenizer, keep_history=True)
    keeping = ak.Agent(policy, renderer=renderer, env=Asks)
    # --8<-- [end:keep]

    # --8<-- [start:template]
    renderer = hf_renderer(tokenizer, chat_template=training_template)  # its text, or a file
    training = ak.Agent(policy, renderer=renderer, env=Asks)
    # --8<-- [end:template]

    # --8<-- [start:new-chain]
    renderer = hf_renderer(tokenizer, allow_rewrites=True)
    splitting = ak.Agent(policy, renderer=renderer, env=Asks, on_rewrite="new_chain")
    # --8<-- [end:new-chain]

    # --8<-- [start:no-reasoning]
    renderer = hf_renderer(tokenizer, reasoning=False)
    plain = ak.Agent(silent, renderer=renderer, env=Asks)
    # --8<-- [end:no-reasoning]
    return {
        "keep_history=True": keeping,
        "chat_template=training_template": training,
        'allow_rewrites=True, on_rewrite="new_chain"': splitting,
        "reasoning=False": plain,
        "reasoning=False, but it reasons": ak.Agent(policy, renderer=renderer, env=Asks),
    }


async def told(agent: ak.Agent, decode: Callable[[Sequence[int]], str]) -> list[str]:
    """What is in the chains of a rollout: number of the chain, kind of the span, response mask, text."""
    trajectory = await agent.run("capitals")
    lines = [f"{trajectory.exit_reason}, {len(trajectory.chains)} chain{'s' * (len(trajectory.chains) > 1)}"]
    for number, chain in enumerate(trajectory.chains):
        for span in chain.spans:
            mask = chain.response_mask[span.start]
            lines.append(f"  {number} {span.kind:11} {mask} {decode(chain.ids[span.start : span.stop])!r}")
    return lines + ([f"  {trajectory.error.splitlines()[-1]}"] if trajectory.error else [])


async def main(tokenizer: Any, training_template: str) -> None:
    try:
        hf_renderer(tokenizer)
    except ConfigError as error:
        print(error)
    decode = hf_renderer(tokenizer, allow_rewrites=True).tokenizer.decode
    for choice, agent in agents(tokenizer, training_template).items():
        first, *rest = await told(agent, decode)
        print(f"\n{choice}: {first}", *rest, sep="\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
