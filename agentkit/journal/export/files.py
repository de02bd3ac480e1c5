"""A file that appears whole or not at all, and never takes another's place by accident."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from agentkit.errors import ConfigError


@contextmanager
def appearing(out: "str | os.PathLike[str]", *, force: bool) -> Iterator[Path]:
    """A path beside `out` to write to; the file is renamed to `out` at the end, and removed where an exception ends it.

    Raises:
        ConfigError: `out` exists and `force` is not given, it is no regular file, or it cannot be written.
    """
    path = Path(out)
    check_free(path, force=force)
    beside = path.with_name(f".{path.name[:200]}.{token_hex(4)}.partial")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        check_free(path, force=force)  # somebody else may have been faster
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def check_free(path: Path, *, force: bool) -> None:
    """Check that `path` may be written.

    Raises:
        ConfigError: it exists and `force` is not given, it is no regular file, or its folder does not exist.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise ConfigError(f"cannot write {str(path)!r}: it is no regular file")
    if not force:
        raise ConfigError(f"{str(path)!r} exists: name another file, or replace it with --force (force=True)")
