"""One clear error for what is not there: files, networks, packages, devices."""

import subprocess
import sys
from pathlib import Path

import pytest
from agentkit_hf import HFModel, hf_renderer
from agentkit_hf.loading import load_tokenizer

from agentkit.errors import ConfigError, MissingExtraError

ROOT = Path(__file__).parents[3]
HIDDEN = """
import sys
sys.path[:0] = {paths!r}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
import agentkit_hf
{code}
"""


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine without a network, with nothing in the cache."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "~/missing", "a/b/c/missing"])
def test_a_path_is_never_asked_of_the_hub(name: str):
    with pytest.raises(ConfigError, match="there is no folder"):
        load_tokenizer(name)


def test_a_missing_gguf_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"'.*m\.gguf': there is no such file"):
        load_tokenizer(str(tmp_path / "m.gguf"))
    with pytest.raises(ConfigError, match="there is no folder"):
        load_tokenizer(str(tmp_path / "none" / "m.gguf"))


def test_an_empty_name_is_refused():
    with pytest.raises(ConfigError, match="tokenizer must name"):
        load_tokenizer(" ")


def test_a_folder_without_a_tokenizer_is_one_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer(str(tmp_path))


@pytest.mark.usefixtures("offline")
def test_a_hub_name_offline_is_one_error_that_says_what_to_do():
    with pytest.raises(ConfigError) as caught:
        hf_renderer("nobody/nothing-of-that-name")
    said = str(caught.value)
    assert "could not be had from the hub" in said
    assert said.endswith("hf download nobody/nothing-of-that-name")
    assert "\n" not in said


def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(ConfigError, match=r"expected a fast tokenizer.*found int"):
        hf_renderer(5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "code", "said"),
    [
        ("transformers", "agentkit_hf.hf_renderer('x/y')", "pip install 'agentkit-rl[hf]'"),
        ("torch", "agentkit_hf.HFModel('x/y')", "pip install 'agentkit-rl[hf]' torch"),
    ],
)
def test_a_user_without_the_extra_sees_one_error(hidden: str, code: str, said: str):
    program = HIDDEN.format(paths=[str(ROOT), str(ROOT / "integrations/hf")], hidden=hidden, code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("agentkit.errors.")]
    assert error.startswith("agentkit.errors.MissingExtraError: ")
    assert said in error


def test_arguments_are_checked_before_anything_is_imported():
    for name in ("interleave", "prefill_tokens"):
        with pytest.raises(ConfigError, match=f"{name} must be >= 1, found 0"):
            HFModel("x/y", **{name: 0})
    with pytest.raises(ConfigError, match="kept_caches must be >= 0"):
        HFModel("x/y", kept_caches=-1)
    with pytest.raises(ConfigError, match="context_tokens must be >= 2"):
        HFModel("x/y", context_tokens=1)
    with pytest.raises(ConfigError, match="model must be a name or a causal language model"):
        HFModel(5)


def test_importing_the_package_imports_neither_torch_nor_transformers():
    program = "import sys, agentkit_hf; print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_extra_is_a_config_error():
    assert issubclass(MissingExtraError, ConfigError)
