"""The short way to render a template of `transformers` gives what `apply_chat_template` gives, for data and errors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.protocols import Message, ToolCall, ToolSpec, user
from agentkit.tokens import HFTemplate

EVERYTHING = (
    "{% for m in messages %}{{ m | tojson }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}"
    "{% endfor %}{{ tools | tojson }}{{ eos_token }}{{ documents }}{{ add_generation_prompt }}{{ mood }}"
)


def tokenizer(template: str) -> Any:
    """A fast tokenizer that knows next to nothing but its template."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({"a": 0}, [])), eos_token="<|end|>")
    made.chat_template = template
    return made


def official(hf: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, **kwargs: object) -> str:
    """What `transformers` renders."""
    return hf.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False, **kwargs)


HF = tokenizer(EVERYTHING)
TEMPLATE = HFTemplate(HF, mood="fine")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.booleans(), st.booleans())
def test_it_renders_as_transformers_does(said: str, values: dict[str, Any], has_tools: bool, thinks: bool) -> None:
    call = ToolCall("call_0", "run", values)
    messages = [user(said), Message("assistant", said, (call,), reasoning=said if thinks else None)]
    tools = (ToolSpec("run", said, values),) if has_tools else ()
    wired: list[dict[str, Any]] = [
        {"role": "user", "content": said},
        {
            "role": "assistant",
            "content": said,
            "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "run", "arguments": values}}],
        },
    ]
    if thinks:
        wired[1] |= {"reasoning_content": said, "thinking": said}
    function = {"name": "run", "description": said, "parameters": values}
    expected = official(HF, wired, [{"type": "function", "function": function}] if has_tools else None, mood="fine")
    for _ in range(2):  # the first time both ways are gone
        assert TEMPLATE(messages, tools, generation_prompt=True) == expected


class Loud(str):
    """Text with a method that no template must reach."""

    __slots__ = ()

    def shout(self) -> str:
        return "REACHED"


def test_no_template_gets_hold_of_more_than_plain_json() -> None:
    hf = tokenizer("{% for m in messages %}{{ m.content }}{{ m.content.shout and m.content.shout() }}{% endfor %}")
    template = HFTemplate(hf)
    for _ in range(3):
        assert template([user(Loud("quiet"))], (), generation_prompt=True) == "quiet"


def test_no_tool_brings_more_than_plain_json() -> None:
    hf = tokenizer("{{ tools[0].function.parameters.x.shout and tools[0].function.parameters.x.shout() }}-")
    template = HFTemplate(hf)
    for text in ("quiet", Loud("quiet"), Loud("quiet")):
        assert template([user("x")], (ToolSpec("run", "It runs.", {"x": text}),), generation_prompt=True) == "-"


def test_a_template_changes_nothing_for_the_next_rendering() -> None:
    hf = tokenizer("{% set _ = tools[0].update({'x': 1}) %}{{ tools }}")
    template = HFTemplate(hf)
    tools = (ToolSpec("run", "It runs.", {}),)
    for _ in range(3):
        with pytest.raises(Exception, match="update"):  # the sandbox of transformers says it, in its own words
            template([user("x")], tools, generation_prompt=True)


def test_what_a_template_raises_comes_out_as_transformers_raises_it() -> None:
    from jinja2 import TemplateError

    hf = tokenizer("{% if messages[0].content == 'no' %}{{ raise_exception('not that') }}{% endif %}yes")
    template = HFTemplate(hf)
    for _ in range(2):
        assert template([user("x")], (), generation_prompt=True) == "yes"
        with pytest.raises(TemplateError, match=r"^not that$"):
            template([user("no")], (), generation_prompt=True)


def test_a_tokenizer_that_renders_its_own_way_does() -> None:
    hf = tokenizer(EVERYTHING)
    hf.apply_chat_template = lambda messages, **_: f"mine: {messages[0]['content']}"
    template = HFTemplate(hf)
    for said in ("a", "b", "c"):
        assert template([user(said)], (), generation_prompt=True) == f"mine: {said}"


class Odd:
    """What another version may compile templates to."""

    def render(self, **_: object) -> str:
        return "odd"


@pytest.mark.parametrize("compiler", [None, lambda _: Odd()])
def test_where_transformers_compiles_otherwise_it_renders_by_itself(
    monkeypatch: pytest.MonkeyPatch, compiler: Any
) -> None:
    monkeypatch.setattr("agentkit.tokens._hf_jinja._compiler", lambda _: compiler)
    template = HFTemplate(tokenizer("{{ messages[0].content }}!"))
    for said in ("a", "b", "c"):
        assert template([user(said)], (), generation_prompt=True) == f"{said}!"
