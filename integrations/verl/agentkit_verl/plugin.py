"""What verl loads: the entry point `agentkit` of its group `verl.plugins`, or VERL_USE_EXTERNAL_MODULES by this name.

verl loads its plugins at the end of `import verl`, in each of its processes, before the registries that we add to
exist; importing them would cost every process seconds, and those that only serve a model never look into them.
So this waits: once a process has imported a registry's module, what belongs there is registered, before anybody can
look anything up in it.

Nothing here raises. Where verl is another release than the one this is written against, that is said once in each
process that has a registry; and what cannot be registered there is named, with the reason, instead of breaking verl.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from agentkit.errors import ConfigError
from agentkit_verl.version import check_verl_version

_LOG = logging.getLogger(__name__)


def register_credit() -> None:
    """Adds the advantage estimators and policy losses to verl's."""
    importlib.import_module("agentkit_verl.credit.registered")


def register_trainers() -> None:
    """Adds the trainers to verl's."""
    importlib.import_module("agentkit_verl.trainer")


REGISTRIES: Final[Mapping[str, Callable[[], None]]] = {
    "verl.trainer.ppo.core_algos": register_credit,
    "verl.trainer.ppo.v1": register_trainers,
}
"""Modules of verl that hold a registry, and what is to be done once they are there."""


class AfterImport(MetaPathFinder):
    """Calls `then[name]()` once module `name` has been imported. Finds nothing itself."""

    def __init__(self, then: Mapping[str, Callable[[], None]]) -> None:
        self._then = dict(then)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, whose loader will tell us when it is done."""
        if fullname not in self._then:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._listen(spec)
                return spec
        return None

    def _listen(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if then := self._then.pop(spec.name, None):
                then()

        loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one object, made for this import


def install(registries: Mapping[str, Callable[[], None]] = REGISTRIES) -> None:
    """Registers where the registries are imported already, and waits for the others."""
    waiting: dict[str, Callable[[], None]] = {}
    for name, register in registries.items():
        if name in sys.modules:
            _attempt(register)
        else:
            waiting[name] = partial(_attempt, register)
    if waiting:
        sys.meta_path.insert(0, AfterImport(waiting))


def _attempt(register: Callable[[], None]) -> None:
    _say_another_version()
    try:
        register()
    except Exception as error:
        _LOG.warning("%s failed: verl will not know these names: %r", register.__name__, error)


@cache
def _say_another_version() -> None:
    try:
        check_verl_version()
    except ConfigError as error:
        _LOG.warning("%s: what agentkit registers there may not work", error)


install()  # verl imports what an entry point names and calls nothing of it
