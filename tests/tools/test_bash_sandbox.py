"""The shell tool on a real shell."""

import anyio
import pytest

from agentkit.protocols import ObservationStatus, SandboxSpec, ToolCall, ToolContext
from agentkit.sandbox import HostBackend
from agentkit.tools import bash

pytestmark = pytest.mark.slow


async def test_real_commands_read_as_a_policy_should_read_them():
    made = bash(head_chars=20, tail_chars=20)
    async with HostBackend() as backend:
        sandbox = await backend.start(SandboxSpec())
        try:

            async def shown(command: str, **arguments: float):
                context = ToolContext(ToolCall("c", "execute_bash", {}), sandbox, "t#0", anyio.current_time() + 60)
                return await made.call({"command": command, **arguments}, context)

            assert (await shown("true")).content == "The command printed nothing.\n[exit code 0]"
            assert (await shown("X=1; printf '\\033[1mbold\\033[0m'; (exit 3)")).content == "bold\n[exit code 3]"
            assert (await shown("echo $X")).content == "1\n[exit code 0]"
            long = await shown("seq 100000")
            assert long.content == (
                "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n[... 588855 bytes of output left out ...]\n"
                "\n99998\n99999\n100000\n[exit code 0]"
            )
            assert (long.metadata["total_bytes"], long.metadata["left_out_bytes"]) == (588895, 588855)
            late = await shown("echo partial; sleep 60", timeout_s=1)
            assert late.content == (
                "partial\n[timed out after 1 s; partial output above]\n"
                "[shell restarted: directory and exported variables are kept, functions and aliases are lost]"
            )
            assert late.status is ObservationStatus.TIMEOUT
            assert "[shell restarted" in (await shown("exit 7")).content
        finally:
            await sandbox.close()
