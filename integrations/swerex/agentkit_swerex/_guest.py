"""What runs in the sandbox beside SWE-ReX's server: starts programs, passes on what they say. Standard library only.

    server ──sh, cat──▶ FIFOs ──▶ guest ──main socket──▶ spawner (agentkit/sandbox/_spawner_main.py) ──▶ programs
                                   └──────── their pipes ────────┘

The server runs one thing at a time and cannot be interrupted, so it is only ever asked for short ones: hand a request
(one line of JSON) to `in`, wait for the answer at `out.<seq>`, no longer than the request says. Requests are counted;
one that comes twice, because its answer was lost on the way, gets the same answer and does nothing again.

It ends, and all programs with it, at the sandbox's lifetime, when nobody has asked anything for `orphan_s`, or with the
server; with `own` it takes the server along, so that a container ends also where nobody is left to remove it.
"""

import base64
import contextlib
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit_swerex._guest_program import Program, as_text, waiting
    from agentkit_swerex._guest_talk import PIECE, Talk
else:  # run by path and isolated: what belongs to it lies beside it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    _program, _talk = importlib.import_module("_guest_program"), importlib.import_module("_guest_talk")
    Program, as_text, waiting = _program.Program, _program.as_text, _program.waiting
    PIECE, Talk = _talk.PIECE, _talk.Talk
    sys.path.pop(0)

SETTLE_S = 0.002
FILE_LIMIT = 8 << 20


