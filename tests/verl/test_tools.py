"""The tools of verl themselves, in agents of ours, beside what verl's own loop makes of them."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentkit_verl.instances import with_tools
from agentkit_verl.tools import ResponseLimit, verl_tools
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit import Agent, ExitReason, Task, Trajectory
from agentkit.models import ScriptedModel
from agentkit.protocols import Observation, ToolCall, ToolContext

NATIVE = '''
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class Ledger(BaseTool):
    """Adds up, for each instance; knows which are open."""

    open = {}

    async def create(self, instance_id=None, create_kwargs=None, **kwargs):
        instance_id, response = await super().create(instance_id)
        self.open[instance_id] = (create_kwargs or {}).get("start", 0)
        return instance_id, response

    async def execute(self, instance_id, parameters, **kwargs):
        self.open[instance_id] += parameters["n"]
        text = str(self.open[instance_id]) + self.config.get("suffix", "")
        return ToolResponse(text=text), 0.5, {"n": parameters["n"], "request": bool(kwargs["agent_data"].request_id)}

    async def release(self, instance_id, **kwargs):
        del self.open[instance_id]
'''

CONFIG = """
tools:
  - class_name: ledger_of_test.Ledger
    config: {type: native, suffix: "!"}
    tool_schema:
      type: function
      function:
        name: ledger
        description: Adds n to what is there.
        parameters:
          type: object
          properties:
            n: {type: integer, description: what to add}
          required: [n]
"""

FUNCTIONS = '''
from verl.tools.function_tool import function_tool


@function_tool
def shout(text: str, times: int = 1) -> str:
    """Say it loud.

    Args:
        text: what to say
        times: how often
    """
    if times > 5:
        raise ValueError("too loud")
    return text.upper() * times


@function_tool("whisper")
async def quiet(text: str) -> dict:
    """Say it low.

    Args:
        text: what to say
    """
    return {"said": text.lower(), "ü": 1}, 0.75
'''


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What verl's worker loads from `tool_config_path` and `function_tool_path`."""
    from verl.tools.tool_registry import load_all_tools

    folder = tmp_path_factory.mktemp("tools")
    (folder / "ledger_of_test.py").write_text(NATIVE)
    (folder / "tools.yaml").write_text(CONFIG)
    (folder / "functions.py").write_text(FUNCTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        loaded = load_all_tools(str(folder / "tools.yaml"), str(folder / "functions.py"))
    assert [tool.name for tool in loaded] == ["ledger", "shout", "whisper"]
    return loaded


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def rolled(tools: Any, *script: str, kwargs: object = None, **options: Any) -> Trajectory:
    agent = Agent(ScriptedModel([*script, "done"]), env=with_tools(None), tools=verl_tools(tools, **options))
    return await agent.run(Task("t", "x", {} if kwargs is None else {"tools_kwargs": kwargs}))


def observed(trajectory: Trajectory) -> list[Observation]:
    assert trajectory.exit_reason is ExitReason.FINISHED
    return [each for turn in trajectory.turns for each in turn.observations]


async def test_a_native_tool_keeps_its_state_for_a_rollout(tools: Any) -> None:
    kwargs = {"ledger": {"create_kwargs": {"start": 10}}}
    seen = observed(await rolled(tools, call("ledger", n=1), call("ledger", n=5), kwargs=kwargs))
    assert [each.content for each in seen] == ["11!", "16!"]
    assert [dict(each.metadata) for each in seen] == [
        {"tool_reward": 0.5, "tool_metrics": {"n": 1, "request": True}},
        {"tool_reward": 0.5, "tool_metrics": {"n": 5, "request": True}},
    ]
    assert tools[0].open == {}


async def test_function_tools_run_async_or_in_a_thread(tools: Any) -> None:
    script = call("shout", text="a", times=2), call("whisper", text="B"), call("shout", text="a", times=9)
    seen = observed(await rolled(tools, *script))
    assert [each.content for each in seen] == [
        "AA",
        '{"said": "b", "ü": 1}',
        "Error: tool 'shout' failed: ValueError: too loud",
    ]
    assert [each.metadata.get("tool_reward") for each in seen] == [None, 0.75, None]


async def test_calls_that_do_not_fit_verls_schema_are_told_so(tools: Any) -> None:
    (seen,) = observed(await rolled(tools, call("ledger", n="many")))
    assert seen.content.startswith("Tool call failed:")
    assert tools[0].open == {}


def test_specs_are_rendered_as_verl_renders_its_schemas(tools: Any) -> None:
    for tool, made in zip(tools, verl_tools(tools), strict=True):
        shown = tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)["function"]
        rendered = {"name": made.spec.name, "description": made.spec.description, "parameters": made.spec.parameters}
        assert json.dumps(rendered) == json.dumps(shown)  # in this order, which templates write


TEXTS = st.text("abcdefg", max_size=12)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, length=st.integers(2, 9), side=st.sampled_from(["left", "right", "middle"]), reward=st.floats(0, 1))
def test_answers_are_those_of_verls_own_loop(text: str, length: int, side: Any, reward: float) -> None:
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    schema = {"type": "function", "function": {"name": "say", "description": "", "parameters": None}}
    schema["function"]["parameters"] = {"type": "object", "properties": {}}  # type: ignore[index]

    async def say() -> Any:
        return text, reward

    tool = FunctionTool("say", say, OpenAIFunctionToolSchema.model_validate(schema), is_async=True)
    loop = SimpleNamespace(tools={"say": tool}, max_tool_response_length=length, tool_response_truncate_side=side)
    asked = SimpleNamespace(name="say", arguments="{}")
    response, their_reward, _ = asyncio.run(ToolAgentLoop._call_tool(loop, asked, {}, SimpleNamespace()))  # type: ignore[arg-type]

    (ours,) = verl_tools([tool], limit=ResponseLimit(length, side))
    context = ToolContext(ToolCall("c", "say", {}), None, "t#0", float("inf"))
    seen = asyncio.run(ours.call({}, context))  # type: ignore[arg-type]
    assert (seen.content, seen.metadata["tool_reward"]) == (response.text, their_reward)


async def test_images_of_a_tool_are_shown_before_its_words(tmp_path: Path) -> None:
    from PIL import Image
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

    from agentkit.tokens import open_image

    picture = Image.effect_noise((9, 7), 80).convert("RGB")
    schema = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
    schema["function"]["parameters"] = {"type": "object", "properties": {}}  # type: ignore[index]

    async def look() -> ToolResponse:
        return ToolResponse(text="there", image=[picture, None])

    (tool,) = verl_tools([FunctionTool("look", look, OpenAIFunctionToolSchema.model_validate(schema), is_async=True)])
    seen = await tool.call({}, ToolContext(ToolCall("c", "look", {}), None, "t#0", float("inf")))
    medium, words = seen.parts
    assert (words, seen.content) == ("there", "there")
    assert open_image(medium).tobytes() == picture.tobytes()  # type: ignore[arg-type]
