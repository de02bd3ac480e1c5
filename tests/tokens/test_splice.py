"""Which tools a template is shown for a bridge: as few as make no difference to what follows a turn."""

from collections.abc import Callable, Sequence

import pytest

from agentkit.protocols import Message, ToolCall, ToolSpec, assistant
from agentkit.tokens import CHATML, ByteTokenizer, TemplateRenderer, templates

TOOLS = tuple(ToolSpec(name, f"It {name}s.", {"type": "object"}) for name in ("run", "edit", "search"))


class Template:
    """ChatML with `behind` written after each result; remembers the names of the tools it was shown last."""

    def __init__(self, behind: Callable[[Message, Sequence[ToolSpec]], str]) -> None:
        self._behind = behind
        self.shown: tuple[str, ...] = ()

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        self.shown = tuple(tool.name for tool in tools)
        said = [
            Message(m.role, m.content + self._behind(m, tools), m.tool_calls, m.tool_call_id, m.name)
            if m.role == "tool"
            else m
            for m in messages
        ]
        return templates.chatml(said, tools, generation_prompt=generation_prompt)


def no_more(_: Message, __: Sequence[ToolSpec]) -> str:
    return ""


def how_many(_: Message, tools: Sequence[ToolSpec]) -> str:
    return f" ({len(tools)} tools)"


def the_called(result: Message, tools: Sequence[ToolSpec]) -> str:
    return "".join(f" [{tool.description}]" for tool in tools if tool.name == result.name)


def many_or_none(_: Message, tools: Sequence[ToolSpec]) -> str:
    if len(tools) == 1 and tools[0].name == "edit":
        raise ValueError("no tools to choose from")
    return ""


def bridged(renderer: TemplateRenderer, tools: Sequence[ToolSpec], name: str, content: str = "done") -> str:
    """What follows a turn that called `name`."""
    action = assistant("", ToolCall("call_0", name, {"x": "1"}))
    result = Message("tool", content, tool_call_id="call_0", name=name)
    tokenizer = renderer.tokenizer
    stop = tokenizer.control["<|im_end|>"]
    close, tail = renderer.bridge(action, [result], tools, sampled=[*tokenizer.encode("x"), stop])
    assert close == ()
    return tokenizer.decode(tail)


def renderer_of(template: Template) -> TemplateRenderer:
    return TemplateRenderer(ByteTokenizer(), template, CHATML)


@pytest.mark.parametrize(
    ("behind", "shown", "ends"),
    [
        (no_more, 1, "done\n<"),
        (how_many, 3, "done (3 tools)\n<"),
        (the_called, 1, "done [It edits.]\n<"),
        (many_or_none, 3, "done\n<"),
    ],
)
def test_the_tools_that_make_no_difference_are_not_shown(
    behind: Callable[[Message, Sequence[ToolSpec]], str], shown: int, ends: str
) -> None:
    template = Template(behind)
    renderer = renderer_of(template)
    tails = [bridged(renderer, TOOLS, "edit") for _ in range(5)]
    assert len(template.shown) == shown
    assert set(tails) == {tails[0]}
    assert ends in tails[0]


def test_each_called_tool_is_asked_about_and_shown() -> None:
    template = Template(the_called)
    renderer = renderer_of(template)
    for _ in range(3):
        for tool in TOOLS:
            assert f"done [{tool.description}]\n<" in bridged(renderer, TOOLS, tool.name)
            last = template.shown
    assert last == ("search",)


def test_a_name_that_is_no_tool_shows_one_of_them() -> None:
    """Without any, a template may write that there are none."""
    template = Template(lambda _, tools: "" if tools else " (no tools)")
    renderer = renderer_of(template)
    tails = {bridged(renderer, TOOLS, "fly") for _ in range(4)}
    assert len(template.shown) == 1
    assert all("no tools" not in tail for tail in tails)


def test_other_tools_are_asked_about_anew() -> None:
    template = Template(how_many)
    renderer = renderer_of(template)
    more = (*TOOLS, ToolSpec("stop", "It stops.", {"type": "object"}))
    for _ in range(3):
        assert "done (3 tools)\n<" in bridged(renderer, TOOLS, "edit")
    for _ in range(3):
        assert "done (4 tools)\n<" in bridged(renderer, more, "edit")
    for count in (2, 3, 4):
        assert f"done ({count} tools)\n<" in bridged(renderer, list(more[:count]), "edit")
