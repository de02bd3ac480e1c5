"""From a forked child to a program, here or inside a sandbox; part of the spawner, standard library only.

    spawner ──fork──▶ middle, which joins groups and namespaces ──fork──▶ program

The middle ends at once, and the spawner, a subreaper, adopts the program.

A sandbox with control groups has a middle waiting in them (`Spare`): to join a group takes the kernel a grace period,
some 12 ms where no other was joined just before. It has no descriptors but its socket, and ends with the spawner.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import termios
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from agentkit.sandbox import _spawner_confine as confine
    from agentkit.sandbox import _spawner_keep as keeping
    from agentkit.sandbox import _spawner_mounts as mounts
else:  # run by path and isolated: what belongs to the spawner lies beside it, and it says where
    confine = __import__("_spawner_confine")
    keeping = __import__("_spawner_keep")
    mounts = __import__("_spawner_mounts")

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
NS_GET_PARENT = 0xB702
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")
NICER = 5
LIBC = ctypes.CDLL(None, use_errno=True)


def children(pid: int) -> list[int]:
    """The direct children of a process, those of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    return found


def stat(pid: int) -> tuple[str, int]:
    """(state, start time in clock ticks since boot); ("X", 0) for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, IndexError):
        return "X", 0


def tree(roots: list[int]) -> list[int]:
    """The live processes among `roots` and below."""
    found: list[int] = []
    todo = list(roots)
    while todo:
        pid = todo.pop()
        todo.extend(children(pid))
        if stat(pid)[0] not in "ZX":
            found.append(pid)
    return found


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def enter(pid: int) -> None:
    """Join the namespaces of `pid`; the pid namespace takes effect for children."""
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # else the sandbox could ptrace us, or take our descriptors, before exec
    handles = {}
    for name in NAMESPACES:  # all opened first: once the mounts are the sandbox's, so is /proc
        handle = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        if os.fstat(handle).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            handles[name] = handle
    user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    own = os.stat("/proc/self/ns/user").st_ino
    users = []  # innermost first; bwrap nests two of them for an ordinary user
    while os.fstat(user).st_ino != own:
        users.append(user)
        user = LIBC.ioctl(user, NS_GET_PARENT)
        if user < 0:
            break
    if users:
        confine.check(LIBC.setns(users.pop(), 0), "setns user")
    for name, handle in handles.items():
        confine.check(LIBC.setns(handle, 0), f"setns {name}")
    while users:
        confine.check(LIBC.setns(users.pop(), 0), "setns user")


def become(body: dict[str, Any], fds: list[int], parent: int | None) -> None:
    """Turn this forked child into the program asked for.

    Without a terminal of its own it stays in the spawner's session: Linux shares the processors between sessions first,
    so a thousand sandboxes with one each would leave the event loop a thousandth. Being nicer keeps the spawner prompt.
    """
    if body.get("terminal"):  # a terminal belongs to a session
        os.setsid()
    else:
        os.setpgid(0, 0)
    os.nice(NICER)
    if "mounts" in body:
        body["stage"] = "mounts"
        mounts.prepare(body["mounts"])
        body["stage"] = "enter"
    if parent is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
    signal.set_wakeup_fd(-1)
    for number in (
        signal.SIGCHLD,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGPIPE,
        signal.SIGXFSZ,
        signal.SIGHUP,
        signal.SIGUSR1,
    ):
        signal.signal(number, signal.SIG_DFL)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds]
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        if target not in body["targets"]:
            os.dup2(null, target)
    for fd, target in zip(high, body["targets"], strict=True):
        os.dup2(fd, target)
    if body.get("terminal"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    confine.forbid_core_dumps()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    if "keep" in body:
        keep(body["keep"])
    body["stage"] = "privileges"
    if body.get("drop"):
        program = body["confine"].get("seccomp")
        uid, most, capabilities = body.get("uid"), body.get("max_processes"), body.get("capabilities", 0)
        confine.drop_privileges(uid, most, bytes.fromhex(program) if program else None, capabilities)
    body["stage"] = "cwd"
    for path in body.get("make", ()):
        os.makedirs(path, exist_ok=True)
    for path in body["cwd"]:  # the first that exists
        try:
            os.chdir(path)
            break
        except OSError:
            if path == body["cwd"][-1]:
                raise
    body["stage"] = "exec"
    os.execvpe(body["argv"][0], body["argv"], body["env"])  # noqa: S606  # its whole purpose


def keep(body: dict[str, Any]) -> None:
    """Copy what a sandbox has written, and exit; what went wrong is said on descriptor 1."""
    code = 1
    try:
        source = os.open(f"/proc/{body['holder']}/root{mounts.SCRATCH}", keeping.DIRECTORY)
        users = os.open(f"/proc/{body['holder']}/ns/user", os.O_RDONLY)
        if os.geteuid() != 0:  # there we may read what has no permissions for its owner
            confine.check(LIBC.setns(users, 0), "setns user")
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd != source:
                with contextlib.suppress(OSError):
                    os.close(fd)
        keeping.keep(source, body["names"], body["target"])
        code = 0
    except BaseException as error:
        os.write(1, str(error).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def start_inside(body: dict[str, Any], fds: list[int], target: int, writing: int) -> NoReturn:
    """In a middle: start the program in the namespaces of `target`, say its pid or what went wrong, and end."""
    body["stage"] = "enter"
    try:
        confine.offer_to_oom()
        if body.get("terminal") and body.get("owner") is not None:
            os.fchown(fds[body["targets"].index(0)], body["owner"], -1)  # programs open it again by its name
        enter(target)
        body["stage"] = "exec"  # no process more where its limit is reached: what a shell would say of it
        inside = os.fork()
        if inside:
            # The child is handed to the spawner, its subreaper, when this process ends.
            os.write(writing, json.dumps({"pid": inside}).encode() + b"\n")
            os._exit(0)
        become(body, fds, None)
    except BaseException as error:
        complain(body, error, writing)
    finally:
        os._exit(127)


def complain(body: dict[str, Any], error: BaseException, writing: int) -> None:
    text = {"stage": body["stage"], "errno": getattr(error, "errno", 0) or 0, "error": str(error)}
    os.write(writing, json.dumps(text).encode() + b"\n")


def only_descriptor(kept: int) -> None:
    """Close all but `kept` and the standard ones."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != kept:
            with contextlib.suppress(OSError):
                os.close(fd)


