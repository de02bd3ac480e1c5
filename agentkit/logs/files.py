"""One file for each rollout that says something: opened when it does, few open at a time, none kept open for long."""

import re
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TextIO

from agentkit.protocols import RolloutKey

_CLEAN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_UNCLEAN = re.compile(r"[^A-Za-z0-9._-]+")


def rollout_file(key: RolloutKey) -> str:
    """The name of the file of a rollout: that of its key where its task id is plain, else made safe, with a digest.

    Two keys never share a name, and no name leaves its folder.
    """
    stem = key.task_id
    if not _CLEAN.fullmatch(stem):
        digest = sha256(stem.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        stem = f"{_UNCLEAN.sub('_', stem)[:60].lstrip('._-')}~{digest}"
    return f"{stem}#{key.index}.{key.attempt}.log"


class RolloutFiles:
    """Appends to the files of rollouts in `folder`, at most `limit` of them open. Used by one thread."""

    def __init__(self, folder: Path, limit: int = 32) -> None:
        self._folder = folder
        self._limit = limit
        self._open: OrderedDict[RolloutKey, TextIO] = OrderedDict()

    def write(self, key: RolloutKey, text: str) -> None:
        """Append, opening the file if need be; the one used longest ago makes room."""
        file = self._open.pop(key, None)
        if file is None:
            while len(self._open) >= self._limit:
                _, oldest = self._open.popitem(last=False)
                _close(oldest)
            file = (self._folder / rollout_file(key)).open("a", encoding="utf-8", errors="backslashreplace")
        self._open[key] = file
        file.write(text)

    def flush(self) -> None:
        """Let readers see what was written."""
        for file in self._open.values():
            with suppress(OSError):
                file.flush()

    def close(self, key: RolloutKey) -> None:
        """The rollout has ended; should it say more, its file is opened again."""
        file = self._open.pop(key, None)
        if file is not None:
            _close(file)

    def close_all(self) -> None:
        """Hold no file open."""
        while self._open:
            _close(self._open.popitem()[1])


def _close(file: TextIO) -> None:
    with suppress(OSError):  # a full disk must not end the thread that logs
        file.close()
