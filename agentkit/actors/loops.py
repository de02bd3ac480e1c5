"""Interaction loops: plain async code over a rollout. `react` is the default, and the model for your own."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkit.actors.rollout import Rollout


async def react(rollout: "Rollout") -> None:
    """Sample, act, observe, until an end is reached (Yao et al. 2022, arXiv 2210.03629; the model reasons or not).

    An action without a call ends the rollout as `finished`, unless the env answers it.
    """
    async for action in rollout:
        await rollout.act(action)


async def chat(rollout: "Rollout") -> None:
    """As `react`, but an action without a call hands the word to the user: the next message comes from the mailbox.

    A rollout that starts without a user message waits for the first. It is `finished` when the mailbox is closed.
    """
    if all(message.role != "user" for message in rollout.messages) and not await rollout.listen():
        return
    async for action in rollout:
        if action.attempts:
            await rollout.act(action)
        elif not await rollout.answer(action):
            return
