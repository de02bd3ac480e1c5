"""keeper.py COMMAND...: runs a command in a session of its own until stdin ends, then ends the whole session.

Whoever holds the other end of stdin may die by any signal: the command does not outlive it.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 10.0


def members(session: int) -> list[int]:
    """The processes of a session, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if fields[0] != "Z" and int(fields[3]) == session:
                found.append(int(entry.name))
    return found


def end(child: "subprocess.Popen[bytes]") -> None:
    """End all of the child's session: asked at first, then by force."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        limit = time.monotonic() + patience_s
        targets = [child.pid] if number is signal.SIGTERM and child.poll() is None else members(child.pid)
        for pid in targets:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while time.monotonic() < limit:
            child.poll()
            if not members(child.pid):
                return
            time.sleep(0.05)


def main(command: list[str]) -> int:
    """Run `command`; its exit status, or 0 where stdin ended first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # stdin says when it is over
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,  # ours says the session's number, and is read no further
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGTERM)],
    )
    os.write(1, f"{child.pid}\n".encode())
    try:
        while child.poll() is None:
            readable, _, _ = select.select([0], [], [], 0.2)
            if readable and not os.read(0, 4096):
                break
        return child.poll() or 0
    finally:
        end(child)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
