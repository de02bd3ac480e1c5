"""`agentkit check-template`: what it prints of a template, what it advises, and its exit status."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentkit.cli import main

pytestmark = pytest.mark.slow  # transformers takes seconds to import

CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content is defined and (KEEPS or loop.last or messages[loop.index].role == 'tool') -%}
{{ '<think>' + m.reasoning_content + '</think>' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
KEEPS, DROPS = CHATML.replace("KEEPS", "true"), CHATML.replace("KEEPS", "keeps_reasoning | default(false)")
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Saves a byte-level tokenizer with a template, and says where."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def folder(template: str, control: Sequence[str] = (), name: str = "model") -> str:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE({text: number for number, text in enumerate(letters)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *control])
        backend.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>", "<tool_call>")])
        made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=template)
        path = tmp_path_factory.mktemp("models") / name
        made.save_pretrained(path)
        return str(path)

    return folder


@pytest.fixture(scope="module")
def keeps(save: Callable[..., str]) -> str:
    return save(KEEPS)


@pytest.fixture(scope="module")
def drops(save: Callable[..., str]) -> str:
    return save(DROPS)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["check-template", *arguments])
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


def test_a_template_that_keeps_what_it_wrote_passes(keeps: str, said: Said) -> None:
    status, out, _ = said(keeps, "--examples", "8")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"{keeps}: family qwen; the generation prompt leaves reasoning to the policy"
    table = [line.split() for line in lines if line.endswith("exact")]
    assert len(table) >= 8
    assert all(row[-2:] == ["exact", "exact"] for row in table)
    assert sum(line.startswith("  holds  ") for line in lines) == 22
    assert "what to do" not in out
    assert lines[-1].endswith("0 rewritten, 0 refused; no property fails")


def test_a_template_that_drops_reasoning_fails_and_says_what_to_do(drops: str, said: Said) -> None:
    status, out, _ = said(drops, "--examples", "5")
    assert status == 1
    row = next(line for line in out.splitlines() if line.startswith("after a user message, with reasoning"))
    assert row.split()[-2:] == ["rewritten", "rewritten"]
    assert "where '<think>probe reasoning</think>probe cont" in out
    advice = out.partition("what to do\n")[2]
    for way in ("--no-reasoning", "--template FILE", "--keep-history", "--allow-rewrites"):
        assert f"  {way}" in advice
    assert "no property fails" in out


@pytest.mark.parametrize(
    "way",
    [
        ["--no-reasoning"],
        ["--keep-history"],
        ["--allow-rewrites"],
        ["--kwarg", "keeps_reasoning=true"],
        ["--template", "TEMPLATE"],
    ],
    ids=lambda way: way[0],
)
def test_each_way_it_advises_works(drops: str, said: Said, tmp_path: Path, way: list[str]) -> None:
    (tmp_path / "own.jinja").write_text(KEEPS)
    words = [str(tmp_path / "own.jinja") if word == "TEMPLATE" else word for word in way]
    status, out, _ = said(drops, "--examples", "3", *words)
    assert status == 0, out


def test_a_value_that_reads_as_false_is_false(keeps: str, drops: str, said: Said) -> None:
    assert said(drops, "--examples", "0", "--kwarg", "keeps_reasoning=False")[0] == 1
    assert said(drops, "--examples", "0", "--kwarg", "keeps_reasoning=True")[0] == 0


def test_a_property_that_fails_is_shown_with_what_to_type(keeps: str, said: Said, monkeypatch: Any) -> None:
    from agentkit.tokens import TemplateRenderer

    right = TemplateRenderer.bridge

    def broken(self: TemplateRenderer, *args: Any, **kwargs: Any) -> Any:
        close, rest = right(self, *args, **kwargs)
        return close, rest[1:]

    monkeypatch.setattr(TemplateRenderer, "bridge", broken)
    status, out, _ = said(keeps, "--examples", "6", "--seed", "4")
    assert status == 1
    assert "  FAILS  separators_stand_once" in out
    assert "  FAILS  the_chain_is_the_full_render" in out
    assert "first difference at token" in out
    assert "The same again: seed=4" in out
    assert "properties fail" in out.splitlines()[-1]


def test_as_json_all_of_it_is_there(drops: str, said: Said) -> None:
    status, out, _ = said(drops, "--json", "--examples", "2")
    tree = json.loads(out)
    assert status == 1
    assert (tree["version"], tree["ok"], tree["family"], tree["is_exact"]) == (1, False, "qwen", False)
    assert {case["verdict"] for case in tree["cases"]} == {"exact", "rewritten"}
    assert all((case["difference"] is None) == (case["verdict"] == "exact") for case in tree["cases"])
    assert len(tree["properties"]) == 22
    assert all(each["counterexample"] is None and each["tried"] >= 1 for each in tree["properties"])
    assert any("--keep-history" in line for line in tree["advice"])


def test_the_same_command_says_the_same(keeps: str, said: Said) -> None:
    assert said(keeps, "--examples", "4")[1] == said(keeps, "--examples", "4")[1]


def test_the_tools_of_an_agent_are_shown(keeps: str, said: Said, tmp_path: Path) -> None:
    function = {"name": "ls", "description": "", "parameters": {"type": "object", "properties": {}}}
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": function}]))
    status, out, _ = said(keeps, "--examples", "3", "--tools", str(tmp_path / "tools.json"))
    assert status == 0, out


def test_tools_whose_results_are_refused_fail(save: Callable[..., str], said: Said, tmp_path: Path) -> None:
    refuses = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{% endfor %}" + KEEPS
    )
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "ls"}}]))
    folder = save(refuses)
    assert said(folder, "--examples", "0")[0] == 0, "what is refused beforehand harms no agent without tools"
    status, out, _ = said(folder, "--examples", "0", "--tools", str(tools))
    assert status == 1
    assert "no result of a tool can be appended" in out
    status, out, _ = said(folder, "--examples", "0", "--tools", str(tools), "--json")
    assert (status, json.loads(out)["ok"]) == (1, False)


def test_the_last_line_does_not_claim_what_was_not_tried(keeps: str, said: Said) -> None:
    assert said(keeps, "--examples", "0")[1].endswith("0 refused; no property was tried\n")


def test_what_a_template_says_never_reaches_the_terminal_as_it_is(save: Callable[..., str], said: Said) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    raises = "{% if messages | length > 4 %}{{ raise_exception('" + evil + "') }}{% endif %}" + KEEPS
    for arguments in ([], ["--json"]):
        _, out, err = said(save(raises, [f"<|{evil}|>"], "evil\x1b[2J"), "--examples", "2", *arguments)
        assert "owned" in out
        assert not {"\x1b", "\x07", "\u202e"} & set(out + err)
    status, out, err = said("/no/such\x1b[2J/folder")
    assert (status, out) == (2, "")
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/no/such/folder"], "there is no folder"),
        (["MODEL", "--template", "/no/such.jinja"], "cannot read --template"),
        (["MODEL", "--tools", "/no/such.json"], "cannot read --tools"),
        (["MODEL", "--tools", "NOT_JSON"], "is no JSON"),
        (["MODEL", "--tools", "EMPTY"], "at least one tool"),
        (["MODEL", "--kwarg", "enable_thinking"], "--kwarg must be NAME=VALUE, found 'enable_thinking'"),
        (["MODEL", "--kwarg", "no_such_thing=1"], "nothing to set in its chat template"),
        (["MODEL", "--kwarg", "reasoning=false"], "there is an option of its own"),
        (["MODEL", "--family", "nobody"], "family must be one of"),
        (["MODEL", "--examples", "-1"], "--examples must be at least 0"),
    ],
)
def test_what_does_not_fit_is_status_two(
    keeps: str, said: Said, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "not.json").write_text("nothing")
    (tmp_path / "empty.json").write_text("[]")
    files = {"MODEL": keeps, "NOT_JSON": str(tmp_path / "not.json"), "EMPTY": str(tmp_path / "empty.json")}
    status, out, err = said(*(files.get(word, word) for word in arguments))
    assert (status, out) == (2, "")
    assert err.startswith("agentkit: ")
    assert says in err


def test_without_hypothesis_the_certificate_alone_can_be_had(keeps: str, said: Said, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    status, out, err = said(keeps)
    assert (status, out) == (2, "")
    assert "pip install 'agentkit-rl[testing]'" in err
    status, out, _ = said(keeps, "--examples", "0")
    assert status == 0
    assert "properties" not in out.partition("cases exact")[0]
