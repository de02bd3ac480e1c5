"""The host's side of the guest in a container: a place for programs, over FIFOs in a directory both see.

    host ──"control"──▶ guest ──fork──▶ program          one FIFO for each descriptor of a program, gone from the
      ◀──"s-ID"── reports of one program ──┘             directory as soon as the program has opened it

The directory is the host's; the container has it mounted read-only and can open what is in it, no more. The host opens
every name once, when it makes it. The only write end of "control" is the host's, so however the host ends, the guest
reads an end of file, and the first process of a container takes all others along.

Whoever is root inside can do to the guest what it likes, as in any container: forge the reports of a program that runs
beside it, or refuse service to itself. Nothing of that reaches beyond the container.
"""

import contextlib
import os
import select
import signal
import stat
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, evolve, field

from agentkit.errors import InvariantError, SandboxDead
from agentkit.protocols.sandbox import OutputCap
from agentkit.sandbox.containers.requests import GUEST, Found, Redirection, Reports, found, request
from agentkit.sandbox.execution import execute
from agentkit.sandbox.place import Kept, Process, Program, StartFailed
from agentkit.sandbox.spawner import readable

START_S = 20.0
KEPT_BYTES = 1 << 20
_FIRST_BYTES = 4 << 20


class Shared:
    """The directory of one container: FIFOs by name, and the descriptors of ours behind them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o711)
        directory.chmod(0o711)  # whatever the umask
        (directory / "guest").write_bytes(GUEST.read_bytes())
        (directory / "guest").chmod(0o644)

    def fifo(self, name: str, *, writes: bool) -> int:
        """Make a FIFO and open our end; the one to write to does not wait for a reader. The caller closes it."""
        path = self.directory / name
        os.mkfifo(path)
        try:
            path.chmod(0o666)  # the user inside may be another; the directory above is ours alone
            return self.reopen(path, os.O_RDWR if writes else os.O_RDONLY)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    @staticmethod
    def reopen(path: str | Path, flags: int) -> int:
        """A descriptor of a FIFO, and of nothing else.

        Raises:
            InvariantError: it is something else.
        """
        follow = 0 if str(path).startswith("/proc/self/fd/") else os.O_NOFOLLOW
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | follow)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvariantError(f"{str(path)!r} is no FIFO any more")
        return fd

    def forget(self, name: str) -> None:
        """Take a name out of the directory."""
        (self.directory / name).unlink(missing_ok=True)


def write_only(fd: int) -> None:
    """Let go of the read end that came with `fd`, a FIFO opened for both."""
    fresh = Shared.reopen(f"/proc/self/fd/{fd}", os.O_WRONLY)
    os.dup2(fresh, fd, inheritable=False)
    os.close(fresh)


def hear(fd: int) -> bytes | None:
    """What a FIFO holds, at most 64 KiB; empty where all writers are gone, None where there is nothing yet."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    events = poll.poll(0)
    if not events:
        return None
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


