"""Optional dependencies, imported where they are used, with an error that names the extra."""

from importlib import import_module
from types import ModuleType

from agentkit.errors import MissingExtraError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """The imported `module`, or one error that says which extra brings it.

    Raises:
        MissingExtraError: `module` (or something it needs) is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise MissingExtraError(
            f"{purpose} needs {missing!r}, which is not installed: pip install 'agentkit-rl[{extra}]'"
        ) from error
