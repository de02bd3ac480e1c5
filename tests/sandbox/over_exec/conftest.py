"""A back end whose sandboxes can do one thing, run a program: bubblewrap's, with the rest taken away."""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence

import pytest

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols import OutputCap, Sandbox, SandboxSpec
from agentkit.protocols.sandbox_spec import Capabilities
from agentkit.sandbox import BwrapBackend
from agentkit.sandbox.over_exec import ExecSandbox


class BwrapChannel:
    """`run this program` in a bubblewrap sandbox; counts, and fails where asked."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.calls = 0
        self.fail: Exception | None = None

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        stdin: Iterable[bytes],
        on_output: Callable[[bytes], None],
        timeout_s: float | None,
    ) -> None:
        self.calls += 1
        if self.fail is not None:
            raise self.fail
        cap = OutputCap(0, 0)
        result = await self.sandbox.exec(argv, cwd="/", stdin=b"".join(stdin), cap=cap, on_output=on_output)
        if result.exit_code == 137 and not await self.sandbox.alive():
            raise SandboxDead("the sandbox is gone")


class OverExecBackend:
    """Sandboxes over `BwrapChannel`."""

    isolated = True

    def __init__(self, channel: type[BwrapChannel] = BwrapChannel) -> None:
        self._inner = BwrapBackend()
        self._channel = channel
        self.channels: list[BwrapChannel] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(isolated=True)

    async def start(self, spec: SandboxSpec, /) -> ExecSandbox:
        self.capabilities.check(spec, "over-exec")
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        inner = await self._inner.start(SandboxSpec(cwd=spec.cwd, read_limit_bytes=spec.read_limit_bytes))
        channel = self._channel(inner)
        self.channels.append(channel)

        async def poll() -> str | None:
            return None if await inner.alive() else "has ended"

        sandbox = ExecSandbox("over-exec", spec, channel, poll=poll, end=inner.close)
        try:
            await sandbox.open()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox


@pytest.fixture
def channel_type() -> type[BwrapChannel]:
    return BwrapChannel


@pytest.fixture
def backend(channel_type: type[BwrapChannel]) -> OverExecBackend:
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("bubblewrap is not installed")
    return OverExecBackend(channel_type)
