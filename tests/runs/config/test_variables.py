"""`${NAME}`: what it becomes, what is missing, and what is secret."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit import ConfigError
from agentkit.runs.config.variables import Expanded, expand, hide_in, mask_written_secrets

ENVIRON = {"KEY": "sk-0123456789", "SHORT": "abc", "EMPTY": "", "DOLLAR": "a$$b${KEY}"}


def by_hand(text: str) -> str | None:
    """One character after another; None where something is wrong."""
    out, rest = "", text
    while rest:
        if rest.startswith("$$"):
            out, rest = out + "$", rest[2:]
        elif rest.startswith("${"):
            name, closed, after = rest[2:].partition("}")
            name, dash, default = name.partition(":-")
            if not closed or not name.isidentifier() or not name.isascii() or set(default) & set("${}"):
                return None
            value = ENVIRON.get(name)
            if value is None and not dash:
                return None
            out += value if value or (value is not None and not dash) else default
            rest = after
        else:
            out, rest = out + rest[0], rest[1:]
    return out


written = ["$", "$$", "${", "}", "{", "${KEY}", "${EMPTY}", "${EMPTY:-x}", "${NO:-x y}", "${NO}", "${NO:-}"]
written += ["${DOLLAR}", "${1}", "${KEY:-", ":-", "a", " ", "${SHORT}", "${KEY:-x}"]
pieces = st.lists(st.sampled_from(written), max_size=6).map("".join)


@given(pieces)
@example("$$${KEY}$")
@example("${NO:-${KEY}}")
def test_expansion_is_what_reading_by_hand_gives(text: str) -> None:
    expansion = expand({"a": text}, ENVIRON)
    expected = by_hand(text)
    if expected is None:
        assert expansion.problems
    else:
        assert not expansion.problems
        assert expansion.tree == {"a": expected}


def test_variables_are_replaced_in_every_value_and_in_no_key() -> None:
    tree = {"${KEY}": ["${SHORT}", {"b": "x${SHORT}y"}], "n": 3, "t": True, "z": None}
    expansion = expand(tree, ENVIRON)
    assert expansion.tree == {"${KEY}": ["abc", {"b": "xabcy"}], "n": 3, "t": True, "z": None}


def test_what_a_variable_holds_is_not_read_again() -> None:
    assert expand({"a": "${DOLLAR}"}, ENVIRON).tree == {"a": "a$$b${KEY}"}


def test_a_replaced_text_remembers_how_it_was_written() -> None:
    value = expand({"a": "x${KEY}"}, ENVIRON).tree["a"]
    assert isinstance(value, Expanded)
    assert value.written == "x${KEY}"


def test_all_missing_variables_are_named_in_one_error(project) -> None:
    text = 'name: "${ONE}"\nmodel: {use: scripted, script: ["${TWO}", "${"]}\ndataset: tasks.jsonl\n'
    with pytest.raises(ConfigError) as caught:
        project.load(text)
    told = str(caught.value)
    assert "name (line 1) needs the environment variable ONE, which is not set" in told
    assert "model.script[0] (line 2) needs the environment variable TWO" in told
    assert "model.script[1] (line 2) has a `${` that names no variable" in told


def test_a_number_from_a_variable_is_told_how_numbers_are_changed(project) -> None:
    text = (
        'model: {use: scripted, script: ["a"]}\n'
        'dataset: {path: tasks.jsonl, limit: "${LIMIT}"}\n'
        'agent: {budget: {max_turns: "${TURNS:-7}", tool_s: "${TOOL:-3}", count_waiting: "${WAIT:-no}"}}\n'
    )
    with pytest.raises(ConfigError) as caught:
        project.load(text, environ={"LIMIT": "5"})
    told = str(caught.value)
    hint = ": variables are text, --set takes numbers"
    assert f"dataset.limit (line 2) must be a whole number or null, found the text '${{LIMIT}}'{hint}" in told
    assert f"agent.budget.max_turns (line 3) must be a whole number, found the text '${{TURNS:-7}}'{hint}" in told
    assert f"agent.budget.tool_s (line 3) must be a number, found the text '${{TOOL:-3}}'{hint}" in told
    assert f"agent.budget.count_waiting (line 3) must be true or false, found the text '${{WAIT:-no}}'{hint}" in told


def test_secrets_are_values_of_variables_and_texts_under_telling_keys() -> None:
    tree = {
        "a": "${KEY}",
        "b": "${SHORT}",
        "headers": {"Authorization": "Bearer written"},
        "openai_api_key": "sk-written",
        "password": ["no-mapping"],
        "tokenizer": "Qwen/Qwen3-8B",
        "max_tokens": "lots-of-them",
        "api_key": "tiny",
        "default": "${NO:-not secret}",
    }
    secrets = expand(tree, ENVIRON).secrets
    assert dict(secrets) == {
        "sk-0123456789": "${KEY}",
        "Bearer written": "***",
        "sk-written": "***",
        "no-mapping": "***",
    }


def test_a_value_is_not_secret_because_it_was_left_to_its_default() -> None:
    assert not expand({"a": "${NO:-abcdefgh}"}, ENVIRON).secrets


def test_the_longest_secret_is_hidden_first_and_its_quoted_form_too() -> None:
    secrets = {"secret": "${A}", "secret-longer": "${B}", "with\nline": "${C}"}
    assert hide_in("a secret-longer b secret c", secrets) == "a ${B} b ${A} c"
    assert hide_in(repr("with\nline"), secrets) == "'${C}'"


def test_texts_under_telling_keys_are_masked_unless_they_are_variables() -> None:
    tree = {
        "api_key": "sk-x",
        "b": {"token": "${T}", "password": "${T:-hunter2}"},
        "c": [{"secret": "s"}],
        "d": "plain",
        "e": ["http://user:hunter2@host/v1", "http://user:${T}@host/v1"],
    }
    assert mask_written_secrets(tree) == {
        "api_key": "***", "b": {"token": "${T}", "password": "***"}, "c": [{"secret": "***"}], "d": "plain",
        "e": ["http://user:[redacted]@host/v1", "http://user:${T}@host/v1"],
    }  # fmt: skip


def test_no_text_about_a_configuration_holds_a_secret(project) -> None:
    text = """
