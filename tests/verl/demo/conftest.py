"""The files of examples/train, which name one another as files in one folder do, and a run of the command."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / "examples" / "train"
LONGEST_S = 280


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's modules can be imported, and are forgotten again."""
    monkeypatch.syspath_prepend(str(TRAIN))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(TRAIN)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where the command put what it made, warm-up and two small steps, and what it printed."""
    out = tmp_path_factory.mktemp("train")
    asked = ["--steps", "2", "--prompts", "4", "--rollouts", "4", "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, str(TRAIN / "train.py"), *asked], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, _ = process.communicate(timeout=LONGEST_S)
        except BaseException:
            process.send_signal(signal.SIGINT)  # it ends verl, too
            raise
    assert process.returncode == 0, printed
    return out, printed
