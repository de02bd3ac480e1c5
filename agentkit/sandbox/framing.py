r"""How a command is put to a bash that reads its standard input, and how its status comes back. Sans-IO.

The command is evaluated as one quoted string in a group whose standard input is /dev/null and whose output is the
session's output pipe. Outside that group the shell's own output is /dev/null, so what bash traces or traps of *our*
lines is seen nowhere. Status, shell flags, DEBUG trap, jobs and directory come back on a descriptor that is closed
inside the group, marked with a random word of this command alone. Exported variables go to a file in memory that is
only read when a fresh shell must take over: they are most of what there is to say, and bash writes them line by line.

Tracing (`set -x`) and a DEBUG trap are lifted after each command and put back as the first line of the next one, inside
the evaluated text, so they see the caller's commands and none of ours. `exec >file` ends with the group.

A session is as honest as the commands run in it: one that means to can redefine the builtins used here. What must be
trusted, a grader's verdict say, goes through `exec`, whose exit code comes from the kernel.
"""

import re

from attrs import frozen

from agentkit.errors import SandboxError

OUTPUT_FD = 60
STATUS_FD = 61
EXPORTS_FD = 62


@frozen
class ShellState:
    """What a fresh shell needs to go on where another one stood."""

    directory: str
    flags: str = ""
    debug_trap: bytes = b""
    has_jobs: bool = False


@frozen
class Status:
    """How a command ended, and the state it left."""

    exit_code: int
    state: ShellState


def encode(text: str) -> bytes:
    """`text` as the bytes a shell or the kernel takes.

    Raises:
        SandboxError: `text` holds a NUL, which neither can take, or a lone surrogate.
    """
    if "\0" in text:
        raise SandboxError(f"expected text without NUL, found one at {text.index(chr(0))}")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SandboxError(f"text cannot be encoded: {error}") from error


def quote(data: bytes) -> bytes:
    """One shell word that stands for `data` exactly."""
    return b"'" + data.replace(b"'", b"'\\''") + b"'"


def frame(command: bytes, word: str, state: ShellState) -> bytes:
    """What to write to the shell for one command."""
    before = b""
    if state.debug_trap:
        before += b"\\builtin " + state.debug_trap.strip() + b"\n"
    if "x" in state.flags:
        before += b"set -x\n"
    group = f"</dev/null >&{OUTPUT_FD} 2>&1 {OUTPUT_FD}>&- {STATUS_FD}>&- {EXPORTS_FD}>&-"
    report = (
        "{ "
        f'\\builtin printf \'{word} %s %s\\0\' "$?" "$-" >&{STATUS_FD}; '
        "\\builtin set +x; "
        f"\\builtin trap -p DEBUG >&{STATUS_FD}; "
        "\\builtin trap - DEBUG; "
        f"\\builtin export -p >|/proc/self/fd/{EXPORTS_FD}; "
        f"\\builtin printf '\\0' >&{STATUS_FD}; "
        f"\\builtin jobs -p >&{STATUS_FD}; "
        f"\\builtin printf '\\0%s\\0{word}\\n' \"$PWD\" >&{STATUS_FD}; "
        "} </dev/null >/dev/null 2>&1\n"
    )
    return b"{ \\builtin eval " + quote(before + command) + b"\n} " + group.encode() + b"\n\n" + report.encode()


def prelude(state: ShellState, exports: bytes) -> bytes:
    """What a fresh shell evaluates first; `exports` is what an earlier one wrote to `EXPORTS_FD`."""
    return b"shopt -s expand_aliases\ncd -- " + quote(encode(state.directory)) + b"\n" + exports


class StatusReader:
    """Finds one command's status in the bytes of the status descriptor, however they are split."""

    def __init__(self, word: str, before: ShellState) -> None:
        self._word = word.encode()
        self._end = b"\0" + self._word + b"\n"
        self._before = before
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Status | None:
        """The status, once all of it is there."""
        searched = max(0, len(self._buffer) - len(self._end))
        self._buffer += data
        end = self._buffer.find(self._end, searched)
        if end < 0:
            return None
        # The last head before the end is ours: whatever else was written there came before the command ended.
        heads = list(re.finditer(re.escape(self._word) + rb" (\d+) (\w*)\0", bytes(self._buffer[:end])))
        if not heads:
            return None
        head = heads[-1]
        trap, _, rest = bytes(self._buffer[head.end() : end]).partition(b"\0")
        jobs, _, directory = rest.partition(b"\0")
        path = directory.decode("utf-8", "surrogateescape") or self._before.directory
        state = ShellState(path, head[2].decode("ascii", "replace"), trap, jobs != b"")
        return Status(int(head[1]), state)
