"""What is said to the script inside, and what it answers, as bytes. Sans-IO."""

import re
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from agentkit.errors import SandboxError
from agentkit.sandbox.framing import ShellState, encode, frame, quote

STATUS_BYTES = 262_144
_NAME = re.compile(r"[a-z]+")


@frozen
class Answer:
    """How a request ended.

    `kind` is `ok`, `died` (the command took its shell along) or says why it was not done: `cwd` (no such directory),
    `lost` (the shell is gone), `gone` (the session's directory is), `nowhere`, `tools`. `total_bytes` is -1 where it
    could not be counted.
    """

    kind: str
    code: int = 0
    timed_out: bool = False
    total_bytes: int = -1
    status: bytes = b""


def request(mark: str, op: str, fields: Mapping[str, str | Sequence[str]]) -> bytes:
    """The header of a request for `op`; what follows it on standard input is the payload.

    Raises:
        SandboxError: a field holds a NUL.
    """
    words = {"op": op, "mark": mark, **fields}
    lines: list[bytes] = []
    for name, value in words.items():
        if _NAME.fullmatch(name) is None:
            raise SandboxError(f"no field of a request: {name!r}")
        if isinstance(value, str):
            text = quote(encode(value))
        else:
            text = b"(" + b" ".join(quote(encode(word)) for word in value) + b")"
        lines.append(f"_ak_{name}=".encode() + text + b"\n")
    body = b"".join(lines)
    return str(len(body)).encode() + b"\n" + body


def environment(env: Mapping[str, str]) -> list[str]:
    """`env` as a field of a request."""
    return [f"{name}={value}" for name, value in env.items()]


def shell_input(command: bytes, word: str, state: ShellState, directory: str, job: int) -> bytes:
    """What the session's shell reads for one command: its descriptors for this job, the frame, the bell."""
    at = {name: quote(encode(f"{directory}/{name}.{job}")) for name in "osb"}
    opened = b"} 60>|" + at["o"] + b" 61>|" + at["s"] + b"\n"
    bell = b"\\builtin printf 's\\n' 1<>" + at["b"] + b" 2>/dev/null\n"
    return b"{\n" + frame(command, word, state) + opened + bell


class AnswerReader:
    """Splits what the script printed into the command's output and the answer at its end, however it arrives.

    `output` gets what cannot be part of the answer as soon as that is known. A command that prints the marker itself
    changes nothing: the last one that completes an answer counts, and nothing may follow it.
    """

    def __init__(self, mark: str, output: Callable[[bytes], None]) -> None:
        self._mark = mark.encode()
        self._tail = self._mark + b".\n"
        self._answer = re.compile(re.escape(self._mark) + rb" ([a-z]+) (\d+) ([01]) (-1|\d+)\n", re.DOTALL | re.ASCII)
        self._output = output
        self._held = bytearray()
        self._limit = STATUS_BYTES + 4096

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._held += data
        keep = self._held.find(self._mark)
        if keep < 0:
            most = min(len(self._mark) - 1, len(self._held))
            begun = (size for size in range(most, 0, -1) if self._held.endswith(self._mark[:size]))
            keep = len(self._held) - next(begun, 0)
        keep = max(keep, len(self._held) - self._limit)
        self._release(keep)

    def finish(self) -> Answer | None:
        """The answer, once nothing more will come; None where there is none, and all there was is output."""
        found = None
        if self._held.endswith(self._tail):
            heads = list(self._answer.finditer(bytes(self._held)))
            found = heads[-1] if heads else None
        if found is None:
            self._release(len(self._held))
            return None
        status = bytes(self._held[found.end() : -len(self._tail)])
        self._release(found.start())
        self._held.clear()
        return Answer(found[1].decode(), int(found[2]), found[3] == b"1", int(found[4]), status)

    def _release(self, count: int) -> None:
        if count > 0:
            data = bytes(self._held[:count])
            del self._held[:count]
            self._output(data)
