"""Sandboxes that do not start, or die: what is tried again, what the policy hears, and what ends the rollout."""

import os
import signal
from collections.abc import Callable

import anyio
import pytest

from agentkit import Agent, Budget, ExitReason, OutcomePolicy
from agentkit import Task as AkTask
from agentkit.envs import SandboxEnv
from agentkit.errors import SandboxDead, SandboxError, ToolError
from agentkit.models import ScriptedModel
from agentkit.protocols import Observation, Sandbox, SandboxBackend, SandboxSpec, Shell, Task
from agentkit.sandbox import BwrapBackend, EmbeddedSandbox, HostBackend, StartPolicy
from agentkit.tools import tool

pytestmark = pytest.mark.slow
QUICK = StartPolicy(attempts=3, first_wait_s=0.01)


class Counting:
    """A real back end whose starts can be made to fail, and that knows the specs and sandboxes it was asked for."""

    def __init__(self, fail: Callable[[int], SandboxError | None] = lambda number: None) -> None:
        self.inner: SandboxBackend = BwrapBackend() if BwrapBackend().available() is None else HostBackend()
        self.fail = fail
        self.specs: list[SandboxSpec] = []
        self.made: list[EmbeddedSandbox] = []

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        self.specs.append(spec)
        if error := self.fail(len(self.specs)):
            raise error
        sandbox = await self.inner.start(spec)
        assert isinstance(sandbox, EmbeddedSandbox)
        self.made.append(sandbox)
        return sandbox


async def kill(sandbox: EmbeddedSandbox) -> None:
    os.kill(sandbox._keeper.pid, signal.SIGKILL)
    with anyio.fail_after(10):
        while await sandbox.alive():
            await anyio.sleep(0.01)


async def test_a_start_that_fails_for_now_is_tried_again() -> None:
    backend = Counting(lambda number: SandboxError("busy", retryable=True) if number < 3 else None)
    env = SandboxEnv(backend, starts=QUICK)
    await env.start(Task("t"))
    await env.close()
    assert (len(backend.specs), len(backend.made)) == (3, 1)


async def test_a_start_that_fails_for_good_is_not() -> None:
    backend = Counting(lambda number: SandboxError("no such image"))
    env = SandboxEnv(backend, starts=QUICK)
    with pytest.raises(SandboxError, match="no such image"):
        await env.start(Task("t"))
    await env.close()
    assert len(backend.specs) == 1


async def test_without_restarts_a_death_is_final() -> None:
    backend = Counting()
    env = SandboxEnv(backend)
    await env.start(Task("t"))
    await kill(backend.made[0])
    with pytest.raises(SandboxDead):
        await env.run("true")
    await env.close()
    assert len(backend.made) == 1


async def test_the_call_that_finds_it_dead_says_so_and_the_next_has_a_fresh_one() -> None:
    backend = Counting()
    prepared: list[str] = []

    async def setup(sandbox: Sandbox, task: Task) -> None:
        prepared.append(task.id)
        await sandbox.write("from_setup", b"1")

    env = SandboxEnv(backend, setup=setup, files={"given": "2"}, commands=["echo 3 > made"], restarts=2)
    await env.start(Task("t"))
    await env.write("mine", b"4")
    for number in (1, 2):
        await kill(backend.made[-1])
        left = 2 - number
        with pytest.raises(ToolError, match=rf"replaced by a fresh one.*\({left} of 2 replacements left\)"):
            await env.read("given")
        assert (await env.run("cat from_setup given made; ls mine 2>/dev/null")).text == "123\n"
        assert env.restarted == number
    await kill(backend.made[-1])
    with pytest.raises(SandboxDead):
        await env.run("true")
    await env.close()
    assert prepared == ["t", "t", "t"]
    assert [await sandbox.alive() for sandbox in backend.made] == [False] * 3


async def test_calls_side_by_side_cause_one_restart() -> None:
    backend = Counting()
    env = SandboxEnv(backend, restarts=3)
    await env.start(Task("t"))
    await kill(backend.made[0])
    heard: list[str] = []

    async def call() -> None:
        with pytest.raises(ToolError) as caught:
            await env.run("true")
        heard.append(str(caught.value))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(call)
    await env.close()
    assert len(backend.made) == 2
    assert len(heard) == 4
    assert all("replaced" in text for text in heard)


async def test_a_restart_that_fails_ends_the_world_and_leaves_nothing() -> None:
    backend = Counting()

    async def setup(sandbox: Sandbox, task: Task) -> None:
        if len(backend.made) > 1:
            raise SandboxError("the second time it does not work")

    env = SandboxEnv(backend, setup=setup, restarts=5)
    await env.start(Task("t"))
    await kill(backend.made[0])
    with pytest.raises(SandboxDead, match="no fresh one could be had: the second time"):
        await env.run("true")
    assert [await sandbox.alive() for sandbox in backend.made] == [False, False]
    await env.close()


async def test_a_restart_that_is_cut_short_leaves_nothing_and_the_next_call_tries_again() -> None:
    backend = Counting()

    async def setup(sandbox: Sandbox, task: Task) -> None:
        if len(backend.made) == 2:
            scope.cancel()
            await anyio.sleep(60)

    env = SandboxEnv(backend, setup=setup, restarts=2)
    await env.start(Task("t"))
    await kill(backend.made[0])
    with anyio.CancelScope() as scope:
        await env.run("true")
    assert scope.cancelled_caught
    assert [await sandbox.alive() for sandbox in backend.made] == [False, False]
    with pytest.raises(ToolError, match="replaced"):
        await env.run("true")
    assert (await env.run("echo on")).text == "on\n"
    await env.close()
    assert not await backend.made[-1].alive()


async def test_a_sandbox_without_a_lifetime_gets_what_the_rollout_has() -> None:
    backend = Counting()

    @tool
    async def work(shell: Shell) -> Observation:
        """Work."""
        await kill(backend.made[0])
        await shell.run("true")
        return Observation("never")

    script = ['<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>', "Done."]
    budget = Budget(trajectory_s=600, reward_s=100, grace_s=5, tool_s=60)
    agent = Agent(ScriptedModel(script), env=lambda: SandboxEnv(backend, restarts=1), tools=[work], budget=budget)
    trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert "replaced by a fresh one" in trajectory.turns[0].observations[0].content
    first, second = (spec.lifetime_s for spec in backend.specs)
    assert first is not None
    assert second is not None
    assert 600 < second < first <= 600 + 100 + 2 * 5


async def test_the_specs_own_lifetime_stands_within_a_rollout() -> None:
    backend = Counting()
    agent = Agent(ScriptedModel(["Done."]), env=lambda: SandboxEnv(backend, SandboxSpec(lifetime_s=70)))
    await agent.run("Go.")
    assert [spec.lifetime_s for spec in backend.specs] == [70]


async def test_after_the_last_restart_the_rollout_ends_as_env_dead() -> None:
    backend = Counting()

    @tool
    async def break_it(shell: Shell) -> Observation:
        """Break it."""
        await kill(backend.made[-1])
        await shell.run("true")
        return Observation("never")

    call = '<tool_call>\n{"name": "break_it", "arguments": {}}\n</tool_call>'
    agent = Agent(
        ScriptedModel([call] * 3),
        env=lambda: SandboxEnv(backend, restarts=1),
        tools=[break_it],
        outcomes=OutcomePolicy(retries=0),
    )
    trajectory = await agent.run(AkTask("t", "Go."))
    assert trajectory.exit_reason is ExitReason.ENV_DEAD
    assert len(trajectory.turns) == 2
