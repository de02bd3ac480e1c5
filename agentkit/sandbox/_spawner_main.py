"""The spawner: a small process that starts, watches and kills sandbox processes. Run by path, standard library only.

    event loop ──main socket──▶ spawner ──fork/exec──▶ bwrap, shells, programs
        └────── one channel per process (SOCK_SEQPACKET) ──────┘

A request on the main socket is one byte plus file descriptors: a memfd with the JSON body, the channel, then the
process's own descriptors. On the channel the spawner answers `{"pid"}` or `{"error", "stage"}`, later `{"exit"}`, and
takes `{"op": "kill"}` and `{"op": "end"}`. A channel that is closed ends its process; so nothing outlives who asked.

Operations: `spawn` runs a program here, or with `enter` in the namespaces of a bwrap started earlier. `nest` forks a
second spawner that is the subreaper of one sandbox without isolation: whatever its programs start, with whatever
setsid and double fork, stays below it. The spawner is single-threaded because setns wants that, and because a parent-
death signal follows the *thread* that forked.
"""

import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.sandbox import _spawner_confine as confine
    from agentkit.sandbox import _spawner_programs as programs
    from agentkit.sandbox._spawner_programs import children, send_signal, stat, tree
else:  # run by path and isolated: what belongs to this program lies beside it
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    confine = __import__("_spawner_confine")
    programs = __import__("_spawner_programs")
    sys.path.pop()
    children, send_signal = programs.children, programs.send_signal
    stat, tree = programs.stat, programs.tree

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)


