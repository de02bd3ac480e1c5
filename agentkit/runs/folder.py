"""What a run leaves on disk: one folder, made whole or not at all, and never used for a second run by accident.

config.yaml      the configuration as it was given: `${NAME}` is not expanded, so that no secret need be kept
run.json         what else a resume and a report need to know (`RunInfo`)
journal.sqlite   the trajectories
logs/            what was logged
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from secrets import token_hex

from attrs import evolve

from agentkit.errors import ConfigError
from agentkit.journal import journal_path
from agentkit.runs.info import RunInfo, decode_info, encode_info

_INFO, _CONFIG, _LOGS = "run.json", "config.yaml", "logs"


class RunFolder:
    """The folder of one run. `RunFolder.create` makes one; `RunFolder(path)` is one that exists."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: "str | os.PathLike[str]", info: RunInfo, *, config: str | None = None) -> "RunFolder":
        """A new folder with all that is known before the first rollout; `config` is the text of its configuration.

        It appears in one step, by a rename: nobody ever sees it half made. An empty folder that is there is filled,
        `run.json` last: it may be where a volume is mounted, or where somebody stands.

        Raises:
            ConfigError: something is there already, or it cannot be made.
        """
        folder = cls(path)
        folder.check_new()
        is_there = os.path.isdir(folder.path)
        beside = folder.path if is_there else folder.path.with_name(f".{token_hex(8)}.new")
        made: list[Path] = []
        try:
            if not is_there:
                beside.mkdir(parents=True)
                made.append(beside)
            (beside / _LOGS).mkdir()  # whoever comes second to an empty folder fails here
            made.append(beside / _LOGS)
            if config is not None:
                made.append(beside / _CONFIG)
                made[-1].write_text(config, encoding="utf-8")
            info = evolve(info, base=_portable(info.base, folder.path))
            made.append(beside / f".{token_hex(8)}.new")
            made[-1].write_text(encode_info(info), encoding="utf-8")
            made[-1].rename(beside / _INFO)
            if not is_there:
                beside.rename(folder.path)  # onto nothing or an empty folder; the kernel refuses anything else
        except (OSError, UnicodeEncodeError) as error:
            _remove(made)
            folder.check_new()  # another process was faster: it says so
            raise ConfigError(f"cannot make the run folder {str(path)!r}: {_words(error)}") from error
        return folder

    @classmethod
    def create_next(cls, parent: "str | os.PathLike[str]", info: RunInfo, *, config: str | None = None) -> "RunFolder":
        """A new folder `<name>-<n>` in `parent`, with the first number that is free.

        Raises:
            ConfigError: it cannot be made.
        """
        for number in count(1):
            path = Path(parent) / f"{_plain(info.name)}-{number}"
            if os.path.lexists(path):
                continue
            try:
                return cls.create(path, info, config=config)
            except ConfigError:
                if not os.path.lexists(path):
                    raise
        raise AssertionError  # count() never ends

    @property
    def exists(self) -> bool:
        """Whether there is a run here."""
        return os.path.isfile(self.path / _INFO)  # False for a name that no file can have

    @property
    def journal_path(self) -> Path:
        """The journal's file, which is made when the run starts."""
        return journal_path(self.path) if self.path.is_dir() else self.path / "journal.sqlite"

    @property
    def logs_path(self) -> Path:
        """The folder of the logs."""
        return self.path / _LOGS

    def check_new(self) -> None:
        """Check that nothing would be overwritten.

        Raises:
            ConfigError: the folder is a run already, holds other files, or is no folder.
        """
        path = str(self.path)
        try:
            str(self.path.absolute()).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"the path of a run must be UTF-8, found {path!r}: give another") from error
        if self.exists:
            raise ConfigError(f"{path!r} is a run already: go on with it by `agentkit resume {path}`, or name another")
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir() or self.path.is_symlink():
            raise ConfigError(f"a run needs a new or an empty folder, found something else at {path!r}")
        try:
            if any(self.path.iterdir()):
                raise ConfigError(f"a run needs a new or an empty folder, found files in {path!r}")
        except OSError as error:
            raise ConfigError(f"cannot look into {path!r}: {_words(error)}") from error

    def info(self) -> RunInfo:
        """What `run.json` says.

        Raises:
            ConfigError: there is no run here, or its `run.json` is damaged or of a newer version.
        """
        file = self.path / _INFO
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise ConfigError(f"{str(self.path)!r} is no run: it has no {_INFO}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {str(file)!r}: {error}") from error
        return decode_info(text, where=str(file))

    def base(self) -> Path | None:
        """The folder that relative paths of the configuration count from; it may have moved together with the run.

        Raises:
            ConfigError: as `info` does.
        """
        base = self.info().base
        return None if base is None else (self.path.absolute() / base).resolve()

    def write_info(self, info: RunInfo) -> None:
        """Replace `run.json` in one step. Who writes holds the lock of the journal.

        Raises:
            ConfigError: it cannot be written.
        """
        with self._replacing(self.path / _INFO) as file:
            file.write_text(encode_info(info), encoding="utf-8")

    def config(self) -> str | None:
        """The configuration as it was given; None for a run that was composed in Python.

        Raises:
            ConfigError: it cannot be read.
        """
        file = self.path / _CONFIG
        try:
            return file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {str(file)!r}: {error}") from error

    @property
    def config_path(self) -> Path:
        """Where the configuration is kept."""
        return self.path / _CONFIG

    @contextmanager
    def _replacing(self, file: Path) -> Iterator[Path]:
        beside = file.with_name(f".{file.name}.{token_hex(4)}.new")
        try:
            yield beside
            with beside.open("rb") as written:
                os.fsync(written.fileno())
            beside.replace(file)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise ConfigError(f"cannot write {str(file)!r}: {error.strerror or error}") from error


def _portable(base: str | None, path: Path) -> str | None:
    """`base` as seen from the run where that lies within it, so that both can be moved; else absolute."""
    if base is None:
        return None
    whole, run = Path(base).resolve(), path.resolve()
    return os.path.relpath(whole, run) if run.is_relative_to(whole) else str(whole)


def _plain(name: str) -> str:
    """`name` as part of a path: letters, digits, and `._-`; never hidden, never empty."""
    kept = "".join(character if character.isalnum() or character in "._-" else "-" for character in name)[:80]
    return kept.encode()[:80].decode(errors="ignore").lstrip(".-") or "run"


def _remove(made: list[Path]) -> None:
    for path in reversed(made):
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _words(error: OSError | UnicodeEncodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
