"""An agent to simulate where there is no other: it calls tools that need its env, and errs as policies do."""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import anyio

from agentkit.actors import Agent, OutcomePolicy
from agentkit.models import ScriptedModel
from agentkit.protocols import Action, Budget, Message, Observation, Task, Trajectory
from agentkit.tools import tool

_CALL = '<tool_call>\n{{"name": "{}", "arguments": {{{}}}}}\n</tool_call>'
_ASKED = re.compile(r"in (\d+) steps, from (\w+)")


@runtime_checkable
class Rooms(Protocol):
    """An env that can be searched."""

    async def search(self, room: str) -> str:
        """What is in a room."""
        ...


class SimulatedEnv:
    """A few rooms; it answers text, and is done when it reads `found`."""

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Open, which takes a moment."""
        await anyio.sleep(0.7)
        return None

    async def search(self, room: str) -> str:
        """What is in a room, after a moment."""
        await anyio.sleep(0.3)
        return f"nothing in {room}" if len(room) % 2 else f"a key in {room}"

    async def step(self, action: Action, /) -> Observation:
        """Read what the policy said."""
        await anyio.sleep(0.1)
        return Observation("go on", done="found" in action.content)

    async def close(self) -> None:
        """Close, which takes a moment."""
        await anyio.sleep(0.2)


@tool(parallel=True)
async def look(room: str, rooms: Rooms) -> str:
    """Look into a room."""
    return await rooms.search(room)


@tool
async def enter(room: str, rooms: Rooms) -> str:
    """Go into a room."""
    return await rooms.search(room)


async def judge(trajectory: Trajectory, env: object) -> float:
    """Fewer turns are better."""
    del env
    await anyio.sleep(0.4)
    return 1.0 / (1 + len(trajectory.turns))


def _policy(prompt: str) -> str:
    """What the policy says next: a function of the conversation alone."""
    asked = _ASKED.search(prompt)
    steps, seed = (int(asked[1]), asked[2]) if asked else (1, "")
    turn = prompt.count("<|im_start|>assistant") - 1
    if turn >= steps:
        return "I have found it."
    choice = blake2b(f"{seed} {turn}".encode(), digest_size=1).digest()[0] % 8
    calls = {
        0: _CALL.format("look", '"room": "hall"') + "\n" + _CALL.format("look", '"room": "attic"'),
        1: _CALL.format("enter", '"room": "cellar"'),
        2: _CALL.format("look", '"room": 3'),  # of the wrong type
        3: _CALL.format("fly", ""),  # no such tool
        4: '<tool_call>\n{"name": "look", "arg',  # cut short
        5: "Let me think about that first.",
    }
    return f"Step {turn}. " + calls.get(choice, _CALL.format("look", f'"room": "room {turn}"'))


def simulated_agent() -> Agent:
    """An agent whose rollouts depend on their tasks alone; waiting for permits does not count against its limits."""
    # No two limits, and no sums of durations, are equal: which comes first does not depend on rounding.
    budget = Budget(
        trajectory_s=173.3,
        setup_s=31.7,
        generation_s=41.9,
        tool_s=23.1,
        reward_s=29.3,
        grace_s=3.7,
        max_turns=9,
        max_tokens=2048,
        count_waiting=False,
    )
    return Agent(
        ScriptedModel(_policy, token_s=0.013, first_token_s=0.11, chunk_tokens=24, policy_version=7),
        env=SimulatedEnv,
        tools=(look, enter),
        reward=judge,
        budget=budget,
        outcomes=OutcomePolicy(backoff_s=1.3),
        name="simulated",
    )


def simulated_task(task_id: str) -> Task:
    """The task of this name: a function of the name alone."""
    steps = blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=1).digest()[0] % 4
    seed = blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return Task(task_id, f"Find the key in {steps} steps, from {seed}.")
