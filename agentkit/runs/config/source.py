"""What a `RunConfig` remembers of the file that it came from."""

from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen


@frozen
class Source:
    """The file of a configuration: its name, its tree as written (with changes), and what its agent section said.

    `agent` has its variables replaced, so it is never shown; `modules` are those that the file names.
    """

    where: str
    tree: Mapping[str, object] = field(repr=False)
    agent: Mapping[str, object] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    folder: Path | None
    modules: frozenset[str]
