"""A file of tasks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from agentkit.protocols import Task


@frozen
class Survey:
    """What a look at every row of a dataset found: how many tasks a run of it has, and the digest of its content."""

    tasks: int
    sha256: str


@frozen
class Dataset:
    """The tasks in a JSONL file (also gzipped) or a Parquet file; iterating reads them as they are asked for.

    A row has the fields of a `Task`, of which only `messages` (or `prompt`: text or messages) is needed, and
    `overrides`, which becomes `metadata["overrides"]`: what differs for this task in the agent section of the run. An
    `id` may be a number; a row without one is named by its place and a digest of its content. `shuffle` is the seed of
    an order, `limit` how many tasks are taken of it. `extra="data"` puts fields that a task does not have into `data`.
    """

    path: Path = field(converter=Path)
    limit: int | None = field(default=None, kw_only=True)
    shuffle: int | None = field(default=None, kw_only=True)
    format: Literal["auto", "jsonl", "parquet"] = field(default="auto", kw_only=True)
    id_field: str = field(default="id", kw_only=True)
    prompt_field: str = field(default="prompt", kw_only=True)
    extra: Literal["error", "data"] = field(default="error", kw_only=True)

    def __iter__(self) -> Iterator[Task]:
        """The tasks in order.

        Raises:
            ConfigError: while iterating: a row is at fault; the message names file, row, field and what was found.
            MissingExtraError: a Parquet file needs the extra `parquet`.
        """
        raise NotImplementedError

    @property
    def known_length(self) -> int | None:
        """How many tasks there are, where that is known without reading everything; else None."""
        raise NotImplementedError

    def sha256(self) -> str:
        """The digest of the file's content, in hexadecimal.

        Raises:
            ConfigError: the file cannot be read.
        """
        raise NotImplementedError

    def survey(self) -> Survey:
        """A look at every row: all are read, none is kept.

        Raises:
            ConfigError: rows are at fault; the message lists the first of them.
        """
        raise NotImplementedError
