"""What the page on images shows; `with_vllm` needs a model that sees, and is run by the tests of servers."""

from io import BytesIO
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from PIL import Image

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.parsing import HermesParser
from agentkit.protocols import EmitText, MessageRequest
from agentkit.tokens import shown_in


def screen() -> bytes:
    """A screenshot as an env would take it."""
    held = BytesIO()
    Image.new("RGB", (64, 48), "white").save(held, format="PNG")
    return held.getvalue()


# --8<-- [start:tool]
@ak.tool
async def click(x: int, y: int) -> ak.Observation:
    """Click, and see what the screen shows then."""
    return ak.Observation.of(f"Clicked at {x}, {y}. The screen now: ", ak.image(screen()))


# --8<-- [end:tool]


class Clicks:
    """Stands in for a chat server: clicks, then says what it was shown."""

    async def sample_message(self, request: MessageRequest, emit: EmitText) -> ak.Finish:
        """One call, then an answer."""
        seen = [medium.mime for message in request.messages for medium in message.media]
        if len(seen) == 1:
            call = ak.ToolCall("c1", "click", {"x": 3, "y": 4})
            return ak.Finish(message=ak.assistant("", call))
        return ak.Finish(message=ak.assistant(f"I saw {len(seen)} images."))


async def rollout(model: ak.MessageModel) -> ak.Trajectory:
    # --8<-- [start:task]
    task = ak.Task("t", [ak.user("Here is the screen: ", ak.image(screen()), " Open the menu.")])
    agent = ak.Agent(model, tools=[click])
    trajectory = await agent.run(task)
    # --8<-- [end:task]
    return trajectory


async def keep(trajectory: ak.Trajectory, folder: str) -> None:
    async with Journal.open(folder, writer="inline") as journal:
        await journal.seal(trajectory)
    # --8<-- [start:journal]
    with JournalReader.open(folder) as reader:
        for trajectory in reader.trajectories():
            for turn in trajectory.turns:
                for observation in turn.observations:
                    for medium in observation.message().media:
                        assert medium.data.startswith(b"\x89PNG")  # the very bytes that were shown
    # --8<-- [end:journal]


# --8<-- [start:vllm]
async def with_vllm(folder: str, **engine: Any) -> tuple[ak.Trajectory, Any]:
    from agentkit_hf import processor_renderer
    from agentkit_vllm import VLLMModel

    renderer = processor_renderer(folder)  # the model's chat template and its processor
    async with VLLMModel(folder, renderer=renderer, parser=HermesParser(), engine=engine) as model:
        agent = ak.Agent(model, budget=ak.Budget(max_tokens=512))
        trajectory = await agent.run(ak.Task("t", [ak.user("What is this? ", ak.image(screen()))]))
    placed = shown_in(trajectory, 0, renderer)  # where in the chain each image stands
    features = renderer.features([each.medium for each in placed])  # pixel_values and the like, for the trainer
    return trajectory, features


# --8<-- [end:vllm]


async def main() -> None:
    trajectory = await rollout(Clicks())
    assert trajectory.turns[-1].action.content == "I saw 2 images."
    with TemporaryDirectory() as folder:
        await keep(trajectory, folder)


if __name__ == "__main__":
    anyio.run(main)
