"""Parts of other libraries that ours is compared with, without what the rest of them needs."""

import importlib.util
import sys
from types import ModuleType

from tests.vocabularies.sources import located


def verl_continuous_token() -> ModuleType:
    """verl's module of continuous-token builders; the rest of verl, which wants torch and Ray, is not there."""
    name = "verl_utils_tokenizer"
    if name not in sys.modules:
        init = located("verl/__init__.py")
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{name}.continuous_token_wiring")
