# ruff: noqa: S101  # pytest tests
"""How late limits strike, and what endless output costs."""

import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import anyio

from agentkit.protocols import ExecResult, Sandbox, SandboxBackend
from agentkit.testing.sandboxes.suite import SandboxSuite, running, unique_s

Ask = Callable[[Sandbox, str, float | None], Awaitable[ExecResult]]


class BoundsSuite(SandboxSuite):
    """Bounds that hold on a busy machine: medians, `generosity` times what is promised on an idle one."""

    generosity: ClassVar[float] = 10.0
    """So many times what an idle machine needs is allowed."""
    polite_s: ClassVar[float] = 0.05
    """How long after its limit a polite command is gone, seconds."""
    stubborn_s: ClassVar[float] = 0.6
    """How long after its limit one is gone that ignores all but SIGKILL, seconds."""
    cancelled_s: ClassVar[float] = 0.15
    """How long after a cancel a command is gone, seconds."""
    output_bytes: ClassVar[int] = 5_000_000
    """What endless output may add to this process, bytes."""
    tries: ClassVar[int] = 3
    """The median of so many counts."""

    async def test_a_polite_command_is_gone_at_its_limit(self, backend: SandboxBackend) -> None:
        await self._lateness(backend, "exec sleep {mark}", 0.2, self.polite_s)

    async def test_a_stubborn_command_is_gone_soon_after_its_limit(self, backend: SandboxBackend) -> None:
        script = "trap '' INT TERM; (setsid sleep {mark} &); while :; do sleep {mark}; done"
        await self._lateness(backend, f'bash -c "{script}"', 0.2, self.stubborn_s)

    async def test_a_cancelled_command_is_gone_at_once(self, backend: SandboxBackend) -> None:
        script = "trap '' INT TERM; (setsid sleep {mark} &); while :; do sleep {mark}; done"
        await self._lateness(backend, f'bash -c "{script}"', None, self.cancelled_s)

    async def test_endless_output_costs_no_memory(self, backend: SandboxBackend) -> None:
        results: list[ExecResult] = []

        async def endless(ask: Ask, limit_s: float) -> None:
            results.append(await ask(sandbox, "yes", limit_s))

        async with self.started(backend) as sandbox:
            await endless(_run, 0.3)  # what is bought once: buffers, code
            await endless(_exec, 0.3)
            results.clear()
            before = most = _resident()
            async with anyio.create_task_group() as group:
                group.start_soon(endless, _run, 3.0)
                group.start_soon(endless, _exec, 3.0)
                while len(results) < 2:
                    most = max(most, _resident())
                    await anyio.sleep(0.02)
        for result in results:
            assert (result.timed_out, result.truncated) == (True, True)
            assert result.total_bytes > 2 * self.output_bytes, "so little would fit"
        assert most - before < self.output_bytes

    async def _lateness(self, backend: SandboxBackend, script: str, limit_s: float | None, promised_s: float) -> None:
        async with self.started(backend) as sandbox:
            for ask in (_run, _exec):
                late: list[float] = []
                for _ in range(self.tries):
                    mark = unique_s()
                    began = time.monotonic()
                    with anyio.move_on_after(0.4 if limit_s is None else None) as scope:
                        result = await ask(sandbox, script.replace("{mark}", mark), limit_s)
                        assert result.timed_out
                    assert scope.cancelled_caught == (limit_s is None)
                    late.append(time.monotonic() - began - (0.4 if limit_s is None else limit_s))
                    assert await running(sandbox, mark) == 0
                assert min(late) >= 0.0, "not before its time"
                assert statistics.median(late) < promised_s * self.generosity, late


async def _run(sandbox: Sandbox, script: str, limit_s: float | None) -> ExecResult:
    return await sandbox.run(script, timeout_s=limit_s)


async def _exec(sandbox: Sandbox, script: str, limit_s: float | None) -> ExecResult:
    return await sandbox.exec(["sh", "-c", script], timeout_s=limit_s)


def _resident() -> int:
    """Memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
