"""What the pages on tokens show is true: the programs, what they print, and the table of models."""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agentkit.cli.main import main
from agentkit.errors import ConfigError, NotAppendable
from agentkit.protocols import Message, ToolCall, ToolSpec
from agentkit.tokens import FAMILIES, Reasoning, Situation, TemplateRenderer
from tests.vocabularies import REJECTED, SPECIMENS, Specimen
from tests.vocabularies.sources import located

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "examples" / "tokens"
OUTPUT = ROOT / "examples" / "output"
Roles = tuple[str, ...]
FAMILIES_PAGE = (ROOT / "docs" / "families.md").read_text()
HEADING = "| model | vocabulary, template | family | exact / rewritten / refused | tools | setting | refused then |"
LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"x": {"type": "string"}}})
Load = Callable[[str], Any]

pytest.importorskip("transformers")


def program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tokens_{name}", PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(name: str) -> list[str]:
    return (OUTPUT / f"{name}.txt").read_text().splitlines()


def named(tokenizer: Any, name: str) -> Any:
    tokenizer.name_or_path = name
    return tokenizer


@pytest.mark.slow
async def test_what_each_choice_makes_of_a_template_that_rewrites(
    tokenizer_of: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    template = str(located("trl/qwen3_training.jinja"))
    await program("choices").main(named(tokenizer_of("qwen3"), "Qwen/Qwen3-8B"), template)
    printed = capsys.readouterr().out.splitlines()
    refusal, choices = said("tokens_refusal"), said("tokens_choices")
    assert printed[: len(refusal)] == refusal
    assert printed[len(refusal) + 1 :] == choices
    trained = [line for line in choices if re.match(r"  \d sampled +1 ", line)]
    assert len(trained) == 9, "two turns of each choice, and one that had nothing after it"


@pytest.mark.slow
def test_what_is_appended_between_two_turns(tokenizer_of: Load, capsys: pytest.CaptureFixture[str]) -> None:
    program("bridge").main(tokenizer_of("qwen3"))
    assert all(", with reasoning" in case for case in capsys.readouterr().out.splitlines())


@pytest.mark.slow
def test_the_report_that_is_shown(
    tokenizer_of: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer_of("qwen3").save_pretrained("models/qwen3")
    capsys.readouterr()
    assert main(["check-template", "models/qwen3", "--examples", "0"]) == 1
    assert capsys.readouterr().out.splitlines() == said("check_template")


@pytest.mark.slow
def test_dates_single_calls_and_system_messages(tokenizer_of: Load, capsys: pytest.CaptureFixture[str]) -> None:
    program("settings").main(tokenizer_of("llama3.2"), tokenizer_of("mistral-nemo-spm"))
    assert "built with_system=False" in capsys.readouterr().out


def test_the_page_has_every_family() -> None:
    told = dict(re.findall(r"^- `([\w-]+)`: (.*(?:\n  .*)*)", FAMILIES_PAGE, re.MULTILINE))
    assert list(told) == [family.name for family in FAMILIES]
    for family in FAMILIES:
        shown = set(re.findall(r"`([^`]+)`", told[family.name]))
        thought = {family.thought.opens, family.thought.closes} if family.thought else set()
        expected = {*family.stops, *thought, *((family.close,) if family.close else ())}
        assert shown == expected, family.name


def test_the_page_has_every_specimen() -> None:
    assert [line[0].strip("`") for line in table()] == [specimen.name for specimen in SPECIMENS]
    for specimen in REJECTED:
        assert f"`{specimen.name}`" in FAMILIES_PAGE


@pytest.mark.slow
@pytest.mark.parametrize("row", range(len(SPECIMENS)), ids=[specimen.name for specimen in SPECIMENS])
def test_the_table_of_models_is_what_certification_finds(row: int, tokenizer_of: Load) -> None:
    """On failure the difference shows the line as it should be."""
    from agentkit_hf import certify, hf_renderer

    specimen, told = SPECIMENS[row], table()[row]
    tokenizer = tokenizer_of(specimen.name)
    options: dict[str, Any] = dict(specimen.kwargs)
    setting: dict[str, Any] = {}
    for name, value in re.findall(r"`(\w+)=(True|False)`", told[5]):
        setting[name] = value == "True"
    renderer = hf_renderer(tokenizer, **setting, **options)
    is_same = set(setting) <= {"keep_history"}  # nothing that the certificate depends on; a renderer may take seconds
    certificate = renderer.certificate if is_same else certify(tokenizer, **options)
    counts = Counter(cell.finding.verdict.value for cell in certificate.cells)
    situations = list(dict.fromkeys(cell.situation for cell in renderer.certificate.cells))
    shows = does_show_tools(renderer)
    asked = [each for each in situations if each.tools == shows]
    refused: set[Roles] = {each.roles for each in asked if not can_append(renderer, each)}
    assert told == [
        f"`{specimen.name}`",
        f"{'real' if specimen.real_vocabulary else 'stand-in'}, {template_of(specimen)}",
        f"`{certificate.family}`",
        " / ".join(str(counts[verdict]) for verdict in ("exact", "rewritten", "refused")),
        "not shown" if not shows else "one a turn" if renderer.holds_one_call else "shown",
        told[5],
        what(refused),
    ]


def table() -> list[list[str]]:
    _, _, rest = FAMILIES_PAGE.partition(f"{HEADING}\n")
    assert rest, "the table, or its heading, is not on the page"
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def template_of(specimen: Specimen) -> str:
    if not specimen.template.endswith((".jinja", ".gguf")):
        return "ours"
    return {"trl": "TRL", "llama.cpp": "llama.cpp", "smollm2": "the model's"}[specimen.template.partition("/")[0]]


def what(refused: set[Roles]) -> str:
    if ("tool",) in refused:
        return "results, user messages" if ("user",) in refused else "results"
    words: dict[Roles, str] = {
        ("tool", "tool"): "two results",
        ("tool", "user"): "a user message after results",
        ("user",): "user messages",
    }
    return ", ".join(said for roles, said in words.items() if roles in refused) or "-"


def does_show_tools(renderer: TemplateRenderer) -> bool:
    try:
        return LOOK.name in renderer.tokenizer.decode(renderer.prompt([Message("user", "?")], [LOOK]))
    except ConfigError as error:
        if "does not show tools" in str(error):
            return False
        raise


def result(call_id: str) -> Message:
    return Message("tool", "ok", tool_call_id=call_id, name="look")


def can_append(renderer: TemplateRenderer, situation: Situation) -> bool:
    """Whether a bridge is made, to a turn that was cut: then no stop token of the policy's can be the wrong one."""
    number = count()
    calls = [ToolCall(f"call0000{i}", "look", {"x": "y"}) for i in range(situation.roles.count("tool"))]
    reasoning = {Reasoning.NONE: None, Reasoning.EMPTY: "", Reasoning.SOME: "since"}[situation.reasoning]
    action = Message("assistant", "" if calls and not situation.talks else "so", tuple(calls), reasoning=reasoning)
    new = [result(calls[next(number)].id) if role == "tool" else Message(role, "on") for role in situation.roles]
    try:
        renderer.bridge(action, new, (LOOK,) if situation.tools else (), sampled=())
    except NotAppendable:
        return False
    return True