model: {use: scripted, script: ["${KEY}"]}
agent: {env: {use: "PARTS:Shop", items: ["${KEY}"]}, params: {api_key: "${KEY}", who: "${KEY}", token: tk-written-down}}
dataset: tasks.jsonl
"""
    config = project.load(text, environ=ENVIRON)
    assert {"sk-0123456789", "tk-written-down"} <= config.secrets
    told = [repr(config), config.to_yaml(), config.to_yaml(defaults=True), repr(config._source)]
    assert not [each for each in told if "sk-0123" in each or "tk-written" in each]
    assert config.agent.params["api_key"] == "sk-0123456789"  # the model gets what it needs
    assert type(config.agent.params["api_key"]) is str
    assert type(config.agent.make_env().items[0]) is str


@pytest.mark.parametrize(
    "line",
    [
        'agent: {budget: {max_turns: "${KEY}"}}',
        'agent: {loop: "${KEY}"}',
        'agent: {outcomes: "${KEY}"}',
        'agent: {on_rewrite: "${KEY}"}',
        'agent: {"params": ["${KEY}"]}',
        'pool: "${KEY}"',
        'agent: {env: {use: "PARTS:Raises", key: "${KEY}"}}',
        'agent: {env: {use: "PARTS:Sized", size: {width: "${KEY}"}}}',
        'agent: {env: {use: "os:${KEY}x"}}',
        'overridable: ["${KEY}"]',
        'agent: {tools: [{use: "PARTS:Raises", key: "${KEY}"}]}',
    ],
)
def test_no_error_about_a_configuration_holds_a_secret(project, line: str) -> None:
    raises = project.module(
        "class Raises:\n"
        "    spec = None\n"
        "    def __init__(self, key: str):\n"
        "        raise ValueError(f'{key} is no key, nor is {key!r}')\n"
        "    async def start(self, task): ...\n"
        "    async def close(self): ...\n"
        "    async def call(self): ...\n"
    )
    text = f"model: {{use: scripted, script: [Hello.]}}\ndataset: tasks.jsonl\n{line}\n"
    text = text.replace("PARTS:Raises", f"{raises}:Raises")
    with pytest.raises((ConfigError, ValueError)) as caught:
        project.load(text, environ=ENVIRON).agent.make_env()  # an env is made later, by its own code
    if isinstance(caught.value, ConfigError):
        assert "sk-0123" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    else:
        assert "env" in line
