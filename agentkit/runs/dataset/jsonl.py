"""Rows of a JSONL file, one line at a time."""

import gzip
import zlib
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import BinaryIO, cast

from attrs import frozen

from agentkit.errors import ConfigError

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is an error: it is no task, and a gzipped one could fill the memory."""

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"


@frozen
class Line:
    """A line that is not blank. `number` counts lines from 1, `row` only those that are not blank, from 0."""

    number: int
    row: int
    raw: bytes


def lines_of(path: Path, *, shuffle: int | None) -> Iterator[Line]:
    """The lines that are not blank: in their order, or in the one that the seed `shuffle` gives.

    Shuffling reads the file twice and keeps 16 bytes a line; of a gzipped file it keeps all lines.

    Raises:
        ConfigError: the file cannot be read, or has a line that is longer than any task.
    """
    if shuffle is None:
        yield from _in_order(path)
        return
    if _is_gzipped(path):
        lines = list(_in_order(path))
        Random(shuffle).shuffle(lines)
        yield from lines
        return
    yield from _shuffled(path, shuffle)


def _shuffled(path: Path, seed: int) -> Iterator[Line]:
    offsets, numbers = array("Q"), array("Q")
    for line, offset in _read(path):
        offsets.append(offset)
        numbers.append(line.number)
    order = list(range(len(offsets)))
    Random(seed).shuffle(order)
    with closing(_open(path)) as file:
        for row in order:
            file.seek(offsets[row])
            yield Line(numbers[row], row, file.readline(MAX_LINE_BYTES).removeprefix(_BOM))


def _in_order(path: Path) -> Iterator[Line]:
    for line, _ in _read(path):
        yield line


def _read(path: Path) -> Iterator[tuple[Line, int]]:
    """The lines that are not blank, with the place of each in the file."""
    row, number, offset = 0, 0, 0
    with closing(_open(path)) as file:
        while raw := _readline(file, path, number + 1):
            number += 1
            content = raw.removeprefix(_BOM) if number == 1 else raw
            if content.strip(b" \t\r\n"):
                yield Line(number, row, content), offset
                row += 1
            offset += len(raw)


def _readline(file: BinaryIO, path: Path, number: int) -> bytes:
    try:
        raw = file.readline(MAX_LINE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}, line {number}: cannot be read: {error}") from error
    if len(raw) > MAX_LINE_BYTES:
        raise ConfigError(f"{path}, line {number}: is longer than {MAX_LINE_BYTES:,} bytes: no row is that large")
    return raw


def _open(path: Path) -> BinaryIO:
    try:
        return cast("BinaryIO", gzip.open(path, "rb")) if _is_gzipped(path) else path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {str(path)!r}: {error.strerror or error}") from error


def _is_gzipped(path: Path) -> bool:
    return start_of(path, 2) == _GZIP


def start_of(path: Path, count: int) -> bytes:
    """The first bytes of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {str(path)!r}: {error.strerror or error}") from error
