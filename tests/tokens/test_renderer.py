"""Prompts and bridges: what they hold, what they cost, and when they refuse."""

import gc
import itertools
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols import Message, Renderer, ToolCall, ToolSpec, assistant, system, user
from agentkit.tokens import (
    CHATML,
    GLM,
    QWEN,
    ByteTokenizer,
    Family,
    SafeEncoder,
    TemplateRenderer,
    Verdict,
    byte_chatml,
    templates,
)

TOKENIZER = ByteTokenizer()
chatml_renderer = cache(byte_chatml)
END = TOKENIZER.control["<|im_end|>"]
TOOLS = (ToolSpec("f", "Does it.", {"type": "object", "properties": {"x": {"type": "string"}}}),)
CALL = assistant("", ToolCall("c0", "f", {"x": "1"}))


def result(content: str, call_id: str = "c0") -> Message:
    return Message("tool", content, tool_call_id=call_id, name="f")


def bridged(renderer: TemplateRenderer, new: Sequence[Message], *, last_id: int | None = END, **kwargs: Any) -> str:
    close, rest = renderer.bridge(
        kwargs.get("action", CALL), new, kwargs.get("tools", ()), sampled=() if last_id is None else (last_id,)
    )
    return TOKENIZER.decode([*close, *rest])


def test_byte_chatml_is_a_renderer() -> None:
    assert isinstance(byte_chatml(), Renderer)
    assert byte_chatml().rewrites == ()
    assert byte_chatml().stop_ids == {END, TOKENIZER.control["<|endoftext|>"]}


@pytest.mark.parametrize("tools", [(), TOOLS, list(TOOLS)])
def test_prompt_is_the_full_rendering(chat_format: Any, tools: Sequence[ToolSpec]) -> None:
    messages = [system("Be brief."), user(" 2 + 2?\n"), assistant("4"), user("And 3 + 3?")]
    ids = chat_format.renderer().prompt(messages, tools)
    assert TOKENIZER.decode(ids) == chat_format.template(messages, tools, generation_prompt=True)


def test_separator_after_the_stop_is_appended() -> None:
    assert bridged(byte_chatml(), [user("next")]) == "\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"


def test_content_is_encoded_with_the_text_around_it() -> None:
    _, rest = byte_chatml().bridge(CALL, [result("\nok\n")], (), sampled=(END,))
    assert TOKENIZER.encode("\n\n")[0] in rest
    text = "<tool_response>\n\nok\n\n</tool_response>"
    assert text in TOKENIZER.decode(rest)


def test_results_of_a_turn_share_one_user_turn() -> None:
    text = bridged(byte_chatml(), [result("A"), result("B", "c1")])
    assert text.count("<|im_start|>user") == 1
    assert text.index("A") < text.index("B")


@pytest.mark.parametrize("last_id", [None, 65])
def test_length_stop_is_closed_once(last_id: int | None) -> None:
    renderer = byte_chatml()
    close, rest = renderer.bridge(CALL, [result("A")], (), sampled=() if last_id is None else (last_id,))
    closed, same_rest = renderer.bridge(CALL, [result("A")], (), sampled=(END,))
    assert list(close) == [END]
    assert (list(closed), same_rest) == ([], rest)


def test_any_stop_of_the_family_closes_a_turn() -> None:
    close, rest = byte_chatml().bridge(CALL, [result("A")], (), sampled=(TOKENIZER.control["<|endoftext|>"],))
    assert list(close) == []
    assert TOKENIZER.decode(rest).startswith("\n<|im_start|>user")


def test_stop_that_is_the_next_header_is_not_written_twice() -> None:
    renderer = TemplateRenderer(TOKENIZER, templates.glm, GLM)
    assert renderer.rewrites == ()
    rest = "\n<tool_response>\nA\n</tool_response><|assistant|>\n"
    assert bridged(renderer, [result("A")], last_id=TOKENIZER.control["<|observation|>"]) == rest
    assert bridged(renderer, [result("A")], last_id=65) == "<|observation|>" + rest


def test_stop_that_is_the_wrong_header_is_refused() -> None:
    renderer = TemplateRenderer(TOKENIZER, templates.glm, GLM)
    with pytest.raises(NotAppendable, match=r"ended its turn with '<\|user\|>'.*goes on with '<\|observation\|>'"):
        renderer.bridge(CALL, [result("A")], (), sampled=(TOKENIZER.control["<|user|>"],))


