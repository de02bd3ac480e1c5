"""Tests that want verl itself: `make test-verl` runs them, in an environment of its own. Elsewhere none is collected.

They run on asyncio and in real time. What verl, Ray and torch warn of is theirs; warnings that come from agentkit are
errors here too.
"""

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LONGEST_S = 300

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["*"]

# Each may open a connection, and none of the tests needs what is at its other end.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", RAY_USAGE_STATS_ENABLED="0", WANDB_MODE="disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: several threads spend their time waiting for each other


def pytest_configure(config: pytest.Config) -> None:
    if not collect_ignore_glob:
        config.addinivalue_line("filterwarnings", "default")
        config.addinivalue_line("filterwarnings", "error:::agentkit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("verl")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONGEST_S))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
