"""Loads specimens, and keeps each vocabulary on disk once it is built, which takes seconds."""

import copy
import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.vocabularies.catalogue import Specimen, specimen_named
from tests.vocabularies.containers import read_gguf
from tests.vocabularies.sources import SOURCES, located, storage
from tests.vocabularies.vocabularies import VOCABULARIES


def load(name: str) -> Any:
    """A transformers tokenizer of one's own with a specimen's vocabulary and chat template.

    Raises:
        KeyError: there is no such specimen.
        FileNotFoundError: `make venv` has not fetched its files.
    """
    specimen = specimen_named(name)
    tokenizer = copy.copy(_tokenizer(specimen.vocabulary))  # they share the vocabulary
    tokenizer.chat_template = template_text(specimen)
    return tokenizer


def template_text(specimen: Specimen) -> str:
    """The text of a specimen's chat template."""
    if specimen.template.endswith(".gguf"):
        return str(read_gguf(located(specimen.template))["tokenizer.chat_template"])
    return located(specimen.template).read_text() if specimen.template.endswith(".jinja") else specimen.template


@cache  # all of them take 1.1 GB
def _tokenizer(vocabulary: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(built(vocabulary)),
        clean_up_tokenization_spaces=False,
        **VOCABULARIES[vocabulary].tokens,
    )


def built(vocabulary: str) -> Path:
    """The tokenizer.json of a vocabulary, built on first use."""
    kept = storage() / "built" / f"{vocabulary}-{_key()}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = json.dumps(VOCABULARIES[vocabulary].build(), ensure_ascii=False)
        # others may be building it as well: whoever comes last replaces a file by its equal
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, prefix=".", delete=False) as file:
            file.write(made)
        os.replace(file.name, kept)
    return kept


def prune() -> None:
    """Removes what was built by other code or from other files."""
    for kept in (storage() / "built").glob("*.json"):
        if not kept.stem.endswith(_key()):
            kept.unlink(missing_ok=True)


@cache
def _key() -> str:
    """Changes with the files that vocabularies are read from and with the code that builds them."""
    code = [Path(__file__).with_name(f"{name}.py") for name in ("backends", "containers", "patterns", "vocabularies")]
    parts = [*(source.digest.encode() for source in SOURCES), *(path.read_bytes() for path in code)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]
