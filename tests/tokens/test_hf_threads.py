"""Encoding is quicker where `tokenizers` starts no threads for it, and the same."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkit.tokens import HFTokenizer

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (
    "",
    "\n",
    "  two spaces, trailing \n\n",
    "def f(x):\n\treturn x ** 2\n" * 20,
    "Zürich e\u0301 naïve 日本語 👩‍👩‍👧 \u200d\ufffd",
    "<|im_end|></think>",
    "1234567890 0x1f\r\n",
)


@pytest.mark.parametrize("name", ["qwen3", "mistral-nemo-spm"])
def test_ids_are_the_same_with_and_without(
    monkeypatch: pytest.MonkeyPatch, tokenizer_of: Callable[[str], Any], name: str
) -> None:
    hf = tokenizer_of(name)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "False")
    quick = HFTokenizer(hf)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    plain = HFTokenizer(hf)
    assert [quick.encode(text) for text in TEXTS] == [plain.encode(text) for text in TEXTS]
    assert [quick.encode_start(text) for text in TEXTS] == [plain.encode_start(text) for text in TEXTS]


ALONE = """
import os
from tests.vocabularies import load
from agentkit.tokens import HFTokenizer
tokenizer = HFTokenizer(load("smollm2"))
before = len(os.listdir("/proc/self/task"))
tokenizer.encode("some text")
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("setting", [None, "true", "false"])
def test_no_threads_are_started(setting: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    environment |= {"TOKENIZERS_PARALLELISM": setting} if setting else {}
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"