class Spare:
    """A middle that has joined the groups of a sandbox and waits to be told of a program; good for one."""

    def __init__(self, confined: dict[str, Any]) -> None:
        self.near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spawner = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() == spawner:
                    only_descriptor(far.fileno())
                    self.wait(far, confined)
            finally:
                os._exit(127)
        far.close()

    def wait(self, far: socket.socket, confined: dict[str, Any]) -> None:
        confine.join_groups(confined["groups"])
        said, fds, _, _ = socket.recv_fds(far, 64, 34)
        for fd in fds:
            os.set_inheritable(fd, False)
        if said:
            with open(fds[0], "rb") as file:
                file.seek(0)
                body = json.load(file)
            body["confine"] = confined
            start_inside(body, fds[2:], int(said), fds[1])

    def tell(self, request: int, target: int, writing: int, fds: Sequence[int]) -> bool:
        """Have it start the program of a request; False where it has ended before."""
        try:
            socket.send_fds(self.near, [str(target).encode()], [request, writing, *fds])
        except OSError:
            return False
        finally:
            self.near.close()
        return True

    def end(self) -> None:
        self.near.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def fork_program(
    body: dict[str, Any], fds: list[int], target: int | None, *, request: int = -1, spare: Spare | None = None
) -> int:
    """The pid of the started program; `request` is the descriptor of its body, for a `spare` to read.

    Raises RuntimeError(stage, errno, text) where it could not be started.
    """
    reading, writing = os.pipe()
    spawner = os.getpid()
    body["stage"] = "enter"
    if spare is not None and target is not None and spare.tell(request, target, writing, fds):
        middle = spare.pid
    else:
        middle = os.fork()
    if middle == 0:
        try:
            os.close(reading)
            confine.join_groups(body["confine"].get("groups", ()))
            if target is None:
                become(body, fds, spawner)
            else:
                start_inside(body, fds, target, writing)
        except BaseException as error:
            complain(body, error, writing)
        finally:
            os._exit(127)
    os.close(writing)
    with open(reading, "rb") as file:
        answers = [json.loads(line) for line in file.read().splitlines()]
    pid, ended = middle, 0
    if target is not None:
        ended = os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1])
        pid = next((answer["pid"] for answer in answers if "pid" in answer), 0)
    for answer in answers:
        if "error" in answer:
            if pid:
                os.waitpid(pid, 0)
            raise RuntimeError(answer["stage"], answer["errno"], answer["error"])
    if not pid and ended == -signal.SIGKILL and spare is not None:
        return fork_program(body, fds, target)  # who waited was killed before it began
    if not pid and ended == -signal.SIGKILL:
        raise RuntimeError("exec", errno.ENOMEM, "the memory of the sandbox is used up")
    if not pid:
        raise RuntimeError("enter", errno.ESRCH, "the process to enter is gone")
    return pid
