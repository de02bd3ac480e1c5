import anyio
import pytest

from agentkit.envs import SandboxEnv
from agentkit.errors import SandboxDead
from agentkit.protocols import Env, ExecResult, Files, Message, Sandbox, SandboxSpec, Shell, Task, user
from agentkit.sandbox import BwrapBackend, HostBackend

pytestmark = pytest.mark.slow


def _backend() -> BwrapBackend | HostBackend:
    return BwrapBackend() if BwrapBackend().available() is None else HostBackend()


async def test_an_env_that_is_a_shell_and_files() -> None:
    async def setup(sandbox: Sandbox, task: Task) -> list[Message]:
        await sandbox.write("given.txt", str(task.data["text"]).encode())
        return [user("Look around.")]

    env = SandboxEnv(_backend(), SandboxSpec(env={"WHO": "me"}), setup=setup)
    for protocol in (Env, Shell, Files):
        assert isinstance(env, protocol)
    with pytest.raises(SandboxDead):
        await env.run("true")
    opening = await env.start(Task("t", "x", data={"text": "hello"}))
    try:
        assert opening == [user("Look around.")]
        result = await env.run("cat given.txt; echo $WHO")
        assert isinstance(result, ExecResult)
        assert result.text == "hellome\n"
        assert (await env.exec(["cat"], stdin=b"in")).output == b"in"
        await env.write("out", b"1")
        assert await env.read("out") == b"1"
    finally:
        await env.close()
    with pytest.raises(SandboxDead, match="no sandbox"):
        await env.read("out")


async def test_close_after_a_failed_or_missing_start() -> None:
    await SandboxEnv(_backend()).close()

    async def setup(sandbox: Sandbox, task: Task) -> None:
        raise LookupError("no such repository")

    env = SandboxEnv(_backend(), setup=setup)
    with pytest.raises(LookupError):
        await env.start(Task("t"))
    sandbox = env.sandbox
    await env.close()
    assert not await sandbox.alive()


async def test_close_after_a_cancelled_start() -> None:
    async def setup(sandbox: Sandbox, task: Task) -> None:
        scope.deadline = anyio.current_time() + 0.3  # from here on: a sandbox takes its time on a busy machine
        await sandbox.run("sleep 60")

    env = SandboxEnv(_backend(), setup=setup)
    with anyio.CancelScope() as scope:
        await env.start(Task("t"))
    assert scope.cancelled_caught
    sandbox = env.sandbox
    await env.close()
    assert not await sandbox.alive()
