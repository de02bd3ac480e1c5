"""Renderers by tokenizer: family, template, and one readable error where a chain could not grow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentkit_hf import hf_renderer

from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols import ChatTemplate, Message, Renderer, ToolSpec, assistant, system, user
from agentkit.tokens import FAMILIES, GLM, LLAMA3, QWEN, ByteTokenizer, Family, find_family, templates

LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {}})
FORGETS = """\
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content and loop.last %}{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}
{{- m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
BLIND = """\
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def test_a_renderer_renders_what_the_tokenizer_does(tokenizer: Any):
    renderer = hf_renderer(tokenizer)
    assert isinstance(renderer, Renderer)
    assert renderer.rewrites == ()
    wire = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}]
    expected = tokenizer.apply_chat_template(wire, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert list(renderer.prompt([system("Be brief."), user("Hi\n")], ())) == expected


def test_a_bridge_goes_on_as_the_full_rendering_does(tokenizer: Any):
    renderer = hf_renderer(tokenizer)
    stop = tokenizer.eos_token_id
    said = [*tokenizer.encode("\nso", add_special_tokens=False), stop]
    close, rest = renderer.bridge(assistant("\nso"), [user("and?")], (), sampled=(stop,))
    wire = [{"role": r, "content": c} for r, c in (("user", "Hi"), ("assistant", "\nso"), ("user", "and?"))]
    full = tokenizer.apply_chat_template(wire, add_generation_prompt=True, tokenize=True, return_dict=False)
    prompt = list(renderer.prompt([user("Hi")], ()))
    assert tokenizer.decode([*prompt, *said, *close, *rest]) == tokenizer.decode(full)
    assert list(close) == []
    assert full[-len(rest) :] == list(rest)


def test_a_tokenizer_is_loaded_from_a_folder(tokenizer: Any, tmp_path: Path):
    tokenizer.save_pretrained(tmp_path)
    loaded = hf_renderer(str(tmp_path)).prompt([user("Hi")], (LOOK,))
    assert list(loaded) == list(hf_renderer(tokenizer).prompt([user("Hi")], (LOOK,)))


@pytest.mark.parametrize(
    ("template", "family"),
    [
        (templates.chatml, QWEN),
        (templates.qwen3, QWEN),
        (templates.llama3, LLAMA3),
        (templates.glm, GLM),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_the_family_is_found_by_how_a_turn_ends(template: ChatTemplate, family: Family):
    assert find_family(ByteTokenizer(), template) == family


def test_a_family_may_be_named(tokenizer: Any):
    assert hf_renderer(tokenizer, family="qwen").family == QWEN
    own = Family(name="own", stops=("<|im_end|>",), close="<|im_end|>")
    assert hf_renderer(tokenizer, family=own).family == own
    with pytest.raises(ConfigError, match=r"family must be one of 'auto', .*'qwen', .*'glm'.*found 'mystral'"):
        hf_renderer(tokenizer, family="mystral")
    with pytest.raises(ConfigError, match="none of which the tokenizer knows"):
        hf_renderer(tokenizer, family="llama3")


def test_an_unknown_ending_makes_a_family_of_its_own(train_tokenizer: Callable[..., Any]):
    template = BLIND.replace("<|im_end|>", "<over>")
    tokenizer = train_tokenizer(template, ("<|endoftext|>", "<|im_start|>", "<over>"))
    assert hf_renderer(tokenizer).family == Family(name="default", stops=("<over>",), close="<over>")
    assert hf_renderer(tokenizer).certificate.is_exact


def test_an_unknown_ending_that_opens_the_next_turn_is_a_header(train_tokenizer: Callable[..., Any]):
    template = (
        "{%- for m in messages %}{{- '<at ' + m.role + '>' + m.content }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<at assistant>' }}{%- endif %}"
    )
    tokenizer = train_tokenizer(template, ("<|endoftext|>", "<at user>", "<at assistant>", "<at system>", "<at tool>"))
    renderer = hf_renderer(tokenizer)
    assert renderer.family == Family(name="default", stops=("<at user>",), headers=("<at user>",))
    assert renderer.rewrites == ()
    refused = {cell.situation.roles for cell in renderer.certificate.cells if not cell.finding.is_exact}
    assert refused == {("tool",), ("tool", "tool"), ("tool", "user")}  # their header is none it was told of
    close, rest = renderer.bridge(
        assistant("so"), [user("and?")], (), sampled=(renderer.tokenizer.control["<at user>"],)
    )
    assert tokenizer.decode([*close, *rest]) == "and?<at assistant>"


def test_a_template_without_control_tokens_is_refused(tokenizer: Any):
    with pytest.raises(ConfigError, match="no control token after a turn"):
        hf_renderer(tokenizer, chat_template="{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}")


def test_a_template_that_refuses_is_quoted(tokenizer: Any):
    with pytest.raises(ConfigError, match=r"refuses a plain conversation.*not today"):
        hf_renderer(tokenizer, chat_template="{{ raise_exception('not today') }}")


def test_a_template_that_rewrites_is_refused_with_what_to_choose(tokenizer: Any):
    with pytest.raises(ConfigError) as caught:
        hf_renderer(tokenizer, chat_template=FORGETS)
    said = str(caught.value)
    assert "after a user message, with reasoning: where" in said
    assert "keep_history=True" in said
    assert "reasoning=False" in said
    assert "chat_template=" in said
    assert "on_rewrite='new_chain'" in said
    assert hf_renderer(tokenizer, chat_template=FORGETS, reasoning=False).rewrites == ()


def test_allowed_rewrites_are_refused_when_a_conversation_gets_there(tokenizer: Any):
    renderer = hf_renderer(tokenizer, chat_template=FORGETS, allow_rewrites=True)
    assert renderer.rewrites
    with pytest.raises(NotAppendable, match="probe reasoning"):
        renderer.bridge(Message("assistant", "a", reasoning="r"), [user("b")], (), sampled=())


def test_tools_that_a_template_does_not_show_are_refused(tokenizer: Any):
    renderer = hf_renderer(tokenizer, chat_template=BLIND)
    renderer.prompt([user("Hi")], ())
    with pytest.raises(ConfigError, match=r"does not show tools to the policy.*'look'"):
        renderer.prompt([user("Hi")], (LOOK,))
    assert "look" in tokenizer.decode(hf_renderer(tokenizer).prompt([user("Hi")], (LOOK,)))


def test_a_template_comes_as_text_as_a_file_or_by_name(
    train_tokenizer: Callable[..., Any], chatml: str, tmp_path: Path
):
    file = tmp_path / "chat.jinja"
    file.write_text(chatml.replace("Tools:", "From a file:"))
    tokenizer = train_tokenizer({"default": chatml, "other": chatml.replace("Tools:", "By name:")})

    def shown(chat_template: str) -> str:
        return str(tokenizer.decode(hf_renderer(tokenizer, chat_template=chat_template).prompt([user("Hi")], (LOOK,))))

    assert "From a file:" in shown(str(file))
    assert "By name:" in shown("other")
    assert "As text:" in shown(chatml.replace("Tools:", "As text:"))
    with pytest.raises(ConfigError, match=r"an existing file or one of \['default', 'other'\], found 'third'"):
        shown("third")


def test_no_template_is_said_so(train_tokenizer: Callable[..., Any]):
    with pytest.raises(ConfigError, match="has no chat template: pass chat_template"):
        hf_renderer(train_tokenizer(None))


def test_arguments_of_the_template_reach_it_and_misspelt_ones_do_not_pass(tokenizer: Any, chatml: str):
    template = chatml.replace("'\\nTools:'", "(start or 'Tools:')")
    told = hf_renderer(tokenizer, chat_template=template, start="You may:").prompt([user("Hi")], (LOOK,))
    assert "You may:" in tokenizer.decode(told)
    for name in ("strat", "messages", "tools"):
        with pytest.raises(ConfigError, match=f"hf_renderer got '{name}'"):
            hf_renderer(tokenizer, chat_template=template, **{name: "So,"})


def test_families_are_told_apart_by_their_endings():
    told = [(family.close or family.headers, family.marks) for family in FAMILIES if family.name != "chatml"]
    assert len(set(told)) == len(told)


def test_a_configuration_names_it(tokenizer: Any, tmp_path: Path):
    from agentkit.runs import load_config

    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "Hi"}\n')
    (tmp_path / "run.yaml").write_text(
        "name: hf\n"
        "model: {use: scripted, script: [done]}\n"
        f"agent: {{renderer: {{use: hf, tokenizer: {tmp_path / 'tokenizer'}, "
        "reasoning: false, keep_history: true, today: 2026-11-30}}\n"
        "dataset: {path: tasks.jsonl}\n"
    )
    renderer = load_config(tmp_path / "run.yaml").agent.renderer
    assert renderer is not None
    assert list(renderer.prompt([user("Hi")], ())) == list(hf_renderer(tokenizer).prompt([user("Hi")], ()))
