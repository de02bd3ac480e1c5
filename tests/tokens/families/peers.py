"""Bridges of other libraries, run as they are, in one shape: what they append after a turn."""

import ast
import importlib.util
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentkit.protocols import Message
from tests.tokens.families.bench import Bench, Truth
from tests.tokens.families.matrix import Case
from tests.vocabularies.peers import verl_continuous_token

Peer = Callable[[Bench, Case, Sequence[Message], Truth], "list[int] | None"]
"""From a bench, a case, what opened the conversation and the truth to what a library appends; None if it declines."""

RENDERERS = {
    "qwen3": "Qwen3Renderer",
    "qwen3.5": "Qwen35Renderer",
    "qwen3.6": "Qwen36Renderer",
    "glm-4.5": "GLM45Renderer",
    "minimax-m2": "MiniMaxM2Renderer",
    "kimi-k2": "KimiK2Renderer",
    "llama3.1": "Llama3Renderer",
    "gemma4": "Gemma4Renderer",
    "gemma4-v5": "Gemma4Renderer",
    "deepseek-v3.1": "DeepSeekV3Renderer",
    "deepseek-v4": "DeepSeekV4Renderer",
}
VERL = {
    "qwen2.5": "qwen",
    "qwen3": "qwen",
    "qwen3-training": "qwen",
    "qwen3.5": "qwen35",
    "minimax-m2": "minimax",
    "glm-4.5": "glm47",
    "glm-4.7-flash": "glm47",
    "gemma4": "gemma4",
    "gemma4-v5": "gemma4",
    "gpt-oss": "gptoss",
    "deepseek-v3.1": "deepseek",
    "kimi-k2": "default",
    "llama3.1": "default",
    "mistral-small-3.2": "default",
    "zephyr": "default",
}
TRL = (
    "qwen2.5", "qwen3", "qwen3-training", "qwen3.5", "qwen3.6", "glm-4.5", "glm-4.7-flash", "minimax-m2", "kimi-k2",
    "llama3.1", "gemma4", "gemma4-v5", "deepseek-v3.1", "deepseek-v4", "gpt-oss", "mistral-small-3.2", "zephyr",
)  # fmt: skip


def of_renderers(bench: Bench, case: Case, opening: Sequence[Message], truth: Truth) -> list[int] | None:
    """`bridge_to_next_turn` of Prime Intellect's renderers, which are written by hand for each family."""
    del opening
    _, new = case.said(bench)
    made = _renderer(bench)
    turn = bench.sampled(truth)
    tools = [tool["function"] for tool in wire_tools(case)] or None
    rendered = made.bridge_to_next_turn(truth.prompt, turn, wire(new), tools=tools)
    if rendered is None:
        return None
    known = len(truth.prompt) + len(turn)
    assert rendered.token_ids[:known] == [*truth.prompt, *turn]
    return list(rendered.token_ids[known:])


def of_verl(bench: Bench, case: Case, opening: Sequence[Message], truth: Truth) -> list[int]:
    """`merge_context_tokens` of verl's continuous-token builders."""
    action, new = case.said(bench)
    builder = _builder(bench)
    before, turn = wire([*opening, action]), bench.sampled(truth)
    known = [*truth.prompt, *turn]
    merged = builder.merge_context_tokens(before, [*before, *wire(new)], known, tools=wire_tools(case) or None)
    # verl takes GLM's stop off the sampled turn and appends it again: what stands there in the end is compared
    assert merged.token_ids[: len(known)] == known
    return list(merged.token_ids[len(known) :])


def of_trl(bench: Bench, case: Case, opening: Sequence[Message], truth: Truth) -> list[int]:
    """`_get_tool_suffix_ids` of TRL's GRPO trainer."""
    del opening, truth
    _, new = case.said(bench)

    class Trainer:
        _is_vlm = False
        chat_template = None
        chat_template_kwargs = dict(bench.specimen.kwargs)
        processing_class = _tokenizer = bench.hf

    return list(_trl_suffix()(Trainer(), wire(new)))


@cache
def _renderer(bench: Bench) -> Any:
    import renderers

    return getattr(renderers, RENDERERS[bench.name])(bench.hf)


@cache
def _builder(bench: Bench) -> Any:
    return verl_continuous_token().create_continuous_token_builder(bench.hf, model_family=VERL[bench.name])


@cache
def _trl_suffix() -> Callable[..., Any]:
    """That one method, by its source: the module around it wants torch."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "trainer" / "grpo_trainer.py").read_text()
    found = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "_get_tool_suffix_ids"
    )
    text = ast.get_source_segment(source, found, padded=True)
    assert text is not None
    space: dict[str, Any] = {}
    exec(textwrap.dedent(text), space)  # TRL's own code is what is compared with
    return space["_get_tool_suffix_ids"]


def wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in OpenAI form."""
    made = []
    for message in messages:
        said: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            said["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in message.tool_calls
            ]
        if message.role == "tool":
            said |= {"tool_call_id": message.tool_call_id, "name": message.name}
        if message.reasoning is not None:
            said["reasoning_content"] = message.reasoning
        made.append(said)
    return made


def wire_tools(case: Case) -> list[dict[str, Any]]:
    """The tools of a case in OpenAI form."""
    return [
        {
            "type": "function",
            "function": {"name": each.name, "description": each.description, "parameters": dict(each.parameters)},
        }
        for each in case.tools
    ]