def ticks() -> int:
    """Now, in the unit and epoch of process start times in /proc."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


class Guest:
    """One loop over the requests, the programs' pipes and channels, and the clock."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.directory = options["directory"]
        self.epoll = select.epoll()
        self.outs = select.epoll()
        self.listening = False
        self.programs: dict[int, Program] = {}
        self.by_fd: dict[int, tuple[Program, int]] = {}
        self.main = self.start_spawner()
        self.epoll.register(self.main.fileno(), 0)  # a hang-up is told anyway
        self.asked: dict[str, Any] | None = None
        self.answer_by = 0.0
        self.first_event = 0.0
        self.events: list[list[Any]] = []
        self.size = 0
        self.leaving = False
        self.talk = Talk(self.directory, self.epoll)
        self.ends_at = time.monotonic() + options["lifetime_s"] if options["lifetime_s"] else float("inf")
        self.server = -1
        with contextlib.suppress(OSError, AttributeError):
            self.server = os.pidfd_open(options["server"])
            self.epoll.register(self.server, select.EPOLLIN)

    def start_spawner(self) -> socket.socket:
        path = f"{self.directory}/_spawner_main.py"  # brought along, with what it imports
        found = importlib.util.spec_from_file_location("_spawner_main", path)
        if found is None or found.loader is None:
            raise OSError(f"no module at {path}")
        module: Any = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                keep = theirs.fileno()
                for fd in map(int, os.listdir("/proc/self/fd")):
                    if fd > 2 and fd != keep:
                        with contextlib.suppress(OSError):
                            os.close(fd)
                module.Spawner(theirs, nested=True).serve()
            finally:
                os._exit(0)
        theirs.close()
        return ours

    def serve(self) -> None:
        while True:
            self.listen(self.asked is not None and self.size < self.asked["room"])
            for fd, event in self.epoll.poll(self.patience()):
                if fd == self.talk.incoming:
                    for asked in self.talk.hear():
                        self.request(asked)
                elif fd == self.talk.outgoing:
                    self.talk.deliver()
                elif fd == self.outs.fileno():
                    self.read_outs()
                elif fd in (self.server, self.main.fileno()):
                    return
                elif fd in self.by_fd:
                    self.serve_program(*self.by_fd[fd], event)
            now = time.monotonic()
            if now > min(self.ends_at, self.talk.heard + self.options["orphan_s"]):
                return
            if self.asked is not None and (
                now >= self.answer_by or (self.events and (now >= self.first_event + SETTLE_S or self.is_full))
            ):
                self.answer()
            if self.talk.left is not None and self.talk.outgoing < 0:
                self.talk.open_way()
            if self.leaving and (self.talk.left is None or now > self.talk.heard + 1.0):
                return

    @property
    def is_full(self) -> bool:
        return self.asked is not None and self.size >= self.asked["room"]

    def patience(self) -> float:
        now = time.monotonic()
        wakes = [5.0, self.ends_at - now, self.talk.heard + self.options["orphan_s"] - now]
        if self.asked is not None:
            wakes.append(self.answer_by - now)
            if self.events:
                wakes.append(self.first_event + SETTLE_S - now)
        if self.talk.left is not None and self.talk.outgoing < 0:
            # Whoever asked comes to fetch the answer about now, or never.
            wakes.append(0.001 if now < self.answer_by + 2.0 else 0.2)
        return max(0.0, float(min(wakes)))

    def listen(self, wanted: bool) -> None:
        if wanted != self.listening:
            self.listening = wanted
            if wanted:
                self.epoll.register(self.outs.fileno(), select.EPOLLIN)
            else:
                self.epoll.unregister(self.outs.fileno())

    def request(self, asked: dict[str, Any]) -> None:
        asked["at"] = ticks()
        self.answer_by = self.talk.heard + float(asked["wait"])
        self.asked = asked
        for item in asked["items"]:
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                self.item(item)

    def item(self, item: list[Any]) -> None:
        verb, number, *rest = item
        if verb == "spawn":
            self.spawn(number, *rest)
            return
        if verb == "bye":
            self.leaving = True
            self.answer_by = 0.0
        program = self.programs.get(number)
        if program is None:
            return
        if verb == "say" and program.channel is not None:
            with contextlib.suppress(OSError):
                program.channel.send(json.dumps(rest[0]).encode())
        elif verb in ("drop", "forget"):
            self.hang_up(program)
        elif verb == "in" and rest[0] in program.ins:
            program.ins[rest[0]][1].extend(base64.b64decode(rest[1]))
            self.write(program, rest[0])
        elif verb == "shut":
            program.shut.add(rest[0])
            self.write(program, rest[0])
        elif verb == "deaf":
            self.close_out(program, rest[0])

    def spawn(self, number: int, body: dict[str, Any], kinds: list[str | int]) -> None:
        """Start a program. `kinds` says what each of its descriptors is, or which earlier one it is the same as."""
        far: list[int] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        program = Program(number, ours)
        memory = os.memfd_create("agentkit", os.MFD_CLOEXEC)
        with open(os.dup(memory), "wb") as file:
            file.write(json.dumps(body).encode())
        for target, kind in zip(body["targets"], kinds, strict=True):
            if isinstance(kind, int):
                far.append(os.dup(far[kind]))
                continue
            if kind == "file":
                fd = os.memfd_create("agentkit", os.MFD_CLOEXEC)
                os.fchmod(fd, 0o666)
                program.files[target] = os.dup(fd)
                far.append(fd)
                continue
            reading, writing = os.pipe()
            near, away = (writing, reading) if kind == "in" else (reading, writing)
            os.set_blocking(near, False)
            far.append(away)
            self.by_fd[near] = (program, target)
            if kind == "in":
                program.ins[target] = (near, bytearray())
            else:
                program.outs[target] = near
                self.outs.register(near, select.EPOLLIN)
        self.programs[number] = program
        self.by_fd[ours.fileno()] = (program, -1)
        self.epoll.register(ours.fileno(), select.EPOLLIN)
        socket.send_fds(self.main, [b"r"], [memory, theirs.fileno(), *far])
        for fd in (memory, *far):
            os.close(fd)
        theirs.close()

    def serve_program(self, program: Program, target: int, event: int) -> None:
        if target >= 0:
            self.write(program, target)
            return
        if program.channel is None:
            return
        try:
            data = program.channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        said = json.loads(data) if data else {}
        if not data or "exit" in said:
            self.read_program(program)
            for target, fd in program.files.items():
                self.note(["file", program.number, target, as_text(os.pread(fd, FILE_LIMIT, 0))])
        if "pid" in said:
            self.events.append(["said", program.number, said])  # its output, or even its end, may come along
            self.first_event = self.first_event or time.monotonic() + 4 * SETTLE_S
        else:
            self.note(["said", program.number, said] if data else ["lost", program.number])
        if not data or "error" in said:
            self.forget(program)
        elif "exit" in said:  # its channel stays: what it has left behind may yet be killed
            self.close_pipes(program)

    def note(self, event: list[Any], size: int = 64) -> None:
        now = time.monotonic()
        self.first_event = min(self.first_event or now, now)
        self.events.append(event)
        self.size += size

    def read_outs(self) -> None:
        seen: set[int] = set()
        for fd, event in self.outs.poll(0):
            if fd not in self.by_fd:
                continue
            program, target = self.by_fd[fd]
            if program.number not in seen and not self.is_full:
                seen.add(program.number)
                self.read_program(program)
            if event & select.EPOLLHUP and not waiting(fd):
                self.note(["eof", program.number, target])
                self.close_out(program, target)

    def read_program(self, program: Program) -> None:
        """Take what is there now. What was printed comes before the status that ends it, on a higher descriptor.

        So the higher ones are looked at first and read last: what was printed before is in the lower ones by then.
        """
        sizes = [(target, fd, waiting(fd)) for target, fd in sorted(program.outs.items(), reverse=True)]
        for target, fd, size in reversed(sizes):
            if size:
                data = os.read(fd, size)
                self.note(["out", program.number, target, as_text(data)], len(data))

    def write(self, program: Program, target: int) -> None:
        if target not in program.ins:
            return
        fd, pending = program.ins[target]
        try:
            while pending:
                del pending[: os.write(fd, pending[:PIECE])]
        except BlockingIOError:
            with contextlib.suppress(FileExistsError):
                self.epoll.register(fd, select.EPOLLOUT)
            return
        except OSError:
            pending.clear()
        with contextlib.suppress(OSError, ValueError):
            self.epoll.unregister(fd)
        if target in program.shut:
            self.close_in(program, target)

    def close_in(self, program: Program, target: int) -> None:
        fd, _ = program.ins.pop(target)
        self.by_fd.pop(fd, None)
        os.close(fd)

    def close_out(self, program: Program, target: int) -> None:
        fd = program.outs.pop(target, -1)
        if fd >= 0:
            self.by_fd.pop(fd, None)
            self.outs.unregister(fd)
            os.close(fd)

    def hang_up(self, program: Program) -> None:
        """Close its channel: the spawner kills it if it still runs."""
        if program.channel is not None:
            self.epoll.unregister(program.channel.fileno())
            self.by_fd.pop(program.channel.fileno(), None)
            program.channel.close()
            program.channel = None
        self.forget(program)

    def close_pipes(self, program: Program) -> None:
        for target in list(program.outs):
            self.close_out(program, target)
        for target in list(program.ins):
            with contextlib.suppress(OSError, ValueError):
                self.epoll.unregister(program.ins[target][0])
            self.close_in(program, target)
        for fd in program.files.values():
            os.close(fd)
        program.files.clear()

    def forget(self, program: Program) -> None:
        self.close_pipes(program)
        if self.programs.pop(program.number, None) is not None:
            self.hang_up(program)

    def answer(self) -> None:
        asked = self.asked
        if asked is None:
            return
        owed = {str(one.number): sum(len(pending) for _, pending in one.ins.values()) for one in self.programs.values()}
        body = {"at": asked["at"], "events": self.events, "owed": {k: v for k, v in owed.items() if v}}
        self.events, self.size, self.first_event, self.asked = [], 0, 0.0, None
        self.talk.answer(body)

    def end(self) -> None:
        """End every program, and the server where it is ours. Does not return."""
        self.main.close()
        with contextlib.suppress(OSError):
            os.waitpid(-1, 0)  # the spawner: it kills all below and waits for that
        for name in os.listdir(self.directory):
            with contextlib.suppress(OSError):
                os.unlink(f"{self.directory}/{name}")
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)
        if self.options["own"]:
            with contextlib.suppress(OSError):
                end_server(self.options["server"])
        os._exit(0)


def end_server(pid: int) -> None:
    """End the server, and with it the container: politely, since its shell takes any failure for a missing server."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        shell = int(file.read().rpartition(b")")[2].split()[1])
    with open(f"/proc/{shell}/cmdline", "rb") as file:
        starts_another = b"swerex-remote" in file.read()
    os.kill(pid, signal.SIGINT)
    for _ in range(20):
        time.sleep(0.1)  # no event loop here
        os.kill(pid, 0)
    if starts_another:
        os.kill(shell, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def main() -> None:
    options = json.loads(sys.argv[1])
    os.umask(0o022)
    os.chmod(options["directory"], 0o700)
    options["server"] = os.getppid()
    os.makedirs(options["cwd"], exist_ok=True)
    os.mkfifo(f"{options['directory']}/in", 0o600)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.write(1, os.read(reading, 65536))
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reading)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):  # whoever started us waits until nobody holds its pipes
        os.dup2(null, fd)
    try:
        guest = Guest(options)
        answer = {"pid": os.getpid(), "env": {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}}
    except Exception as error:
        os.write(writing, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    os.write(writing, json.dumps(answer).encode())
    os.close(writing)
    with contextlib.suppress(Exception):
        guest.serve()
    guest.end()


if __name__ == "__main__":
    main()
