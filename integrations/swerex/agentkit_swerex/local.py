"""SWE-ReX's server as a child of ours: what its LocalDeployment does within the event loop, done outside of it."""

import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from anyio import to_thread
from attrs import frozen

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.bwrap import programs_env
from agentkit.sandbox.embedded import LOG, end
from agentkit.sandbox.leaks import MARKER, PREFIX, remove_tree
from agentkit.sandbox.registry import Entry
from agentkit.sandbox.spawner import HostPlace, Process, Program, Spawner, hold_spawner, request
from agentkit_swerex.launch import Address, Note
from agentkit_swerex.through import through

_MAIN = """
import os, socket, sys
import uvicorn
token = os.read(0, 4096).decode()
os.dup2(os.open("/dev/null", os.O_RDWR), 0)
def run(app, **_):
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=3)])
uvicorn.run = run
sys.argv = ["swerex-remote", "--host", "127.0.0.1", "--auth-token", token]
from swerex import server
server.main()
"""
"""Its own main, but the token comes by standard input, not on a command line that everybody can read, and it listens on
a socket that we bound: on the loopback interface alone, at a port that nobody can take in between."""


@frozen(eq=False)
class LocalServer:
    """A server below a subreaper of its own, which ends with all that was started there, however detached."""

    address: Address
    name: str
    root: Path
    spawner: Spawner
    main: socket.socket
    keeper: Process
    server: Process
    log: int

    async def ended(self) -> str | None:
        """As `Launched.ended`."""
        if self.server.poll() or self.keeper.poll():
            return f"it ended with exit code {self.server.exit_code}: {self._said()}"
        return None

    def _said(self) -> str:
        try:
            lines = os.pread(self.log, 1 << 16, max(0, os.fstat(self.log).st_size - (1 << 16))).decode(
                "utf-8", "replace"
            )
        except OSError:
            return ""
        return lines.replace(self.address.token, "***").strip()[-500:]

    async def remove(self) -> None:
        """As `Launched.remove`."""
        if self.main.fileno() < 0:
            return
        await end(self.keeper, self.name)
        self.keeper.close()
        self.server.close()
        self.main.close()
        os.close(self.log)
        await to_thread.run_sync(_remove, self.root)
        await self.spawner.release()


class Local:
    """`{type: local}`: no isolation, as SWE-ReX's own; but nothing outlives the sandbox."""

    kind: ClassVar[str] = "local"
    isolated: ClassVar[bool] = False
    limits: ClassVar[frozenset[str]] = frozenset()
    has_image: ClassVar[bool] = False
    is_ours: ClassVar[bool] = True
    outlives: ClassVar[bool] = False
    startup_s = 60.0

    def __init__(self, options: Mapping[str, object]) -> None:
        if options:
            raise ConfigError(f"deployment of type 'local' takes no options, found {sorted(options)}")

    def available(self) -> str | None:
        """None: it runs wherever swe-rex is installed."""
        return None

    async def launch(self, name: str, spec: SandboxSpec, note: Note) -> LocalServer:
        """As `Deployment.launch`."""
        del note
        root = Path(tempfile.gettempdir()) / f"{PREFIX}{name}"  # the reaper knows it from the first moment
        spawner = hold_spawner()
        held: list[int] = []
        keeper: Process | None = None
        main: socket.socket | None = None
        try:
            root.mkdir(mode=0o700)
            for inner in ("home", "tmp", spec.cwd.strip("/")):
                (root / inner).mkdir(parents=True, exist_ok=True)
            main, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            main.setblocking(False)
            with theirs:
                keeper = await request(spawner.main, "nest", None, {0: theirs.fileno()})
            token = secrets.token_hex(32)  # it must not look like an option
            reading, writing = os.pipe()
            log = os.memfd_create("swerex", os.MFD_CLOEXEC)
            held += [reading, writing, log]
            os.write(writing, token.encode())
            os.close(held.pop(1))
            with socket.socket() as listening:
                listening.bind(("127.0.0.1", 0))
                listening.listen(64)
                port = listening.getsockname()[1]
                env = {"PATH": programs_env()["PATH"], "HOME": str(root / "home"), MARKER: name}
                env |= {"TMPDIR": str(root / "tmp"), "SWE_REX_LOG_STREAM_LEVEL": "ERROR"}
                program = Program((sys.executable, "-I", "-c", _MAIN), env, (str(root),))
                fds = {0: reading, 1: log, 2: log, 3: listening.fileno()}
                server = await HostPlace(main).spawn(program, fds)
            os.close(held.pop(0))
            return LocalServer(
                Address(f"http://127.0.0.1:{port}", token), name, root, spawner, main, keeper, server, log
            )
        except BaseException as error:
            for fd in held:
                os.close(fd)

            async def undo() -> None:
                if keeper is not None:
                    await end(keeper, name)
                    keeper.close()
                if main is not None:
                    main.close()
                await to_thread.run_sync(_remove, root)
                await spawner.release()

            await through(undo())
            if isinstance(error, OSError):
                raise SandboxError(f"no server can be started: {error}") from error
            raise

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Its spawner ended it with the process that made it; what is left is the reaper's."""
        del entry


def _remove(root: Path) -> None:
    if root.exists():
        remove_tree(root)
    if root.exists():
        LOG.error("directory %s could not be removed", root)
