"""The specimens as benches: one of each kind is quick, all of them are slow."""

import pytest

from tests.tokens.families.bench import Bench, bench_of
from tests.vocabularies import SPECIMENS

QUICK = ("qwen3", "qwen3-training", "llama3.1", "glm-4.5", "deepseek-v3.1", "mistral-nemo-spm", "zephyr")
EACH = [
    pytest.param(each.name, marks=() if each.name in QUICK else pytest.mark.slow, id=each.name) for each in SPECIMENS
]


@pytest.fixture(scope="session", params=EACH)
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each specimen in turn."""
    return bench_of(request.param)
