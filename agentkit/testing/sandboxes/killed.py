"""The program that `LeakSuite` kills: starts, uses and closes sandboxes until it is.

Run with an event loop and a mark as arguments, and on standard input Python source that binds `backend`.
"""

import sys
from typing import Any

import anyio

from agentkit.protocols import SandboxBackend, SandboxSpec
from agentkit.sandbox.leaks import owner
from agentkit.testing.sandboxes.suite import opened

AT_ONCE = 3


async def work(backend: SandboxBackend, spec: SandboxSpec, mark: str) -> None:
    """Make and close sandboxes without end."""

    async def one() -> None:
        while True:
            sandbox = await backend.start(spec)
            await sandbox.run(f"sleep {mark} & (setsid env -i sleep {mark} &) ; trap '' TERM INT HUP")
            await sandbox.exec(["sh", "-c", f"nohup sleep {mark} >/dev/null 2>&1 & sleep 0.05"])
            await sandbox.write("file", b"x" * 10_000)
            await sandbox.close()

    sys.stdout.write(f"ready {owner()}\n")
    sys.stdout.flush()
    async with opened(backend), anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(one)


def main() -> None:
    """Run what standard input binds."""
    bound: dict[str, Any] = {}
    exec(sys.stdin.read(), bound)  # noqa: S102  # a test's own recipe
    anyio.run(work, bound["backend"], bound.get("spec", SandboxSpec()), sys.argv[2], backend=sys.argv[1])


if __name__ == "__main__":
    main()