@define(eq=False)
class Guest:
    """The guest itself, as the process whose end is the end of everything inside."""

    shared: Shared
    control: int = -1
    life: int = -1
    exit_code: int | None = None
    lost: bool = False
    signalled: int | None = None
    pid: int = 1
    _said: bytearray = field(factory=bytearray)

    def __attrs_post_init__(self) -> None:
        self.control = self.shared.fifo("control", writes=True)
        try:
            os.close(self.shared.fifo("answers", writes=True))  # between processes of the guest
            self.life = self.shared.fifo("life", writes=False)
        except BaseException:
            os.close(self.control)
            raise

    async def first(self) -> Found | None:
        """What it found; None where it ended before it could say. From now on it ends with us."""
        while not self.poll():
            answer = found(bytes(self._said))
            if answer is not None:
                write_only(self.control)
                for name in ("control", "life", "answers"):
                    self.shared.forget(name)
                return answer
            await anyio.wait_readable(self.life)
        return found(bytes(self._said))

    @property
    def ended(self) -> bool:
        return self.lost

    def fileno(self) -> int:
        return self.life

    def poll(self) -> bool:
        while not self.lost and self.life >= 0:
            data = hear(self.life)
            if data is None:
                break
            self._said += data
            self.lost = not data or len(self._said) > _FIRST_BYTES
        return self.lost

    def tell(self, line: str) -> bool:
        """Say one line; False where it must wait until the guest has read what was said before.

        Raises:
            SandboxDead: the guest is gone.
        """
        if self.control < 0:
            raise SandboxDead("the sandbox is closed")
        try:
            os.write(self.control, line.encode())
        except BlockingIOError:
            return False
        except BrokenPipeError as error:
            raise SandboxDead("the sandbox is gone") from error
        return True

    def kill(self, number: int = signal.SIGKILL, *, since: int | None = None, itself: bool = True) -> None:
        self.end()

    def count(self, since: int) -> None:
        self.signalled = 0

    def end(self) -> None:
        if self.control >= 0:
            os.close(self.control)
            self.control = -1

    async def gone(self) -> None:
        while not self.poll():
            await anyio.wait_readable(self.life)

    def close(self) -> None:
        self.end()
        if self.life >= 0:
            os.close(self.life)
            self.life = -1
            self.lost = True


@define(eq=False)
class GuestProcess:
    """A program the guest started for us."""

    guest: Guest
    number: int
    status: int
    exit_code: int | None = None
    lost: bool = False
    reports: Reports = field(factory=Reports)

    @property
    def pid(self) -> int:
        return self.reports.pid or 0

    @property
    def signalled(self) -> int | None:
        return self.reports.signalled

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or self.lost

    def fileno(self) -> int:
        return self.status

    def poll(self) -> bool:
        while not self.ended and self.status >= 0:
            data = hear(self.status)
            if data is None:
                break
            self.reports.feed(data)
            self.exit_code = self.reports.exit_code
            if self.exit_code is None and (not data or self.reports.is_broken):
                self._reporter_died()
        return self.ended

    def _reporter_died(self) -> None:
        """Whatever killed the process that reports, the program does not outlive it."""
        if self.guest.poll():
            self.lost = True
        else:
            self.kill()
            self.exit_code = 128 + signal.SIGKILL

    def kill(self, number: int = signal.SIGKILL, *, since: int | None = None, itself: bool = True) -> None:
        self.reports.signalled = None
        pid = "-" if self.ended else self.pid or "-"  # by then its number may be another's
        words = ("k", self.number, pid, int(number), -1 if since is None else since, int(itself))
        with contextlib.suppress(SandboxDead):
            self.guest.tell(" ".join(map(str, words)) + "\n")

    def count(self, since: int) -> None:
        self.kill(0, since=since, itself=False)

    def end(self) -> None:
        self.kill()

    async def started(self) -> None:
        """Wait until it runs.

        Raises:
            StartFailed: it could not be started.
            SandboxDead: the guest is gone, or does not answer.
        Cancellation: nothing has changed.
        """
        poll = select.epoll()
        try:
            poll.register(self.status, select.EPOLLIN)
            poll.register(self.guest.fileno(), select.EPOLLIN)
            with anyio.move_on_after(START_S) as scope:
                while not (self.poll() or self.reports.pid is not None or self.reports.error is not None):
                    if self.guest.poll():
                        self.lost = True
                        break
                    await readable(poll)
        finally:
            poll.close()
        if self.reports.error is not None:
            stage, where = self.reports.error
            raise StartFailed(f"no such directory {where!r}" if stage == "cwd" else f"{stage} {where}", stage)
        if self.reports.pid is None and self.exit_code is None:
            raise SandboxDead("the sandbox does not answer" if scope.cancelled_caught else "the sandbox is gone")

    async def gone(self) -> None:
        while not self.poll():
            await anyio.wait_readable(self.status)

    def close(self) -> None:
        if self.status < 0:
            return
        if not self.ended:
            with contextlib.suppress(SandboxDead):
                self.guest.tell(f"c {self.number}\n")
        os.close(self.status)
        self.status = -1
        self.guest.shared.forget(f"s-{self.number}")


