"""Chat templates that hold one call in a turn: a policy that makes two is told, and loses nothing else."""

from collections.abc import Sequence

import pytest

from agentkit import tool
from agentkit.actors import Agent
from agentkit.models import ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.protocols import ExitReason, FaultStatus, HoldsOneCall, Message, ToolSpec
from agentkit.tokens import CHATML, ByteTokenizer, TemplateRenderer, byte_chatml, templates

TWO = '<tool_call>\n{"name": "look", "arguments": {"x": "a"}}\n</tool_call>\n' * 2
ONE = '<tool_call>\n{"name": "look", "arguments": {"x": "b"}}\n</tool_call>'
looked: list[str] = []


@tool
async def look(x: str) -> str:
    """Look at it."""
    looked.append(x)
    return f"saw {x}"


def strict(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """ChatML that refuses a second call."""
    if any(len(message.tool_calls) > 1 for message in messages):
        raise ValueError("one call at a time")
    return templates.chatml(messages, tools, generation_prompt=generation_prompt)


@pytest.fixture(autouse=True)
def nothing_looked_at() -> None:
    looked.clear()


def agent(renderer: TemplateRenderer) -> Agent:
    return Agent(ScriptedModel([TWO, ONE, "done"], renderer=renderer, parser=HermesParser()), tools=[look])


def test_the_template_says_that_it_holds_one_call() -> None:
    one, many = TemplateRenderer(ByteTokenizer(), strict, CHATML), byte_chatml()
    assert isinstance(one, HoldsOneCall)
    assert one.holds_one_call
    assert not many.holds_one_call


async def test_two_calls_are_a_format_error_and_none_runs() -> None:
    trajectory = await agent(TemplateRenderer(ByteTokenizer(), strict, CHATML)).run("Look twice.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert looked == ["b"]
    first = trajectory.turns[0]
    assert [fault.status for fault in first.action.faults] == [FaultStatus.MALFORMED]
    assert first.action.calls == ()
    (observation,) = first.observations
    assert "one call at a time: this turn made 2" in observation.content
    assert len(trajectory.chains) == 1


async def test_a_template_that_holds_several_runs_them_all() -> None:
    trajectory = await agent(byte_chatml()).run("Look twice.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert looked == ["a", "a", "b"]
