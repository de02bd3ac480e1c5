"""A task for the tiny model: read a file in a sandbox, then say that it is done. Two turns, and a sandbox each."""

from pathlib import Path
from typing import Any

from tests.verl.rig.model import cached, make_model, teach

AGENT: dict[str, Any] = {
    "env": {"use": "sandbox", "backend": "bwrap", "setup": "shell_task:put_number"},
    "tools": ["execute_bash"],
    "reward": "shell_task:has_read",
    "budget": {"trajectory_s": 120, "generation_s": 60, "tool_s": 20, "reward_s": 20, "max_turns": 4},
}
"""The section `agent` of an entry; `write_parts` puts what it names beside the entry's file."""
PROMPT = "Read the number."
PROMPT_TOKENS, RESPONSE_TOKENS = 512, 384
"""Room for the tools and the prompt, and for four turns."""

PARTS = '''
"""The sandbox and the reward of the shell task."""

from agentkit.protocols import Score


async def put_number(sandbox, task):
    await sandbox.write("number", b"%d\\n" % (1000 + sum(task.id.encode())))


async def has_read(trajectory, env):
    """1 where the number was read, less what the rollout used: siblings differ, so that something is learnt."""
    number = (await env.read("number")).decode().strip()
    read = any(number in seen.content for turn in trajectory.turns for seen in turn.observations)
    tokens = sum(sum(chain.response_mask) for chain in trajectory.chains)
    return Score(float(read) - tokens / 1000, metrics={"read": float(read)})
'''


def write_parts(folder: Path) -> None:
    """Puts setup and reward where the entry's file finds them."""
    Path(folder, "shell_task.py").write_text(PARTS)


def tasks(name: str, count: int) -> list[dict[str, Any]]:
    """Rows for `write_tasks`; `name` is the agent's."""
    return [{"prompt": [{"role": "user", "content": PROMPT}], "agent_name": name} for _ in range(count)]


def taught_model() -> Path:
    """A tiny model that mostly does it: taught once, for some seconds, and kept."""
    return cached("shell", _make)


def _make(folder: Path) -> None:
    from agentkit_hf import hf_renderer
    from transformers import AutoTokenizer

    from agentkit.protocols import Message
    from agentkit.tools import bash

    make_model(folder)
    renderer = hf_renderer(AutoTokenizer.from_pretrained(folder))
    call = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "cat number"}}\n</tool_call>'
    opening = renderer.decode(renderer.prompt([Message("user", PROMPT)], (bash().spec,)))
    examples = [(opening, f"{call}<|im_end|>")]
    for number in (1234, 4071):
        answered = f"{opening}{call}<|im_end|>\n<|im_start|>tool\n{number}\n<|im_end|>\n<|im_start|>assistant\n"
        examples.append((answered, "done<|im_end|>"))
    teach(folder, examples, steps=150)
