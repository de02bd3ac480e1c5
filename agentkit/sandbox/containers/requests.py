"""What is said between the host and the guest of a container: requests as bash text, reports as lines. Sans-IO.

A request file sets the scene for one program, in a process of the guest's own, and then becomes it:

    inside '/work' '/'                               the first directory that there is
    exec 0<"$dir/f-3" 1>"$dir/f-4" 2>&1              its descriptors
    begun                                            the host hears its pid; the guest's own descriptors are closed
    export A='b'
    become 'python3' '-c' '...'

The environment is not on a command line, not even of an `env` for a moment: others could read it there.

Reports are lines `pid N`, `error STAGE WHERE`, `signalled N`, `exit N`. They come from inside of the container, so
nothing in them is believed beyond its form.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field, frozen

from agentkit.sandbox.framing import encode, quote
from agentkit.sandbox.place import Program

GUEST = Path(__file__).with_name("guest.sh")
_READY = b"\0ready\n"
_LINE_BYTES = 8192
_READ_ONLY = (
    "UID",
    "EUID",
    "PPID",
    "BASHOPTS",
    "SHELLOPTS",
    "BASH_VERSINFO",
    "BASHPID",
    "GROUPS",
    "FUNCNAME",
    "DIRSTACK",
)


@frozen
class Redirection:
    """What a program sees as one descriptor: `name` in the shared directory, or in the guest's own where `kept`."""

    name: str
    reads: bool = False
    kept: bool = False

    @property
    def word(self) -> str:
        """As the right side of a bash redirection, with its direction."""
        if self.kept:
            return f'>"$keep/{self.name}"'
        return f'{"<" if self.reads else ">"}"$dir/{self.name}"'


def request(program: Program, redirections: Mapping[int, Redirection]) -> bytes:
    """The text that becomes `program`.

    Raises:
        SandboxError: it holds what no shell can take.
    """
    words = [f"{target}{at.word}" for target, at in sorted(redirections.items()) if not at.kept]
    words += [f"{target}<>/dev/null" for target in (0, 1, 2) if target not in redirections]
    argv = list(program.argv)
    odd = {name: value for name, value in program.env.items() if not _is_settable(name)}
    if odd:  # what bash cannot set
        argv = ["env", "--", *(f"{name}={value}" for name, value in odd.items()), *argv]
    exports = [
        b"export " + encode(name) + b"=" + quote(encode(value))
        for name, value in program.env.items()
        if name not in odd
    ]
    lines = [
        b"inside " + b" ".join(quote(encode(place)) for place in program.cwd),
        f"exec {' '.join(words)} || failed open".encode(),
        *(  # a full disk in there is no reason to run nothing
            f"exec {target}{at.word} || exec {target}>/dev/null".encode()
            for target, at in redirections.items()
            if at.kept
        ),
        b"begun",
        b"{ :",
        *exports,
        b"} 2>/dev/null",  # what bash thinks of a locale is none of the program's output
        b"become " + b" ".join(quote(encode(word)) for word in argv),
        b"exit 126",
    ]
    return b"\n".join(lines) + b"\n"


def _is_settable(name: str) -> bool:
    return name.isascii() and name.isidentifier() and name not in _READ_ONLY


@frozen
class Found:
    """What the guest found when it started: the image's environment, and a directory for files of its own."""

    env: Mapping[str, str]
    keep: str
    failure: str | None = None


def found(said: bytes) -> Found | None:
    """What the guest said first; None while there is more to come."""
    if not said.endswith(_READY):
        return None
    pairs, _, last = said.removesuffix(_READY).rpartition(b"\0\0") if b"\0\0" in said else (b"", b"", said[1:-7])
    kind, _, rest = last.decode("utf-8", "replace").partition(" ")
    env: dict[str, str] = {}
    for pair in pairs.split(b"\0"):
        name, equals, value = pair.decode("utf-8", "surrogateescape").partition("=")
        if name and equals:
            env[name] = value
    return Found(env, rest if kind == "keep" else "", rest if kind == "fail" else None)


@define
class Reports:
    """What has been reported of one program, however its bytes were split."""

    pid: int | None = None
    exit_code: int | None = None
    signalled: int | None = None
    error: tuple[str, str] | None = None
    """(stage, where)"""
    is_broken: bool = False
    """Whether there came what no guest says."""
    _buffer: bytearray = field(factory=bytearray)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._take(line)
        if len(self._buffer) > _LINE_BYTES:
            self._buffer.clear()
            self.is_broken = True

    def _take(self, line: bytes) -> None:
        number = re.fullmatch(rb"(pid|exit|signalled) (\d{1,9})", line)
        if number is not None:
            value = int(number[2])
            if number[1] == b"signalled":
                self.signalled = value
            elif number[1] == b"pid" and self.pid is None:
                self.pid = value
            elif number[1] == b"exit" and self.exit_code is None:
                self.exit_code = value & 0xFF
        elif line.startswith(b"error ") and self.error is None:
            stage, _, where = line[6:].decode("utf-8", "replace").partition(" ")
            self.error = (stage, where)
