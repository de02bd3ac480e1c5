"""Each case of the matrix, each specimen: token by token the template's own full render, or refused and declared.

`-s` prints the table, in the order of EXPECTED.
"""

from collections import Counter

import pytest

from agentkit.tokens import Certificate
from tests.tokens.families.bench import Bench, bench_of
from tests.tokens.families.matrix import Outcome, cases, outcome
from tests.vocabularies import SPECIMENS

# Of the cases, how many are: exact, withheld, rewritten, refused; and how many `keep_history` serves.
EXPECTED = {
    "qwen2.5": (32, 0, 0, 0, 32),
    "qwen3": (30, 2, 0, 0, 32),
    "qwen3-nothink": (0, 0, 32, 0, 32),
    "qwen3-2507": (32, 0, 0, 0, 32),
    "qwen3-training": (32, 0, 0, 0, 32),
    "qwen3-coder": (32, 0, 0, 0, 32),
    "qwq": (0, 0, 32, 0, 32),
    "qwen3.5": (30, 0, 2, 0, 32),
    "qwen3.5-nothink": (30, 0, 2, 0, 32),
    "qwen3.6": (30, 0, 2, 0, 32),
    "qwen3.6-preserve": (32, 0, 0, 0, 32),
    "r1-distill-qwen": (0, 0, 16, 0, 0),
    "r1-distill-llama": (0, 0, 16, 0, 0),
    "kimi-k2": (32, 0, 0, 0, 32),
    "minimax-m2": (30, 0, 2, 0, 32),
    "llama3": (16, 0, 0, 0, 16),
    "llama3.1": (28, 0, 0, 4, 28),
    "llama3.2": (28, 0, 0, 4, 28),
    "llama3.3": (28, 0, 0, 4, 28),
    "hermes3": (0, 16, 0, 16, 16),
    "smollm3": (16, 0, 0, 0, 16),
    "glm-4.5": (30, 2, 0, 0, 32),
    "glm-4.6": (30, 2, 0, 0, 32),
    "glm-4.7-flash": (30, 0, 2, 0, 32),
    "gpt-oss": (28, 0, 0, 4, 28),
    "deepseek-v3": (0, 0, 16, 0, 0),
    "deepseek-v3.1": (16, 0, 0, 0, 16),
    "deepseek-v3.2": (0, 0, 32, 0, 32),
    "deepseek-v4": (32, 0, 0, 0, 32),
    "mistral-nemo": (0, 0, 30, 2, 30),
    "mistral-nemo-spm": (0, 0, 30, 2, 30),
    "mistral-small-3.2": (30, 0, 0, 2, 30),
    "zephyr": (16, 0, 0, 0, 16),
    "gemma2": (0, 0, 0, 16, 0),
    "gemma3": (0, 0, 0, 16, 0),
    "gemma4": (0, 0, 32, 0, 32),
    "gemma4-v5": (30, 2, 0, 0, 32),
    "phi3.5": (0, 2, 0, 14, 0),
    "smollm2": (16, 0, 0, 0, 16),
}


def test_each_case_is_the_full_render_or_refused_and_declared(bench: Bench) -> None:
    outcomes = [outcome(bench, case) for case in cases(bench)]
    assert not [(each.case.name, each.wrong) for each in outcomes if each.wrong]
    counts = Counter(each.verdict for each in outcomes)
    found = (*(counts[each] for each in ("exact", "withheld", "rewritten", "refused")), sum(x.kept for x in outcomes))
    print(f"| {bench.name} | {len(outcomes)} | {' | '.join(map(str, found))} |")
    undeclared = [
        (each.case.name, each.why)
        for each in outcomes
        if each.verdict != "exact" and _is_certified(bench.renderer.certificate, each)
    ]
    assert not undeclared
    assert found == EXPECTED[bench.name]


def _is_certified(certificate: Certificate, each: Outcome) -> bool:
    """Whether the certificate has this kind of append as exact, with these tools, in all it says about it."""
    roles = (*("tool" for _ in each.case.contents), *("user" for _ in each.case.users))
    cells = [
        cell
        for cell in certificate.cells
        if cell.situation.roles == roles and cell.situation.tools == bool(each.case.tools)
    ]
    assert cells
    return all(cell.finding.is_exact for cell in cells)


@pytest.mark.parametrize("name", ["qwen3", pytest.param("glm-4.5", marks=pytest.mark.slow)])
def test_a_policy_that_writes_no_reasoning_is_served_in_full(name: str) -> None:
    """What is withheld from others, whose earlier turns may have reasoned, is exact where none has."""
    bench = bench_of(name)
    outcomes = [outcome(bench, case, bench.silent) for case in cases(bench)]
    assert {each.verdict for each in outcomes} == {"exact"}
    assert not [each.wrong for each in outcomes if each.wrong]


@pytest.mark.parametrize("name", ["mistral-nemo-spm", pytest.param("mistral-nemo", marks=pytest.mark.slow)])
def test_a_template_that_moves_the_system_message_is_exact_without_one(name: str) -> None:
    bench = bench_of(name)
    outcomes = [outcome(bench, case, bench.unsystemed) for case in cases(bench)]
    assert not [each.wrong for each in outcomes if each.wrong]
    counts = Counter(each.verdict for each in outcomes)
    assert counts == {"exact": 30, "refused": 2}


def test_every_specimen_is_expected() -> None:
    assert list(EXPECTED) == [specimen.name for specimen in SPECIMENS]