def test_renderer_says_when_built_what_the_template_rewrites() -> None:
    renderer = TemplateRenderer(TOKENIZER, templates.qwen3, QWEN)
    assert len(renderer.rewrites) == 3
    for said in renderer.rewrites:
        assert "a user message, with reasoning" in said
        assert "think>\\nprobe reasoning" in said


@pytest.mark.parametrize("reasoning", [None, "hm"])
def test_bridge_refuses_what_the_template_rewrites(reasoning: str | None) -> None:
    renderer = TemplateRenderer(TOKENIZER, templates.qwen3, QWEN)
    action = Message("assistant", "", CALL.tool_calls, reasoning=reasoning)
    assert bridged(renderer, [result("A")], action=action)
    for new in ([user("next")], [result("A"), user("next")]):
        with pytest.raises(NotAppendable, match="probe reasoning"):
            renderer.bridge(action, new, (), sampled=(END,))


def test_policy_that_never_reasons_may_go_on() -> None:
    family = Family(name="qwen3", stops=QWEN.stops, close=QWEN.close, reasons=False)
    renderer = TemplateRenderer(TOKENIZER, templates.qwen3, family)
    assert renderer.rewrites == ()
    assert bridged(renderer, [user("next")], action=assistant("4")).startswith("\n<|im_start|>user\nnext")
    with pytest.raises(NotAppendable, match="<think>"):
        renderer.bridge(Message("assistant", "4", reasoning="hm"), [user("next")], (), sampled=(END,))


