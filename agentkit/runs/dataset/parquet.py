"""Rows of a Parquet file, a batch at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from agentkit.errors import ConfigError
from agentkit.extras import require

MAGIC = b"PAR1"
_BATCH_ROWS = 256


def rows_of(path: Path, *, shuffle: int | None) -> Iterator[tuple[int, dict[str, object]]]:
    """The rows with their numbers from 0: in their order, or in the one that the seed `shuffle` gives.

    Shuffling keeps the whole table in memory, as Arrow holds it.

    Raises:
        ConfigError: the file cannot be read.
        MissingExtraError: the extra `parquet` is not installed.
    """
    with _opened(path) as file:
        batches = _in_order(file) if shuffle is None else _shuffled(file, shuffle)
        while (batch := _next(batches, path)) is not None:
            numbers, rows = batch
            yield from zip(numbers, rows, strict=True)


def count_of(path: Path) -> int:
    """How many rows there are, from the file's footer.

    Raises:
        ConfigError: the file cannot be read.
        MissingExtraError: the extra `parquet` is not installed.
    """
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def _in_order(file: Any) -> Iterator[tuple[range, list[dict[str, object]]]]:
    first = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        rows = batch.to_pylist()
        yield range(first, first + len(rows)), rows
        first += len(rows)


def _shuffled(file: Any, seed: int) -> Iterator[tuple[list[int], list[dict[str, object]]]]:
    table = file.read()
    order = list(range(table.num_rows))
    Random(seed).shuffle(order)
    for first in range(0, len(order), _BATCH_ROWS):
        numbers = order[first : first + _BATCH_ROWS]
        yield numbers, table.take(numbers).to_pylist()


def _next(batches: Iterator[Any], path: Path) -> Any:
    arrow = _pyarrow()
    try:
        return next(batches, None)
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"cannot read the dataset {str(path)!r}: {str(error)[:200]}") from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    arrow = _pyarrow()
    parquet = require("pyarrow.parquet", extra="parquet", purpose=f"reading {path.name}")
    try:
        file = parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"cannot read the dataset {str(path)!r}: {str(error)[:200]}") from error
    with file:
        names = file.schema_arrow.names
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else ()
        if twice:
            raise ConfigError(f"cannot read the dataset {str(path)!r}: it has the column {twice[0]!r:.80} twice")
        yield file


def _pyarrow() -> Any:
    return require("pyarrow", extra="parquet", purpose="reading a Parquet file")
