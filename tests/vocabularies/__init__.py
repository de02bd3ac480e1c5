"""Real vocabularies and chat templates of model families, without a network: for tests and benchmarks.

    from tests.vocabularies import load
    tokenizer = load("qwen3")  # a transformers tokenizer with its chat template

`SPECIMENS` says what there is; `make venv` fetches the files, the first use of a vocabulary builds and keeps it.
"""

from tests.vocabularies.catalogue import REJECTED as REJECTED
from tests.vocabularies.catalogue import SPECIMENS as SPECIMENS
from tests.vocabularies.catalogue import Specimen as Specimen
from tests.vocabularies.catalogue import specimen_named as specimen_named
from tests.vocabularies.loading import load as load