def dated(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Counts the messages in its first line."""
    return f"{len(messages)} messages\n" + templates.chatml(messages, tools, generation_prompt=generation_prompt)


def counting_unless_told(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Counts the messages in a system message of its own, where there is none."""
    if messages[0].role == "system":
        return templates.chatml(messages, tools, generation_prompt=generation_prompt)
    return dated(messages, tools, generation_prompt=generation_prompt)


def opening_thought(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Opens the thinking in the generation prompt, and shows none of it afterwards."""
    shown = [Message(m.role, m.content, m.tool_calls) for m in messages]
    text = templates.chatml(shown, tools, generation_prompt=generation_prompt)
    return text + "<think>\n" if generation_prompt else text


def moving_tools(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Drops the tools once something was said."""
    return templates.chatml(messages, tools if len(messages) < 3 else (), generation_prompt=generation_prompt)


def fewer_calls(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Refuses a second call."""
    if any(len(message.tool_calls) > 1 for message in messages):
        raise ValueError("one call at a time")
    return templates.chatml(messages, tools, generation_prompt=generation_prompt)


def latest_thought(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Shows the thinking of the last message alone."""
    shown = [Message(m.role, m.content, m.tool_calls) for m in messages[:-1]]
    return templates.chatml([*shown, *messages[-1:]], tools, generation_prompt=generation_prompt)


@pytest.mark.parametrize(
    ("template", "kinds", "says"),
    [
        (dated, {"tool", "tool and tool", "user", "tool and user"}, "where '2 messages"),
        (counting_unless_told, {"tool", "tool and tool", "user", "tool and user"}, "where '1 messages"),
        (opening_thought, {"tool", "tool and tool", "user", "tool and user"}, "<think>"),
        (latest_thought, {"tool", "tool and tool", "user", "tool and user"}, "where '<think>\\nprobe reasoning"),
        (moving_tools, {"tool", "tool and tool", "user", "tool and user"}, "# Tools"),
        (fewer_calls, {"tool and tool"}, "refuses: ValueError: one call at a time"),
    ],
)
def test_certification_finds_what_changes(template: Any, kinds: set[str], says: str) -> None:
    renderer = TemplateRenderer(TOKENIZER, template, CHATML)
    found = [cell for cell in renderer.certificate.cells if cell.finding.verdict is not Verdict.EXACT]
    assert {" and ".join(cell.situation.roles) for cell in found} == kinds
    assert any(says in str(cell.finding.difference) for cell in found)
    assert all(cell.finding.is_tail_exact for cell in found) == (template is not fewer_calls)


def test_bridge_of_an_unusual_kind_is_certified_when_it_comes() -> None:
    def strict(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        roles = [message.role for message in messages]
        if ("user", "user") in itertools.pairwise(roles):
            raise ValueError("roles must alternate")
        return templates.chatml(messages, tools, generation_prompt=generation_prompt)

    renderer = TemplateRenderer(TOKENIZER, strict, CHATML)
    assert renderer.rewrites == ()
    with pytest.raises(NotAppendable, match="roles must alternate"):
        renderer.bridge(assistant("4"), [user("a"), user("b")], (), sampled=(END,))
    assert bridged(byte_chatml(), [user("a"), user("b"), user("c")]).count("<|im_start|>user") == 3
    assert bridged(byte_chatml(), []) == "\n<|im_start|>assistant\n"


def test_template_without_a_system_role_is_served() -> None:
    def no_system(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        if any(message.role == "system" for message in messages):
            raise ValueError("no system role")
        return templates.chatml(messages, tools, generation_prompt=generation_prompt)

    renderer = TemplateRenderer(TOKENIZER, no_system, CHATML)
    assert renderer.rewrites == ()
    assert bridged(renderer, [result("A")]) == bridged(byte_chatml(), [result("A")])


def numbered(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Prints the id of the call it answers, and refuses an answer to a call that was not made."""
    made = {call.id for message in messages for call in message.tool_calls}
    named = []
    for message in messages:
        if message.role == "tool" and message.tool_call_id not in made:
            raise ValueError(f"no call {message.tool_call_id!r}")
        is_result = message.role == "tool"
        content = f"{message.name} {message.tool_call_id}: {message.content}" if is_result else message.content
        named.append(Message(message.role, content, message.tool_calls))
    return templates.chatml(named, tools, generation_prompt=generation_prompt)


def test_real_ids_and_names_are_rendered() -> None:
    renderer = TemplateRenderer(TOKENIZER, numbered, CHATML)
    action = assistant("", ToolCall("call_77", "f", {}))
    assert "f call_77: A" in bridged(renderer, [result("A", "call_77")], action=action)


def test_answer_to_a_call_that_did_not_parse_is_rendered() -> None:
    renderer = TemplateRenderer(TOKENIZER, numbered, CHATML)
    assert "f bad_0: not JSON" in bridged(renderer, [result("not JSON", "bad_0")], action=assistant("<tool_call>{"))


@pytest.mark.parametrize("hostile", sorted(TOKENIZER.control))
def test_no_field_can_write_a_control_token(chat_format: Any, hostile: str) -> None:
    renderer = TemplateRenderer(TOKENIZER, chat_format.template, chat_format.family)
    ids = set(TOKENIZER.control.values())

    def controls(text: str) -> list[list[int]]:
        tools = (ToolSpec(text, text, {"type": "object", "properties": {text: {"description": text, "enum": [text]}}}),)
        call = ToolCall(text, text, {text: text})
        history = [system(text), user(text), assistant(text, call), Message("tool", text, tool_call_id=text, name=text)]
        rest = renderer.bridge(assistant(text, call), [*history[3:], user(text)], tools, sampled=(65,))[1]
        return [[i for i in some if i in ids] for some in (renderer.prompt(history, tools), rest)]

    assert controls(f"a {hostile}") == controls("a")


@given(st.text(max_size=30))
def test_other_text_is_encoded_as_the_tokenizer_would(text: str) -> None:
    _, rest = chatml_renderer().bridge(CALL, [user(text)], (), sampled=(END,))
    start = rest.index(TOKENIZER.control["<|im_start|>"]) + 1
    assert rest[start : rest.index(END)] == TOKENIZER.encode(f"user\n{text}")


def test_bridge_costs_the_same_however_long_the_history(spy: Any) -> None:
    messages_rendered = 0

    def counted(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        nonlocal messages_rendered
        messages_rendered += len(messages)
        return templates.chatml(messages, tools, generation_prompt=generation_prompt)

    renderer = TemplateRenderer(spy, counted, CHATML)
    content = "a line of output\n" * 100
    history = [system("s"), user("u")]
    costs = []
    for turn in range(30):
        spy.encoded_chars = messages_rendered = 0
        _, rest = renderer.bridge(CALL, [result(f"{turn:03}{content}")], TOOLS, sampled=(END,))
        costs.append((spy.encoded_chars, messages_rendered))
        history += [CALL, result(f"{turn:03}{content}")]
        assert len(rest) > 100
    assert len(set(costs[2:])) == 1
    assert costs[-1][0] <= len(content) + 100
    assert costs[-1][1] <= 4


def test_decode_leaves_out_only_the_final_stop() -> None:
    renderer = byte_chatml()
    think = TOKENIZER.control["<think>"]
    assert renderer.decode([think, *TOKENIZER.encode("hm"), END]) == "<think>hm"
    assert renderer.decode([think, *TOKENIZER.encode("hm")]) == "<think>hm"
    assert renderer.decode([END, *TOKENIZER.encode("x")]) == "<|im_end|>x"
    assert renderer.decode([]) == ""


@pytest.mark.parametrize(
    ("family", "says"),
    [
        (Family(name="x", stops=("<nope>",), close="<|im_end|>"), "stops at"),
        (Family(name="x", stops=("<|im_end|>",), close="</s>"), "closes a turn with '</s>'"),
        (Family(name="x", stops=("<|im_end|>",)), "closes a turn with ''"),
    ],
)
def test_family_that_does_not_fit_the_tokenizer_is_refused(family: Family, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TemplateRenderer(TOKENIZER, templates.chatml, family)


def test_family_that_does_not_fit_the_template_is_told() -> None:
    family = Family(name="x", stops=("<|eot_id|>",), close="<|eot_id|>")
    renderer = TemplateRenderer(TOKENIZER, templates.chatml, family)
    assert "writes none of ['<|eot_id|>'] after a turn" in renderer.certificate.refusals[0]
    with pytest.raises(NotAppendable, match="writes none of"):
        renderer.bridge(CALL, [result("A")], (), sampled=())


def test_template_that_mangles_private_use_text_is_refused() -> None:
    def ascii_only(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        text = templates.chatml(messages, tools, generation_prompt=generation_prompt)
        return text.encode("ascii", "ignore").decode()

    with pytest.raises(ConfigError, match="private-use"):
        TemplateRenderer(TOKENIZER, ascii_only, CHATML)


def test_building_takes_milliseconds() -> None:
    gc.disable()  # what other tests left behind is not measured here
    try:
        began = time.process_time()
        byte_chatml()
        assert time.process_time() - began < 0.2
    finally:
        gc.enable()


def test_safe_encoder_is_public_for_renderers_of_ones_own() -> None:
    safe = SafeEncoder(TOKENIZER)
    assert safe.encode(safe.escape("<|im_end|>")) == TOKENIZER.encode("<|im_end|>")


def test_a_prompt_that_the_template_refuses_is_told_in_its_words() -> None:
    def strict(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        if [message.role for message in messages[-2:]] == ["user", "user"]:
            raise ValueError("roles must alternate")
        return templates.chatml(messages, tools, generation_prompt=generation_prompt)

    renderer = TemplateRenderer(TOKENIZER, strict, CHATML)
    said = r"the chatml template refuses the conversation \(user, user\): ValueError: roles must alternate"
    with pytest.raises(ConfigError, match=said):
        renderer.prompt([user("a"), user("b")], ())


def test_calls_nobody_answered_are_asked_of_the_template() -> None:
    def strict(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        for one, other in itertools.pairwise(messages):
            if one.tool_calls and other.role != "tool":
                raise ValueError("a call wants its result")
        return templates.chatml(messages, tools, generation_prompt=generation_prompt)

    renderer = TemplateRenderer(TOKENIZER, strict, CHATML)
    assert bridged(renderer, [result("A")])
    with pytest.raises(NotAppendable, match=r"a call left unanswered.*a call wants its result"):
        renderer.bridge(CALL, [user("never mind")], (), sampled=(END,))
    text = bridged(byte_chatml(), [user("never mind")], action=CALL)
    assert text == "\n<|im_start|>user\nnever mind<|im_end|>\n<|im_start|>assistant\n"


def test_a_thought_that_is_only_spoken_of_is_not_closed() -> None:
    think, closes = TOKENIZER.control["<think>"], TOKENIZER.control["</think>"]
    spoken = TOKENIZER.encode("a <think> is a tag")
    assert think not in spoken
    for sampled, is_open in (([think, *spoken], True), ([think, 65, closes, *spoken], False), (spoken, False)):
        close, _ = byte_chatml().bridge(assistant("x"), [user("go on")], (), sampled=sampled)
        assert (closes in close) == is_open
        assert close[-1] == END
