# ruff: noqa: S101  # pytest tests
"""Using up what all share: processes, memory, disk. Each where the back end claims to keep that limit."""

import contextlib

from agentkit.errors import SandboxDead
from agentkit.protocols import Sandbox, SandboxBackend
from agentkit.protocols.sandbox_spec import Limits
from agentkit.testing.sandboxes.intrusion import IsolatedSuite
from agentkit.testing.sandboxes.suite import capabilities_of, need, running, unique_s

MB = 1 << 20
_BOMB = "b() { [ $1 = 0 ] || b $(($1 - 1)) | b $(($1 - 1)) & }; b 8"  # 500 processes where nothing contains it


class ExhaustionTests(IsolatedSuite):
    """Tests of limits: what is beyond them fails inside, and everybody else goes on."""

    async def test_a_fork_bomb_is_contained(self, backend: SandboxBackend) -> None:
        need(backend, "processes" in capabilities_of(backend).limits, "limits.processes")
        mark = unique_s()
        async with self.started(backend) as other:
            async with self.started(backend, limits=Limits(processes=50)) as sandbox:
                many = f"for i in $(seq 120); do sleep {mark} & done; wait"
                await sandbox.exec(["sh", "-c", many], timeout_s=2.0)
                await sandbox.run(f"for i in $(seq 120); do sleep {mark} & done 2>/dev/null; sleep 0.3", timeout_s=5.0)
                with contextlib.suppress(SandboxDead):
                    count = await sandbox.run("ls -d /proc/[0-9]* | wc -l", timeout_s=10.0)
                    assert count.exit_code != 0 or int(count.text.split()[-1]) <= 55
                await _survives(other)
                with contextlib.suppress(SandboxDead):
                    await sandbox.run(_BOMB, timeout_s=2.0)
                await _survives(other)
            await _survives(other)
            assert await running(other, mark) == 0

    async def test_memory_is_bounded(self, backend: SandboxBackend) -> None:
        need(backend, "memory_bytes" in capabilities_of(backend).limits, "limits.memory_bytes")
        async with self.started(backend) as other:
            async with self.started(backend, limits=Limits(memory_bytes=96 * MB)) as sandbox:
                small = "head -c 20000000 /dev/zero | tail -c 20000000 | wc -c"  # tail keeps all of it
                assert (await sandbox.exec(["sh", "-c", small])).text.split() == ["20000000"]
                with contextlib.suppress(SandboxDead):
                    large = small.replace("20000000", "400000000")
                    for result in (
                        await sandbox.exec(["bash", "-o", "pipefail", "-c", large], timeout_s=30.0),
                        await sandbox.run(f"set -o pipefail; {large}", timeout_s=30.0),
                    ):
                        assert result.exit_code != 0
                        assert "400000000" not in result.text.splitlines(), "a shell may say which command was killed"
                await _survives(other)
            await _survives(other)

    async def test_disk_is_bounded(self, backend: SandboxBackend) -> None:
        need(backend, "disk_bytes" in capabilities_of(backend).limits, "limits.disk_bytes")
        limits = Limits(disk_bytes=16 * MB)
        async with self.started(backend) as other, self.started(backend, limits=limits) as sandbox:
            assert (await sandbox.run(f"head -c {4 * MB} /dev/zero > small && rm small")).exit_code == 0
            fill = f"for d in . /tmp $HOME; do head -c {64 * MB} /dev/zero > $d/large && echo whole; done"
            result = await sandbox.run(fill, timeout_s=30.0)
            assert "whole" not in result.text
            sizes = "cat ./large /tmp/large $HOME/large 2>/dev/null | wc -c"
            assert int((await sandbox.run(sizes, timeout_s=30.0)).text) <= 20 * MB
            await sandbox.run("rm -f ./large /tmp/large ~/large")
            await _survives(sandbox)
            await _survives(other)

    async def test_processors_are_shared(self, backend: SandboxBackend) -> None:
        need(backend, "cpus" in capabilities_of(backend).limits, "limits.cpus")
        async with self.started(backend, limits=Limits(cpus=0.1)) as sandbox:
            script = "for i in 1 2; do timeout 3 sh -c 'while :; do :; done' & done; wait; times"
            spent = (await sandbox.exec(["bash", "-c", script], timeout_s=30.0)).text.split()
            assert len(spent) >= 4
            children_s = sum(_seconds(word) for word in spent[2:4])
            assert children_s < 3.0 * 0.1 * 2, "two loops for three seconds, on a tenth of a processor"


async def _survives(sandbox: Sandbox) -> None:
    assert (await sandbox.run("echo on", timeout_s=20.0)).text == "on\n"
    await sandbox.write("still", b"on")
    assert await sandbox.read("still") == b"on"


def _seconds(word: str) -> float:
    """`0m1.5s`, as a shell's `times` says it."""
    minutes, _, seconds = word.rstrip("s").partition("m")
    return 60.0 * float(minutes) + float(seconds)