class Child:
    """A process we started: its pid, the channel of who asked for it, what it was entered into, how it is confined.

    A holder is `bare` where the init of its sandbox holds the namespaces itself.
    """

    def __init__(
        self,
        pid: int,
        channel: socket.socket,
        kind: str,
        holder: int | None,
        confined: dict[str, Any],
        bare: bool = False,
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.kind = kind
        self.holder = holder
        self.confined = confined
        self.bare = bare


class Spawner:
    """The loop. `nested` is the subreaper of one sandbox: orphans below it are that sandbox's, not strays.

    What does not `adopt` orphans starts clients of container engines, which leave monitors behind that must live on.
    """

    def __init__(self, main: socket.socket, *, nested: bool, adopts: bool = True) -> None:
        self.main = main
        self.nested = nested
        self.parent = os.getppid()
        self.children: dict[int, Child] = {}
        self.channels: dict[int, Child] = {}
        self.ending = False
        self.leaving: list[Mapping[str, Any]] = []
        self.spares: dict[int, programs.Spare] = {}
        self.epoll = select.epoll()
        self.epoll.register(main.fileno(), select.EPOLLIN)
        self.wakeup, writing = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.epoll.register(self.wakeup, select.EPOLLIN)
        signal.signal(signal.SIGCHLD, self.child_ended)
        signal.signal(signal.SIGTERM, self.parent_died)
        signal.signal(signal.SIGUSR1, self.asked_to_end)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if adopts:
            LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == 1:
            self.ending = True

    def parent_died(self, *_: object) -> None:
        # The signal comes when the *thread* that started us ends. Only a new parent means that its process has ended.
        if os.getppid() != self.parent:
            self.ending = True

    def child_ended(self, *_: object) -> None:
        pass  # the wakeup descriptor does the waking

    def asked_to_end(self, *_: object) -> None:
        self.ending = True

    def serve(self) -> None:
        while not self.ending:
            self.leaving = confine.remove_groups(self.leaving)
            for fd, _ in self.epoll.poll(0.05 if self.leaving else 5.0):
                if fd == self.main.fileno():
                    self.request()
                elif fd == self.wakeup:
                    with contextlib.suppress(BlockingIOError):
                        while os.read(self.wakeup, 4096):
                            pass
                    self.reap()
                elif fd in self.channels:
                    self.command(self.channels[fd])
        self.end_all()

    def request(self) -> None:
        data, control, _, _ = self.main.recvmsg(
            16, socket.CMSG_SPACE(32 * 4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        )
        if not data:
            self.ending = True
            return
        fds: list[int] = []
        for level, sort, payload in control:
            if level == socket.SOL_SOCKET and sort == socket.SCM_RIGHTS:
                fds.extend(memoryview(payload[: len(payload) // 4 * 4]).cast("i"))
        with open(fds[0], "rb", closefd=False) as file:
            file.seek(0)
            body = json.load(file)
        channel = socket.socket(fileno=fds[1])
        channel.setblocking(False)
        confined = body.setdefault("confine", {})
        made: confine.Groups = ()
        holder = body.get("enter")
        try:
            if body["op"] == "nest":
                pid = self.nest(fds[2], channel)
                if pid == 0:
                    return
                kind = "nest"
            else:
                target = self.inner(holder) if holder else None
                if holder:
                    confined = body["confine"] = self.children[holder].confined
                kind = "holder" if body["op"] == "hold" else "program"
                if kind == "holder":
                    confine.make_groups(confined.get("groups", ()))
                    made = confined.get("groups", ())
                spare = self.spares.pop(holder, None) if holder else None
                pid = programs.fork_program(body, fds[2:], target, request=fds[0], spare=spare)
        except (RuntimeError, OSError) as error:
            self.leave(made)
            stage, number, text = error.args if isinstance(error, RuntimeError) else ("fork", error.errno, str(error))
            self.tell(channel, {"error": text, "stage": stage, "errno": number})
            channel.close()
            return
        finally:
            for fd in (fds[0], *fds[2:]):
                os.close(fd)
        child = Child(pid, channel, kind, holder, confined, body.get("bare", False))
        self.children[pid] = child
        self.channels[channel.fileno()] = child
        self.epoll.register(channel.fileno(), select.EPOLLIN)
        self.tell(channel, {"pid": pid})
        if kind != "nest" and confined.get("groups"):
            inside = holder or pid
            if inside in self.children:
                with contextlib.suppress(OSError):  # without one, the next program is started without
                    self.spares[inside] = programs.Spare(confined)

    def inner(self, holder: int) -> int:
        """The init of a bwrap: its one child."""
        found = children(holder) if holder in self.children else []
        if not found:
            raise RuntimeError("enter", errno.ESRCH, "the sandbox is gone")
        return found[0]

    def nest(self, main: int, channel: socket.socket) -> int:
        """Fork the spawner of one sandbox. Returns its pid, or 0 in the fork, which then serves and exits."""
        # Held back until the fork can take them: what it has inherited would note them in its copy of this spawner.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGTERM))
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return pid
        try:
            signal.set_wakeup_fd(-1)
            os.setpgid(0, 0)
            keep = os.dup(main)
            channel.detach()
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd > 2 and fd != keep:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            nested = Spawner(socket.socket(fileno=keep), nested=True)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            nested.serve()
        finally:
            os._exit(0)

    def command(self, child: Child) -> None:
        try:
            data = child.channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.epoll.unregister(child.channel.fileno())
            del self.channels[child.channel.fileno()]
            child.channel.close()
            self.end(child)
            return
        body = json.loads(data)
        if body["op"] == "end":
            self.end(child)
        else:
            found = self.kill(child, body["signal"], body["since"], body["itself"])
            self.tell(child.channel, {"signalled": found})

    def kill(self, child: Child, number: int, since: int | None, itself: bool) -> int:
        """Signal what `child` has started since then, orphans of the sandbox included, and the child if asked.

        Returns how many there were at first.
        """
        first = -1
        here = child.pid in self.children  # else its pid may be another's by now
        # Until all are dead, for one may fork meanwhile, and on a busy machine one may die late: some 0.2 s at most.
        for attempt in range(70 if number == signal.SIGKILL else 1):
            if attempt > 1:
                time.sleep(0.0005 if attempt < 30 else 0.005)  # noqa: TID251  # no event loop here
            roots = [pid for pid in children(child.pid) if since is None or stat(pid)[1] >= since] if here else []
            if since is not None:
                roots += [pid for pid in self.orphans(child) if stat(pid)[1] >= since]
            found = tree(roots)
            if itself and here and stat(child.pid)[0] not in "ZX":
                found.append(child.pid)
            first = len(found) if first < 0 else first
            if not found:
                break
            send_signal(found, number)
        return first

    def orphans(self, child: Child) -> list[int]:
        """The processes of the child's sandbox whose parents have ended."""
        if self.nested:
            return [pid for pid in children(os.getpid()) if pid not in self.children]
        if child.holder is None:
            return []
        with contextlib.suppress(RuntimeError):
            below = children(self.inner(child.holder))
            return below if self.children[child.holder].bare else below[1:]  # the first is what holds the namespaces
        return []

    def end(self, child: Child) -> None:
        """Kill a process with all it holds: for a bwrap its init, and so the namespace; its own exit comes last."""
        if child.pid not in self.children:
            return
        if child.kind == "holder":
            inside = children(child.pid)
            send_signal(inside or [child.pid], signal.SIGKILL)
        elif child.kind == "nest":
            send_signal([child.pid], signal.SIGUSR1)
        else:
            self.kill(child, signal.SIGKILL, None, True)

    def reap(self) -> None:
        strays = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            child = self.children.pop(pid, None)
            strays = True
            for holder in [holder for holder, spare in self.spares.items() if spare.pid == pid]:  # killed
                self.end_spare(holder)
            if child is None:
                continue
            if child.kind == "holder":
                self.end_spare(pid)
                self.leave(child.confined.get("groups", ()))
            code = os.waitstatus_to_exitcode(status)
            if child.channel.fileno() >= 0:
                self.tell(child.channel, {"exit": code if code >= 0 else 128 - code})
        if strays and not self.nested:  # a bwrap init whose monitor died while it was being set up
            for pid in children(os.getpid()):
                if pid not in self.children and pid not in [spare.pid for spare in self.spares.values()]:
                    send_signal([pid], signal.SIGKILL)

    def end_spare(self, holder: int) -> None:
        spare = self.spares.pop(holder, None)
        if spare is not None:
            spare.end()

    def leave(self, groups: confine.Groups) -> None:
        """Remove control groups whose sandbox has ended, later where one of its processes is not quite gone."""
        self.leaving.extend(confine.remove_groups(groups))

    def tell(self, channel: socket.socket, body: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            channel.send(json.dumps(body).encode())

    def end_all(self) -> None:
        """Kill everything below us, whatever it forks meanwhile, and wait for it."""
        for holder in list(self.spares):
            self.end_spare(holder)
        for child in list(self.children.values()):
            self.end(child)
        deadline = time.monotonic() + 4.0
        hard = self.nested
        while time.monotonic() < deadline:
            self.reap()
            self.leaving = confine.remove_groups(self.leaving)
            left = tree(children(os.getpid()))
            if not left and not children(os.getpid()) and not self.leaving:
                return
            if hard or time.monotonic() > deadline - 2.0:
                send_signal(left, signal.SIGSTOP)  # so that no fork escapes the next look
                send_signal(tree(children(os.getpid())), signal.SIGKILL)
            time.sleep(0.002)  # noqa: TID251  # no event loop here


def main() -> None:
    keep = int(sys.argv[1])
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):
                os.close(fd)
    os.setsid()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.set_inheritable(keep, False)
    gc.freeze()
    Spawner(socket.socket(fileno=keep), nested=False, adopts="--no-adopt" not in sys.argv).serve()


if __name__ == "__main__":
    main()
