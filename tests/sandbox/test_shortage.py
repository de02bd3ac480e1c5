"""A process that runs out of descriptors, or forks, while it has sandboxes: errors that say so, and nothing lost."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentkit.errors import SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import BwrapBackend, HostBackend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


@contextmanager
def room_for(more: int) -> Iterator[None]:
    """No more than `more` descriptors can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    holes = highest + 1 - open_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + max(0, more - holes), hard))
    filled = [os.open(os.devnull, os.O_RDONLY) for _ in range(max(0, holes - more))]
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filled:
            os.close(fd)


@pytest.mark.parametrize("kind", ["bwrap", "host"])
async def test_a_start_without_descriptors_is_an_error_and_keeps_none(kind: str, tmp_path: Path):
    backend = BwrapBackend() if kind == "bwrap" else HostBackend(directory=tmp_path)
    if isinstance(backend, BwrapBackend) and (why := backend.available()) is not None:
        pytest.skip(why)
    async with backend:
        await (await backend.start(SandboxSpec())).close()
        before = open_descriptors()
        failures = 0
        for more in range(1, 40):
            with room_for(more):
                try:
                    sandbox = await backend.start(SandboxSpec())
                except SandboxError:
                    failures += 1
                else:
                    await sandbox.close()
            assert open_descriptors() == before, f"with room for {more}"
        assert 3 < failures < 39
        async with await backend.start(SandboxSpec()) as sandbox:
            assert (await sandbox.run("echo well")).text == "well\n"


async def test_a_fork_of_ours_that_ends_takes_no_snapshot_along(tmp_path: Path):
    backend = BwrapBackend(directory=tmp_path)
    if (why := backend.available()) is not None or not backend.capabilities.snapshots:
        pytest.skip(why or "no snapshots here")
    async with backend, await backend.start(SandboxSpec()) as sandbox:
        await sandbox.run("echo kept > file")
        async with await sandbox.snapshot() as snapshot:
            pid = os.fork()
            if pid == 0:  # as the end of the interpreter does
                try:
                    for layer in snapshot.layers:
                        assert layer._finalizer is not None
                        layer._finalizer()
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            async with await backend.start(SandboxSpec(snapshot=snapshot)) as again:
                assert (await again.run("cat file")).text == "kept\n"
        assert (await sandbox.run("cat file")).text == "kept\n"
    assert list(tmp_path.iterdir()) == []
