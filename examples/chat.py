"""A chat: the rollout is an actor that is told, asked, interrupted and watched.

A script stands in for the policy; it writes 20 tokens a second, so that there is something to interrupt.
"""

import anyio

import agentkit as ak
from agentkit.actors import Actor, Answered, Ended
from agentkit.models import ScriptedModel

STORY = "Once upon a time there was a list that had no end, and it began like this: one, two, three, four, five, six."
SCRIPT = ["Hello. What shall I write?", STORY, "Fine: a list had no end."]
agent = ak.Agent(ScriptedModel(SCRIPT, chunk_tokens=1, token_s=0.05), loop=ak.chat)


async def watch(actor: Actor) -> None:
    """Any number of watchers may listen; none can hold the rollout back."""
    async for event in actor.events():
        if isinstance(event, Answered):
            print(f"turn {event.turn} ({event.action.finish}): {event.action.content}")
        elif isinstance(event, Ended):
            print("ended:", event.trajectory.exit_reason)


async def main() -> None:
    async with ak.Pool(agent) as pool, anyio.create_task_group() as group:
        actor = pool.start(ak.Task("chat", [ak.system("You write stories."), ak.user("Hello.")]))
        group.start_soon(watch, actor)
        await anyio.sleep(2)
        actor.tell("A story, please.")  # does not wait
        await anyio.sleep(0.5)
        actor.interrupt()  # what was sampled so far stays, with its log-probabilities
        answer = await actor.ask("In one sentence.")  # waits for the answer
        print("asked, and got:", answer.content)
        actor.hang_up()  # the chat ends as `finished`
        trajectory = await actor.result()
    print([str(turn.finish) for turn in trajectory.turns], len(trajectory.chains), "chain")


if __name__ == "__main__":
    anyio.run(main)
