"""Where a run's configuration came from, so that a later process can go on with it."""

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from attrs import frozen

from agentkit.errors import ConfigError
from agentkit.logs import MASK, redact

_VARIABLE = re.compile(r"\$\{\w+(?::-([^{}$]*))?\}")


@frozen(kw_only=True)
class Origin:
    """The text of a configuration file, unexpanded, its folder, and the `path=value` changes laid over it."""

    text: str
    base: str
    changes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: "str | os.PathLike[str]", changes: Iterable[str] = ()) -> "Origin":
        """The origin of a config that is about to be loaded from `path` with `changes`.

        Raises:
            ConfigError: the file cannot be read, or a change spells out a secret, which would be kept with the run.
        """
        changes = tuple(changes)
        check_no_secrets(changes)
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {str(file)!r}: {error}") from error
        return cls(text=text, base=str(file.absolute().parent), changes=changes)

    @property
    def sha256(self) -> str:
        """The digest of the text."""
        return sha256(self.text.encode()).hexdigest()


def check_no_secrets(changes: Iterable[str]) -> None:
    """Check that what is written beside the run holds no secret.

    Raises:
        ConfigError: a change does.
    """
    for change in changes:
        path, _, value = change.partition("=")
        written = f"{path}={_VARIABLE.sub(_default, value)}"
        if redact(written) != written:
            raise ConfigError(
                f"--set {path}=... spells out a secret, and changes are kept with the run: put it into an environment "
                f"variable and write --set '{path}=${{NAME}}'"
            )


def _default(variable: "re.Match[str]") -> str:
    """What is written out of a variable: its default, or nothing that could be a secret."""
    return variable[1] or MASK
