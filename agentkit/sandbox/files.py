"""Files of a sandbox, read and written by programs inside it, so that every path means what it means there.

The host never opens a path that the sandbox controls: a symlink to /etc/shadow leads to the sandbox's /etc/shadow.
"""

import posixpath
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import anyio
from anyio import to_thread

from agentkit.errors import SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.sandbox import archive
from agentkit.sandbox.execution import execute
from agentkit.sandbox.spawner import Place, Program

# `$1` is the path, `$2` a limit, `$3` a directory that the path must stay in, or empty.
_STAY = """
if [ -n "$3" ]; then
  real=$(realpath -m -- "$1") && base=$(realpath -m -- "$3") || exit 17
  case "$real" in "$base"|"$base"/*) ;; *) exit 17 ;; esac
fi
"""
_READ = """
[ -e "$1" ] || exit 13
[ -d "$1" ] && exit 14
[ -f "$1" ] || exit 15
[ -r "$1" ] || exit 16
exec head -c "$2" -- "$1" 2>/dev/null
"""
_WRITE = """
[ -d "$1" ] && exit 14
[ -e "$1" ] && [ ! -f "$1" ] && exit 15
mkdir -p -- "$(dirname -- "$1")" 2>&1 && cat > "$1"
"""
_UNTAR = """
mkdir -p -- "$1" && exec tar -x -p --no-same-owner -f - -C "$1"
"""
_TAR = """
[ -e "$1" ] || exit 13
cd -P -- "$(dirname -- "$1")" 2>/dev/null && exec tar -c -f - --hard-dereference -- "./$(basename -- "$1")" 2>/dev/null
"""
_WHY = {
    13: "no such file",
    14: "is a directory",
    15: "is not a regular file",
    16: "permission denied",
    17: "outside of the sandbox",
}


class SandboxFiles:
    """The Files and Transfer of one sandbox. `locate` maps the caller's paths to those of the place."""

    def __init__(
        self, place: Place, program: Program, *, locate: Callable[[str], str], stay: str, limit_bytes: int
    ) -> None:
        self._place = place
        self._program = program
        self._locate = locate
        self._stay = stay
        self._limit = limit_bytes

    async def read(self, path: str) -> bytes:
        """As `Files.read`."""
        result = await self._script(_READ, path, cap=OutputCap(self._limit + 1, 0))
        self._raise(result, "read", path)
        if result.total_bytes > self._limit:
            raise SandboxError(f"cannot read {path!r}: larger than {self._limit} bytes")
        return result.output

    async def write(self, path: str, data: bytes) -> None:
        """As `Files.write`."""
        self._raise(await self._script(_WRITE, path, stdin=data), "write", path)

    async def upload(self, source: Path, destination: str) -> None:
        """As `Transfer.upload`; an existing directory is merged into."""
        inside = self._locate(destination)
        with tempfile.TemporaryFile() as spool:
            if await anyio.Path(source).is_dir():
                directory, name = inside, "."
            else:
                directory, name = posixpath.dirname(inside), posixpath.basename(inside)
            await to_thread.run_sync(archive.pack, source, name, spool)
            spool.seek(0)
            result = await self._script(_UNTAR, directory, stdin=spool.fileno(), located=True)
        self._raise(result, "upload to", destination)

    async def download(self, source: str, destination: Path) -> None:
        """As `Transfer.download`; `destination` must not exist, or be an empty directory or a file to replace."""
        with tempfile.TemporaryFile() as spool:
            result = await self._script(_TAR, source, cap=OutputCap(0, 0), on_output=self._spool(spool, source))
            self._raise(result, "download", source)
            spool.seek(0)
            await to_thread.run_sync(lambda: archive.unpack(spool, destination, limit_bytes=self._limit))

    def _spool(self, spool: IO[bytes], source: str) -> Callable[[bytes], None]:
        room = 2 * self._limit + 1_048_576  # headers and padding come on top of the content, which is judged later

        def take(data: bytes) -> None:
            nonlocal room
            room -= len(data)
            if room < 0:
                raise SandboxError(f"cannot download {source!r}: larger than {self._limit} bytes")
            spool.write(data)

        return take

    async def _script(
        self,
        script: str,
        path: str,
        *,
        stdin: bytes | int = b"",
        cap: OutputCap = OutputCap(4096, 0),  # noqa: B008  # frozen
        on_output: Callable[[bytes], None] | None = None,
        located: bool = False,
    ) -> ExecResult:
        if not path or "\0" in path:
            raise SandboxError(f"expected a path, found {path!r}")
        inside = path if located else self._locate(path)
        argv = (
            "bash",
            "--noprofile",
            "--norc",
            "-c",
            _STAY + script,
            "files",
            inside,
            str(self._limit + 1),
            self._stay,
        )
        program = Program(argv, self._program.env, self._program.cwd)
        return await execute(self._place, program, stdin=stdin, cap=cap, on_output=on_output)

    def _raise(self, result: ExecResult, verb: str, path: str) -> None:
        if result.exit_code:
            why = _WHY.get(result.exit_code) or result.text.strip()[:500] or f"exit code {result.exit_code}"
            raise SandboxError(f"cannot {verb} {path!r}: {why}")
