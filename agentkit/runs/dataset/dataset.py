"""A file of tasks."""

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from agentkit.errors import ConfigError
from agentkit.protocols import Task
from agentkit.runs.dataset.jsonl import Line, lines_of, start_of
from agentkit.runs.dataset.parquet import MAGIC, count_of, rows_of
from agentkit.runs.dataset.rows import Fault, RowFormat, parse_json, task_of

_MOST_FAULTS = 20


@frozen
class _Row:
    """A row as it is read: where it is in the file, and how to make a task of it."""

    where: str
    make: Callable[[], Task]


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

    def __attrs_post_init__(self) -> None:
        if self.limit is not None and (not _is_whole(self.limit) or self.limit < 1):
            raise ConfigError(f"dataset.limit must be a whole number >= 1, found {self.limit!r}")
        if self.shuffle is not None and not _is_whole(self.shuffle):
            raise ConfigError(f"dataset.shuffle must be a seed, which is a whole number, found {self.shuffle!r}")
        for name, choices in (("format", ("auto", "jsonl", "parquet")), ("extra", ("error", "data"))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"dataset.{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}")
        if self.id_field == self.prompt_field:
            raise ConfigError(f"dataset.id_field must differ from prompt_field, found {self.id_field!r} for both")

    def __iter__(self) -> Iterator[Task]:
        """The tasks in order.

        Raises:
            ConfigError: while iterating: a row is at fault; the message names file, row, field and what was found.
            MissingExtraError: a Parquet file needs the extra `parquet`.
        """
        seen: dict[str, str] = {}
        for row in self._rows():
            yield self._task(row, seen)

    @property
    def known_length(self) -> int | None:
        """How many tasks there are, where that is known without reading everything; else None."""
        if self._format() == "jsonl":
            return None
        count = count_of(self.path)
        return count if self.limit is None else min(count, self.limit)

    def sha256(self) -> str:
        """The digest of the file's content, in hexadecimal.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                return file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(f"cannot read the dataset {str(self.path)!r}: {error.strerror or error}") from error

    def survey(self, check: Callable[[Task], str | None] = lambda _: None) -> Survey:
        """A look at every row that a run would take: all are read, none is kept. `check` says what it finds wrong.

        Raises:
            ConfigError: rows are at fault, or there are none; the message lists the first of them.
        """
        seen: dict[str, str] = {}
        faults: list[str] = []
        for row in self._rows():
            try:
                fault = check(self._task(row, seen))
                if fault is not None:
                    faults.append(f"{row.where}: {fault}")
            except ConfigError as error:
                faults.append(str(error))
            if len(faults) == _MOST_FAULTS:
                faults.append("and perhaps more: the rest was not looked at")
                break
        if faults:
            raise ConfigError("\n  ".join(faults) if len(faults) == 1 else "\n  ".join(["rows are at fault:", *faults]))
        if not seen:
            raise ConfigError(f"{self.path}: there is no row in it")
        return Survey(len(seen), self.sha256())

    def _task(self, row: _Row, seen: dict[str, str]) -> Task:
        try:
            task = row.make()
        except Fault as error:
            raise ConfigError(f"{row.where}: {error}") from None
        except ConfigError as error:
            raise ConfigError(f"{row.where}: {str(error).removeprefix('task.')}") from None
        if task.id in seen:
            raise ConfigError(
                f"{row.where}: {self.id_field} {task.id!r} is that of {seen[task.id]} too: ids name groups"
            )
        seen[task.id] = row.where.rpartition(", ")[2]
        return task

    def _rows(self) -> Iterator[_Row]:
        form = RowFormat(self.id_field, self.prompt_field, self.extra)
        rows = self._lines(form) if self._format() == "jsonl" else self._records(form)
        for taken, row in enumerate(rows):
            if taken == self.limit:
                return
            yield row

    def _lines(self, form: RowFormat) -> Iterator[_Row]:
        for line in lines_of(self.path, shuffle=self.shuffle):
            yield _Row(f"{self.path}, line {line.number}", partial(_task_of_line, line, form))

    def _records(self, form: RowFormat) -> Iterator[_Row]:
        for number, record in rows_of(self.path, shuffle=self.shuffle):
            make = partial(task_of, record, number, form, columns=True)
            yield _Row(f"{self.path}, row {number + 1}", make)

    def _format(self) -> Literal["jsonl", "parquet"]:
        if self.path.exists() and not self.path.is_file():  # opening a pipe would wait for whoever writes into it
            raise ConfigError(f"cannot read the dataset {str(self.path)!r}: it is no regular file")
        if self.format == "auto":
            return "parquet" if start_of(self.path, len(MAGIC)) == MAGIC else "jsonl"
        return self.format


def _task_of_line(line: Line, form: RowFormat) -> Task:
    return task_of(parse_json(line.raw), line.row, form)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
