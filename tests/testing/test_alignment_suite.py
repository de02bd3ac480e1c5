"""A line in a test file gives a test for each property, whose failures can be read."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from agentkit.errors import ConfigError
from agentkit.testing import alignment_suite
from agentkit.testing.alignment import PROPERTIES

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "check_template"
PLUGIN = "agentkit.testing.alignment.plugin"
PREAMBLE = """
from agentkit.testing import TemplateOracle, alignment_suite
from agentkit.tokens import CHATML, QWEN, ByteTokenizer, TemplateRenderer, templates
T = ByteTokenizer()
class Forgetful(TemplateRenderer):
    def bridge(self, action, new, tools, *, sampled):
        close, rest = super().bridge(action, new, tools, sampled=sampled)
        return close, rest[1:]
def refuses(messages, tools, *, generation_prompt):
    if any(message.role == "tool" for message in messages):
        raise ValueError("no tools here")
    return templates.chatml(messages, tools, generation_prompt=generation_prompt)
chatml, qwen3 = TemplateOracle(T, templates.chatml), TemplateOracle(T, templates.qwen3)
"""
CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
Pytest = Callable[..., "tuple[int, str]"]


@pytest.fixture
def run(tmp_path: Path) -> Pytest:
    """Runs pytest on a file in an empty folder."""

    def run_file(text: str, *arguments: str) -> tuple[int, str]:
        (tmp_path / "test_mine.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider"]
        environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*command, *arguments, "test_mine.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return done.returncode, done.stdout + done.stderr

    return run_file


def test_a_suite_has_a_test_for_each_property_and_loads_nothing_yet() -> None:
    def never() -> object:
        raise AssertionError("it was loaded")

    suite = alignment_suite(never)
    tests = {name.removeprefix("test_"): vars(suite)[name].__doc__ for name in vars(suite) if name.startswith("test_")}
    assert {prop.name: prop.says for prop in PROPERTIES}.items() <= tests.items()
    assert len(tests) == len(PROPERTIES) + 1 == 23
    assert all(doc and doc.endswith(".") for doc in tests.values()), "each says in a sentence what holds"


def test_a_suite_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a tokenizer, or both"):
        alignment_suite()


def test_the_plugin_is_found_by_pytest_and_may_be_named_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}, "under its own name -p finds it loaded"


@pytest.mark.slow
def test_a_right_renderer_passes(run: Pytest) -> None:
    suite = "TestIt = alignment_suite(renderer=TemplateRenderer(T, templates.chatml, CHATML), oracle=chatml)"
    status, out = run(PREAMBLE + suite, "--alignment-examples", "5")
    assert status == 0, out
    assert re.search(r"^23 passed", out, re.MULTILINE)


@pytest.mark.slow
def test_a_failure_is_short_and_says_all(run: Pytest) -> None:
    suite = "TestIt = alignment_suite(renderer=Forgetful(T, templates.chatml, CHATML), oracle=chatml)"
    status, out = run(PREAMBLE + suite, "-k", "separators", "--alignment-seed", "9", "--alignment-examples", "15")
    assert status == 1
    for part in ("separators_stand_once: ", "user       'said'", "first difference at token 0", "seed=9"):
        assert part in out
    assert "search.py" not in out, "how it was looked for is of no interest"
    assert "Falsifying" not in out
    assert len(out.splitlines()) < 45


@pytest.mark.slow
def test_a_template_that_rewrites_fails_unless_that_is_allowed(run: Pytest) -> None:
    made = "renderer=TemplateRenderer(T, templates.qwen3, QWEN{}), oracle=qwen3"
    suites = "\n".join(
        [
            f"TestPlain = alignment_suite({made.format('')})",
            f"TestAllowed = alignment_suite({made.format('')}, allow_rewrites=True)",
            f"TestKept = alignment_suite({made.format(', keep_history=True')})",
        ]
    )
    status, out = run(PREAMBLE + suites, "-k", "keeps_what_it_wrote or full_render", "--alignment-examples", "10")
    assert status == 1
    assert re.search(r"^1 failed, 8 passed|^1 failed, 7 passed, 1 skipped", out, re.MULTILINE), out
    assert "FAILED test_mine.py::TestPlain::test_the_template_keeps_what_it_wrote" in out
    assert "the template rewrites what is in a chain" in out
    assert "keep_history=True" in out


@pytest.mark.slow
def test_what_no_conversation_reaches_is_skipped_and_says_so(run: Pytest) -> None:
    suite = "TestIt = alignment_suite(renderer=TemplateRenderer(T, refuses, CHATML), oracle=TemplateOracle(T, refuses))"
    arguments = ["-k", "results_of_a_turn", "-rs", "--alignment-examples", "4"]
    status, out = run(PREAMBLE + suite, *arguments)
    assert status == 0, out
    assert "none of 4 conversations gets there" in out


@pytest.mark.slow
def test_what_the_suite_says_goes_before_the_command_line(run: Pytest) -> None:
    suite = "TestIt = alignment_suite(renderer=Forgetful(T, templates.chatml, CHATML), oracle=chatml, seed=3)"
    _, out = run(PREAMBLE + suite, "-k", "separators", "--alignment-seed", "9", "--alignment-examples", "15")
    assert "seed=3" in out


@pytest.mark.slow
def test_the_example_suite_passes_on_a_tokenizer_in_a_folder(run: Pytest, tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({text: number for number, text in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>")])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML)
    made.save_pretrained(tmp_path / "models" / "mine")
    status, out = run((EXAMPLES / "test_my_template.py").read_text(), "--alignment-examples", "4", "-W", "ignore")
    assert status == 0, out
    assert re.search(r"^23 passed", out, re.MULTILINE)


@pytest.mark.slow
def test_the_example_renderer_fails_as_the_page_says() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "own_renderer.py")]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == (EXAMPLES / "own_renderer.txt").read_text()


@pytest.mark.slow
def test_the_example_property_passes(run: Pytest) -> None:
    status, out = run((EXAMPLES / "tool_outputs.py").read_text())
    assert status == 0, out
    assert "1 passed" in out
