"""Tools of one's own: a typed function, one that refuses, one that needs something of the env.

A script stands in for the policy.
"""

from typing import Protocol, runtime_checkable

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel

# --8<-- [start:tool]
RATES = {"EUR": 1.0, "PEN": 4.0, "NOK": 11.5}  # for one euro


@ak.tool(timeout_s=20)
async def convert(amount: float, to: str) -> str:
    """Convert an amount of euros.

    Args:
        amount: How many euros.
        to: The code of a currency, such as PEN.
    """
    if to not in RATES:
        raise ak.ToolError(f"no rate for {to!r}: there are {', '.join(RATES)}")  # the policy reads this
    return f"{amount * RATES[to]:.2f} {to}"


# --8<-- [end:tool]


# --8<-- [start:need]
@runtime_checkable
class Purse(Protocol):
    """What the next tool needs of the env. Any env that has it will do."""

    def pay(self, amount: float) -> float: ...


@ak.tool
async def pay(amount: float, purse: Purse) -> str:
    """Pay an amount of euros.

    Args:
        amount: How many euros.
        purse: Comes from the env; the policy never sees this parameter.
    """
    return f"{purse.pay(amount):.2f} EUR are left"


class Traveller:
    """The env: one object for each rollout, so each has a purse of its own."""

    async def start(self, task: ak.Task) -> None:
        self.left = 100.0

    def pay(self, amount: float) -> float:
        self.left -= amount
        return self.left

    async def close(self) -> None: ...


# --8<-- [end:need]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# --8<-- [start:run]
SCRIPT = [
    call("convert", '{"amount": "ten", "to": "PEN"}'),  # does not fit the schema
    call("convert", '{"amount": 10, "to": "USD"}'),
    call("convert", '{"amount": 10, "to": "PEN"}'),
    call("pay", '{"amount": 10}'),
    "It cost 40 soles.",
]
agent = ak.Agent(ScriptedModel(SCRIPT), env=Traveller, tools=[convert, pay])


async def main() -> None:
    trajectory = await agent.run("The ticket costs 10 euros. Pay it, and say what that is in soles.")
    for turn in trajectory.turns:
        for observation in turn.observations:
            print(f"[{observation.status}]", observation.content)
    print(trajectory.exit_reason, repr(trajectory.turns[-1].action.content))


# --8<-- [end:run]

if __name__ == "__main__":
    anyio.run(main)
