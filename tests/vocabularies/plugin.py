"""Fixtures: `specimen` goes through all of them, `tokenizer_of` loads those that a test names."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.vocabularies import SPECIMENS, Specimen, load


@pytest.fixture(scope="session", params=SPECIMENS, ids=lambda each: each.name)
def specimen(request: pytest.FixtureRequest) -> Specimen:
    """Each specimen in turn; `load(specimen.name)` gives its tokenizer."""
    found: Specimen = request.param
    return found


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], Any]:
    """From the name of a specimen to a transformers tokenizer with its chat template."""
    return load