@define(eq=False)
class GuestPlace:
    """The inside of one container."""

    guest: Guest
    keep_in: str
    """The guest's directory for files of its own; empty where it has none."""
    takes_descriptors: bool = False
    _numbers: "count[int]" = field(factory=count)
    _made: dict[tuple[int, int], tuple[Redirection, int]] = field(factory=dict)

    def pipe(self, fds: dict[int, int], target: int, *, ours_writes: bool = False) -> int:
        """As `Place.pipe`."""
        name = f"f-{next(self._numbers)}"
        shared = self.guest.shared
        near = shared.fifo(name, writes=ours_writes)
        try:
            far = os.open(shared.directory / name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except BaseException:
            os.close(near)
            shared.forget(name)
            raise
        found_at = os.fstat(far)
        self._made[found_at.st_dev, found_at.st_ino] = (Redirection(name, reads=ours_writes), near)
        fds[target] = far
        return near

    def keep(self) -> Kept:
        """As `Place.keep`."""
        return GuestFile(self, f".agentkit-{next(self._numbers)}-{os.urandom(8).hex()}")

    async def spawn(self, program: Program, fds: Mapping[int, int]) -> Process:
        """As `Place.spawn`."""
        number = next(self._numbers)
        shared = self.guest.shared
        redirections: dict[int, Redirection] = dict(program.options.get("kept", {}))
        writing: list[int] = []
        for target, fd in fds.items():
            known = os.fstat(fd)
            try:
                redirections[target], near = self._made[known.st_dev, known.st_ino]
            except KeyError:
                raise InvariantError(f"descriptor {fd} is no pipe of this place") from None
            if redirections[target].reads:
                writing.append(near)
        process: GuestProcess | None = None
        try:
            process = GuestProcess(self.guest, number, shared.fifo(f"s-{number}", writes=False))
            (shared.directory / f"r-{number}").write_bytes(request(program, redirections))
            (shared.directory / f"r-{number}").chmod(0o644)
            while not self.guest.tell(f"s {number}\n"):
                with anyio.move_on_after(START_S) as scope:
                    await anyio.wait_writable(self.guest.control)
                if scope.cancelled_caught:
                    raise SandboxDead("the sandbox does not answer")
            await process.started()
            await checkpoint_if_cancelled()
            for near in writing:
                write_only(near)
        except BaseException:
            if process is not None:
                process.close()
            raise
        finally:
            shared.forget(f"r-{number}")
            for fd in set(fds.values()):
                known = os.fstat(fd)
                redirection, _ = self._made.pop((known.st_dev, known.st_ino))
                shared.forget(redirection.name)
        return process


@define(eq=False)
class GuestFile:
    """A `Kept` inside of the container."""

    place: GuestPlace
    name: str
    closed: bool = False

    def give(self, program: Program, fds: dict[int, int], target: int) -> Program:
        """As `Kept.give`."""
        kept = {target: Redirection(self.name, kept=True)} if self.place.keep_in else {}
        return evolve(program, options={**program.options, "kept": kept})

    async def read(self) -> bytes:
        """As `Kept.read`; also empty where it is larger than any environment."""
        script = f'head -c {KEPT_BYTES + 1} -- "$0"; rm -f -- "$0"'
        argv = ("bash", "--noprofile", "--norc", "-p", "-c", script, f"{self.place.keep_in}/{self.name}")
        cap = OutputCap(KEPT_BYTES + 1, 0)
        program = Program(argv, {"PATH": os.defpath})
        result = await execute(self.place, program, timeout_s=5.0, cap=cap)
        whole = not result.timed_out and result.total_bytes <= KEPT_BYTES
        return result.output if whole else b""

    def close(self) -> None:
        """As `Kept.close`."""
        self.closed = True
