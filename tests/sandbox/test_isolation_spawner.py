"""The spawner at awkward moments."""

import socket

import anyio
import pytest

from agentkit.sandbox.spawner import hold_spawner, request

pytestmark = pytest.mark.slow


async def test_what_is_ended_as_soon_as_it_is_there_ends() -> None:
    spawner = hold_spawner()
    try:
        for _ in range(20):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, theirs:
                nested = await request(spawner.main, "nest", None, {0: theirs.fileno()})
                nested.end()  # it has forked, and may not have come further
                with anyio.fail_after(3.0):
                    await nested.gone()
                nested.close()
    finally:
        await spawner.release()
