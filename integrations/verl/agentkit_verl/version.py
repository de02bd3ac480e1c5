"""Which verl this package is written against."""

from importlib.metadata import PackageNotFoundError, version

from agentkit.errors import ConfigError, MissingExtraError

SUPPORTED_VERL = "0.9.1"


def check_verl_version() -> str:
    """The version of the installed verl, read from its metadata: verl itself, which takes seconds, is not imported.

    Raises:
        MissingExtraError: verl is not installed.
        ConfigError: another version is installed; verl's agent loop changes between releases.
    """
    try:
        installed = version("verl")
    except PackageNotFoundError as error:
        raise MissingExtraError(
            "agentkit_verl needs 'verl', which is not installed: pip install 'agentkit-rl[verl]'"
        ) from error
    if installed != SUPPORTED_VERL:
        raise ConfigError(f"agentkit_verl is written against verl {SUPPORTED_VERL}, found verl {installed}")
    return installed
