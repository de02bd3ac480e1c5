"""A whole sandbox over one call that runs a program."""

import posixpath
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self, TypeVar

import anyio
from anyio import to_thread

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox import archive
from agentkit.sandbox.files import _READ, _STAY, _TAR, _UNTAR, _WHY, _WRITE
from agentkit.sandbox.over_exec.session import ExecChannel, ExecSession

CHUNK_BYTES = 262_144
T = TypeVar("T")


class ExecSandbox:
    """A started sandbox, as `Sandbox` has it, reached through `channel`.

    `poll` says whether the sandbox still runs: None, or why it does not; `end` ends it, and is called, shielded, until
    it has returned once.
    `isolated` is what the back end vouches for. `open` must have been awaited before anything else is.
    """

    def __init__(
        self,
        name: str,
        spec: SandboxSpec,
        channel: ExecChannel,
        *,
        poll: Callable[[], Awaitable[str | None]],
        end: Callable[[], Awaitable[None]],
        isolated: bool = True,
        marker: str = "",
        stay: str = "",
    ) -> None:
        self.name = name
        self.spec = spec
        self.isolated = isolated
        self._poll = poll
        self._end = end
        self._stay = stay
        self._session = ExecSession(channel, spec.cwd, dict(spec.env), marker)
        self._closing = anyio.Lock()
        self._closed = False
        self._ended = False

    async def open(self) -> None:
        """Start the shell, so that a sandbox that cannot run commands fails at its start.

        Raises:
            SandboxError: it cannot run them: no bash in the image, say.
            SandboxDead: it has ended.
        Cancellation: the caller ends the sandbox.
        """
        await self._explain(self._session.open())

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run`."""
        self._check()
        result = await self._explain(self._session.run(command, timeout_s=timeout_s, cap=cap))
        if result.died:
            await self._check_alive()
        return result

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cap: OutputCap = OutputCap(),  # noqa: B008  # frozen
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """As `Shell.exec`; `env` is added to that of the spec, a relative `cwd` starts at the working directory."""
        self._check()
        if not argv or isinstance(argv, str):
            raise SandboxError(f"argv must be a non-empty sequence of strings, found {argv!r}")
        result = await self._program(
            argv, cwd=cwd, env=env, stdin=_pieces(stdin), timeout_s=timeout_s, cap=cap, on_output=on_output
        )
        if result.exit_code == 137 and not result.timed_out:
            await self._check_alive()
        return result

    async def read(self, path: str, /) -> bytes:
        """As `Files.read`."""
        limit = self.spec.read_limit_bytes
        result = await self._script(_READ, path, cap=OutputCap(limit + 1, 0))
        _raise(result, "read", path)
        if result.total_bytes > limit:
            raise SandboxError(f"cannot read {path!r}: larger than {limit} bytes")
        return result.output

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write`."""
        _raise(await self._script(_WRITE, path, stdin=_pieces(data)), "write", path)

    async def upload(self, source: Path, destination: str, /) -> None:
        """As `Transfer.upload`; an existing directory is merged into."""
        self._check()
        inside = self._locate(destination)
        with tempfile.TemporaryFile() as spool:
            if await anyio.Path(source).is_dir():
                directory, name = inside, "."
            else:
                directory, name = posixpath.dirname(inside), posixpath.basename(inside)
            await to_thread.run_sync(archive.pack, source, name, spool)
            spool.seek(0)
            result = await self._script(_UNTAR, directory, stdin=iter(lambda: spool.read(CHUNK_BYTES), b""))
        _raise(result, "upload to", destination)

    async def download(self, source: str, destination: Path, /) -> None:
        """As `Transfer.download`; `destination` must not exist, or be an empty directory or a file to replace."""
        limit = self.spec.read_limit_bytes
        with tempfile.TemporaryFile() as spool:
            result = await self._script(_TAR, source, cap=OutputCap(0, 0), on_output=_bounded(spool, source, limit))
            _raise(result, "download", source)
            spool.seek(0)
            await to_thread.run_sync(lambda: archive.unpack(spool, destination, limit_bytes=limit))

    async def alive(self) -> bool:
        """As `Lifecycle.alive`."""
        return not self._closed and await self._poll() is None

    async def close(self) -> None:
        """As `Lifecycle.close`. Cancellation: shielded; how long it takes is the back end's to bound."""
        with anyio.CancelScope(shield=True):
            async with self._closing:
                self._closed = True
                self._session.closed = True
                if not self._ended:
                    await self._end()
                    self._ended = True  # only now: cut short by a native cancel, the next close does it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _check(self) -> None:
        if self._closed:
            raise SandboxDead(f"sandbox {self.name} is closed")

    async def _check_alive(self) -> None:
        self._check()
        why = await self._poll()
        if why is not None:
            raise SandboxDead(f"sandbox {self.name} {why}")

    async def _explain(self, call: Awaitable[T]) -> T:
        """The result of `call`; an error of a sandbox that has ended becomes SandboxDead, with the reason."""
        try:
            return await call
        except SandboxError as error:
            await self._check_alive_after(error)
            raise

    async def _check_alive_after(self, error: SandboxError) -> None:
        if self._closed:
            raise SandboxDead(f"sandbox {self.name} is closed") from error
        if isinstance(error, SandboxDead) or error.retryable:
            try:
                why = await self._poll()
            except SandboxError:
                return  # not to be reached now: the first error says so
            if why is not None:
                raise SandboxDead(f"sandbox {self.name} {why}") from error

    def _locate(self, path: str) -> str:
        if not path or "\0" in path:
            raise SandboxError(f"expected a path, found {path!r}")
        return posixpath.join(self.spec.cwd, path)

    async def _program(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Iterable[bytes] = (),
        timeout_s: float | None = None,
        cap: OutputCap,
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        directory = self.spec.cwd if cwd is None else self._locate(cwd)
        return await self._explain(
            self._session.exec(
                argv, cwd=directory, env=env or {}, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output
            )
        )

    async def _script(
        self,
        script: str,
        path: str,
        *,
        stdin: Iterable[bytes] = (),
        cap: OutputCap = OutputCap(4096, 0),  # noqa: B008  # frozen
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        self._check()
        inside = self._locate(path)
        words = (inside, str(self.spec.read_limit_bytes + 1), self._stay)
        argv = ("bash", "--noprofile", "--norc", "-c", _STAY + script, "files", *words)
        return await self._program(argv, cwd="/", stdin=stdin, cap=cap, on_output=on_output)


def _raise(result: ExecResult, verb: str, path: str) -> None:
    if result.exit_code:
        why = _WHY.get(result.exit_code) or result.text.strip()[:500] or f"exit code {result.exit_code}"
        raise SandboxError(f"cannot {verb} {path!r}: {why}")


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))


def _bounded(spool: IO[bytes], source: str, limit_bytes: int) -> Callable[[bytes], None]:
    room = 2 * limit_bytes + 1_048_576  # headers and padding come on top of the content, which is judged later

    def take(data: bytes) -> None:
        nonlocal room
        room -= len(data)
        if room < 0:
            raise SandboxError(f"cannot download {source!r}: larger than {limit_bytes} bytes")
        spool.write(data)

    return take
