"""What was made outside of this process and must be gone with it: written down before it is made.

A container, a cloud sandbox or a server outlives a killed host process. Each has an entry here from before it exists
until it is known to be gone: whose it is (`leaks.owner`), when its time is over, and what its back end needs to remove
it. `agentkit sandbox gc` and the next start read the entries of owners that have ended.
"""

import json
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

from attrs import field, frozen

from agentkit.errors import ConfigError
from agentkit.sandbox.leaks import is_dead, owner

LOG = logging.getLogger("agentkit.sandbox")
OVERDUE_S = 60.0
_NUMBERS = count()


@frozen(kw_only=True)
class Entry:
    """One thing to be removed one day. `data` says how to find it; never a secret."""

    type: str
    """The back end's short name, as in `agentkit.sandboxes`."""
    name: str
    owner: str
    deadline: float | None = None
    """Seconds since the epoch."""
    data: Mapping[str, str] = field(factory=dict)
    host: str = field(factory=lambda: here())
    """Where its owner is: machines may share a home directory, and containers of one machine too."""

    @property
    def is_due(self) -> bool:
        """Whether nobody will remove it any more: its owner has ended, or its time was over a minute ago.

        Of an owner elsewhere, who cannot be seen from here, only the time counts.
        """
        ended = self.host == here() and is_dead(self.owner)
        return ended or (self.deadline is not None and time.time() > self.deadline + OVERDUE_S)


Remove = Callable[[Entry], Awaitable[None]]


class Registry:
    """The entries below `directory`.

    Without one: `$AGENTKIT_STATE`, else agentkit/sandboxes in `$XDG_STATE_HOME` (~/.local/state).
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or _default_directory()

    def add(
        self, kind: str, name: str, *, lifetime_s: float | None = None, data: Mapping[str, str] | None = None
    ) -> Entry:
        """Write down what is about to be made. Safe against a crash at any moment; blocks for a file of some bytes.

        Raises:
            ConfigError: the directory cannot be written to.
        """
        deadline = None if lifetime_s is None else time.time() + lifetime_s
        entry = Entry(type=kind, name=name, owner=owner(), deadline=deadline, data=dict(data or {}))
        self._write(entry)
        return entry

    def update(self, entry: Entry, **data: str) -> Entry:
        """The entry with what is known of it only now, an id that the far side gave it say."""
        changed = Entry(
            type=entry.type,
            name=entry.name,
            owner=entry.owner,
            deadline=entry.deadline,
            data={**entry.data, **data},
            host=entry.host,
        )
        self._write(changed)
        return changed

    def forget(self, entry: Entry) -> None:
        """Strike out what is gone; safe to call twice.

        Where the directory can no longer be written to it says so in the log: the next collection finds nothing to
        remove, and whoever has just removed something is not kept from the rest.
        """
        try:
            self._path(entry).unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("%s %s is gone, but not struck out: %s", entry.type, entry.name, error)

    def entries(self) -> Iterator[Entry]:
        """What is written down now, whoever wrote it; files that are no entries are passed over."""
        for path in sorted(self.directory.glob("*.json")):
            try:
                read = json.loads(_read(path))
                entry = Entry(
                    type=str(read["type"]),
                    name=str(read["name"]),
                    owner=str(read["owner"]),
                    deadline=None if read["deadline"] is None else float(read["deadline"]),
                    data={str(key): str(value) for key, value in read["data"].items()},
                    host=str(read.get("host", here())),
                )
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
                continue
            if self._path(entry) == path:
                yield entry

    def due(self) -> list[Entry]:
        """The entries that nobody else will remove."""
        return [entry for entry in self.entries() if entry.is_due]

    def _path(self, entry: Entry) -> Path:
        plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in entry.name)
        return self.directory / f"{entry.type}-{plain}.json"

    def _write(self, entry: Entry) -> None:
        body = {
            "type": entry.type,
            "name": entry.name,
            "owner": entry.owner,
            "deadline": entry.deadline,
            "data": dict(entry.data),
            "host": entry.host,
        }
        path = self._path(entry)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}.{next(_NUMBERS)}.tmp")
            fresh.write_text(json.dumps(body))
            fresh.replace(path)
        except OSError as error:
            raise ConfigError(
                f"the registry of sandboxes {str(self.directory)!r} cannot be written to: {error}; "
                "set AGENTKIT_STATE to a directory that can"
            ) from error


def here() -> str:
    """The machine and the process namespace that owners' pids are of."""
    return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"


def _read(path: Path) -> bytes:
    """The content of a file of ours: what others have put there neither counts nor holds us up."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{path} is no file of ours")
        return file.read()


def _default_directory() -> Path:
    given = os.environ.get("AGENTKIT_STATE")
    if given:
        return Path(given)
    try:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    except RuntimeError:
        state = tempfile.gettempdir()
    return Path(state) / "agentkit" / "sandboxes"
