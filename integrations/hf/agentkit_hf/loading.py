"""Tokenizers and models by name: a folder, a GGUF file, or a name on the hub, and one clear error where there is none.

Names on the hub go through the cache of `transformers` and its own settings (HF_HOME, HF_HUB_OFFLINE, HF_TOKEN). Code
that comes with a model is never run: who needs it loads the model and hands it over.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from agentkit.errors import ConfigError, MissingExtraError
from agentkit.extras import require

_GGUF = ".gguf"
_LOWEST = (4, 56)  # caches that know their layers, and `dtype`


def load_tokenizer(name: str) -> Any:
    """The fast tokenizer in a folder, in a GGUF file, or of a model on the hub.

    Raises:
        MissingExtraError: `transformers`, or what it needs to read this, is not installed.
        ConfigError: there is no such tokenizer, or it cannot be read.
    """
    transformers = require("transformers", extra="hf", purpose="loading a tokenizer")
    return _load(transformers.AutoTokenizer, name, "tokenizer")


def load_processor(name: str) -> Any:
    """The processor in a folder or of a model on the hub.

    Raises:
        MissingExtraError: `transformers`, or what it needs to read this, is not installed.
        ConfigError: there is no such processor, or it cannot be read.
    """
    transformers = require("transformers", extra="hf", purpose="loading a processor")
    return _load(transformers.AutoProcessor, name, "processor")


def load_model(name: str, *, device: Any, dtype: Any) -> Any:
    """The causal language model in a folder, in a GGUF file, or on the hub, on a torch `device` and ready to sample.

    Blocks for as long as loading takes.

    Raises:
        MissingExtraError: `transformers`, or what it needs to read this, is not installed.
        ConfigError: there is no such model, or it cannot be read.
    """
    transformers = require("transformers", extra="hf", purpose="HFModel")
    return _load(transformers.AutoModelForCausalLM, name, "model", dtype=dtype).to(device).eval()


def import_torch() -> ModuleType:
    """`torch`; the extra does not bring it, since its build depends on the machine and tokenizers do without.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"HFModel needs {error.name or 'torch'!r}, which is not installed: pip install 'agentkit-rl[hf]' torch "
            "(torch in the build for your machine)"
        ) from error


def pick_device(torch: ModuleType, device: str) -> Any:
    """The torch device of that name; "auto" is a GPU where there is one.

    Raises:
        ConfigError: it is no device's name.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device must be 'auto' or one of torch's, such as 'cuda:0' or 'cpu', found {device!r}"
        ) from error


def pick_dtype(torch: ModuleType, dtype: str) -> Any:
    """The torch dtype of that name; "auto", which stands for that of the weights, stays "auto".

    Raises:
        ConfigError: it is no dtype's name.
    """
    kind = dtype if dtype == "auto" else getattr(torch, dtype, None)
    if kind != "auto" and not isinstance(kind, torch.dtype):
        raise ConfigError(f"dtype must be 'auto' or one of torch's, such as 'bfloat16' or 'float32', found {dtype!r}")
    return kind


def check_transformers(transformers: ModuleType) -> None:
    """Raises ConfigError where `transformers` is too old for `HFModel`."""
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < _LOWEST:
        raise ConfigError(
            f"HFModel needs transformers >= {'.'.join(map(str, _LOWEST))}, found {transformers.__version__}"
        )


def _load(auto: Any, name: str, what: str, **kwargs: Any) -> Any:
    if not name.strip():
        raise ConfigError(f"{what} must name a folder, a GGUF file or a model on the hub, found {name!r}")
    source = name
    if name.endswith(_GGUF):
        source, _, kwargs["gguf_file"] = name.rpartition("/")
        source = source or "."
    path = Path(source).expanduser()
    is_local = _is_path(source) or path.exists()
    if is_local and not path.is_dir():
        raise ConfigError(f"{what} {name!r}: there is no folder {str(path)!r}")
    if is_local and "gguf_file" in kwargs and not (path / kwargs["gguf_file"]).is_file():
        raise ConfigError(f"{what} {name!r}: there is no such file")
    try:
        return auto.from_pretrained(str(path) if is_local else source, trust_remote_code=False, **kwargs)
    except ImportError as error:
        raise MissingExtraError(
            f"loading {what} {name!r} needs a package that is missing: {_first_line(error)}"
        ) from error
    except Exception as error:  # transformers, the hub's client and the readers below raise what they like
        raise ConfigError(_said(what, name, is_local, error)) from error


def _said(what: str, name: str, is_local: bool, error: Exception) -> str:
    if is_local:
        return f"{what} {name!r} cannot be read: {_first_line(error)}"
    return (
        f"{what} {name!r} is no folder here, is not in the cache of transformers, and could not be had from the hub "
        f"({_first_line(error)}): give a folder, or fetch it where there is a network: hf download {name}"
    )


def _first_line(error: Exception) -> str:
    """Kind and first line; further lines repeat requests, which may hold what belongs in no log."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__


def _is_path(name: str) -> bool:
    """Whether it can only be a path: a name on the hub is `model` or `owner/model`."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1
