"""The properties hold on real vocabularies and the templates of their families, held against `transformers` itself."""

from collections.abc import Callable
from typing import Any

import pytest

from agentkit.protocols import ToolCall, assistant, user
from agentkit.testing.alignment import PROPERTIES, HFOracle, find_all, search, subject_of
from agentkit.tokens import TemplateRenderer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BY_NAME = {prop.name: prop for prop in PROPERTIES}


@pytest.mark.parametrize(
    ("name", "options", "unreached"),
    [
        ("qwen3-training", {}, set()),
        ("glm-4.5", {}, set()),
        ("llama3.2", {}, {"results_of_a_turn_go_in_together"}),
        ("mistral-small-3.2", {"with_system": False}, set()),
        ("qwen3.5", {"keep_history": True}, {"control_tokens_are_those_of_the_full_render"}),
    ],
)
def test_every_property_holds(
    tokenizer_of: Callable[[str], Any], name: str, options: dict[str, Any], unreached: set[str]
) -> None:
    subject = subject_of(tokenizer_of(name), **options)
    findings = list(find_all(subject, examples=6))
    assert [str(finding.counterexample) for finding in findings if finding.counterexample is not None] == []
    assert sum(finding.reached > 0 for finding in findings) >= len(PROPERTIES) - 4
    assert {finding.prop.name for finding in findings if finding.reached} & unreached == set()


def test_a_template_that_reads_the_clock_is_asked_on_one_day(tokenizer_of: Callable[[str], Any]) -> None:
    subject = subject_of(tokenizer_of("llama3.2"), today="2024-02-29")
    text = subject.oracle.render([user(".")], (), generation_prompt=True)
    assert "29 Feb 2024" in text
    assert search(subject, BY_NAME["a_prompt_is_what_the_template_writes"], examples=8).counterexample is None


def test_the_separator_of_a_real_template_is_missed(tokenizer_of: Callable[[str], Any], monkeypatch: Any) -> None:
    right = TemplateRenderer.bridge

    def broken(self: TemplateRenderer, *args: Any, **kwargs: Any) -> Any:
        close, rest = right(self, *args, **kwargs)
        return close, rest[1:]

    subject = subject_of(tokenizer_of("qwen2.5"), reasoning=False)
    monkeypatch.setattr(TemplateRenderer, "bridge", broken)
    found = search(subject, BY_NAME["the_chain_is_the_full_render"], examples=20).counterexample
    assert found is not None
    assert "198 '\\n'" in found.difference


def test_the_oracle_gives_arguments_as_the_template_can_write_them(tokenizer_of: Callable[[str], Any]) -> None:

    said = [user("a"), assistant("", ToolCall("abcdefghi", "ls", {"path": "\u00e9"}))]
    for name in ("qwen2.5", "deepseek-v3", "llama3.1", "kimi-k2"):
        text = HFOracle(tokenizer_of(name)).render(said, (), generation_prompt=False)
        assert '"path": "\u00e9"' in text, name
