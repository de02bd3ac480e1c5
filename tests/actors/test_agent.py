"""What an agent brings and what its model brings."""

import pytest

from agentkit import Agent, ConfigError
from agentkit.models import ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.testing import FakeTool
from agentkit.tokens import byte_chatml


class Speechless:
    """A token-level model that knows how to write its prompts, and not how it writes its calls."""

    def __init__(self) -> None:
        self.renderer = byte_chatml()
        self.sample_tokens = ScriptedModel(["Hello."]).sample_tokens

    @property
    def parser(self) -> HermesParser:
        raise ConfigError("this model has no parser")


def test_renderer_and_parser_may_come_from_different_places() -> None:
    model, parser = Speechless(), HermesParser()
    agent = Agent(model, parser=parser)
    assert agent.renderer is model.renderer
    assert agent.parser is parser


def test_what_a_model_says_of_what_it_lacks_is_told() -> None:
    with pytest.raises(ConfigError, match="this model has no parser"):
        Agent(Speechless())


def test_what_nobody_brings_is_named() -> None:
    class Bare:
        sample_tokens = ScriptedModel(["Hello."]).sample_tokens

    with pytest.raises(ConfigError, match=r"agent\.renderer is missing: Bare samples tokens and brings no Renderer"):
        Agent(Bare())


async def test_a_reward_may_take_whatever_comes() -> None:
    async def graded(*seen: object) -> float:
        return float(len(seen))

    assert (await Agent(ScriptedModel(["Hello."]), reward=graded).run("Go.")).score == 2


def test_a_reward_that_takes_too_little_is_refused() -> None:
    async def graded(trajectory: object) -> float:
        return 1.0

    with pytest.raises(ConfigError, match="graded takes fewer arguments"):
        Agent(ScriptedModel(["Hello."]), reward=graded)


class Toolless:
    """A renderer whose template has no place for tools."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.inner = byte_chatml()
        self.stop_ids = self.inner.stop_ids
        self.bridge, self.decode = self.inner.bridge, self.inner.decode

    def prompt(self, messages, tools):
        if tools:
            raise self.error
        return self.inner.prompt(messages, tools)


def test_a_renderer_that_cannot_show_the_tools_says_so_when_the_agent_is_composed() -> None:
    renderer = Toolless(ConfigError("this template shows no tools"))
    Agent(ScriptedModel(["Hello."]), renderer=renderer)
    with pytest.raises(ConfigError, match="this template shows no tools"):
        Agent(ScriptedModel(["Hello."]), renderer=renderer, tools=[FakeTool("work", lambda _: None)])


def test_a_template_that_wants_more_than_a_word_is_left_to_the_rollouts() -> None:
    Agent(
        ScriptedModel(["Hello."]),
        renderer=Toolless(ValueError("no system message")),
        tools=[FakeTool("work", lambda _: None)],
    )
