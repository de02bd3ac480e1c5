"""A terminal as a tool: what is typed, what is shown, and what happens when program or terminal end."""

import os
import signal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import Agent, ExitReason
from agentkit.envs import SandboxEnv
from agentkit.errors import ConfigError, SandboxDead, ToolError
from agentkit.models import ScriptedMessageModel
from agentkit.protocols import Interactive, Json, Message, Observation, Task, ToolCall, ToolContext
from agentkit.sandbox import BwrapBackend, EmbeddedSandbox, HostBackend
from agentkit.tools import terminal
from agentkit.tools.terminal_session import keys_of


def here() -> SandboxEnv:
    return SandboxEnv(BwrapBackend() if BwrapBackend().available() is None else HostBackend(), restarts=1)


async def press(tool, env: object, keys: str, **more: Json) -> Observation:
    call = ToolCall("c", "terminal", {"keys": keys, **more})
    context = ToolContext(call, env, "r", anyio.current_time() + 60)
    return await tool.call(call.arguments, context)


async def look(tool, env: object, text: str) -> Observation:
    """What is shown once `text` is."""
    last: Observation | None = None
    with anyio.move_on_after(20):
        while last is None or text not in last.content:
            last = await press(tool, env, "")
        return last
    raise AssertionError(f"never shown: {last}")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ls<Enter>", "ls\r"),
        ("ls\n", "ls\r"),
        ("a\r\nb", "a\rb"),
        ("<C-c><c-c>", "\x03<c-c>"),
        ("<C-[>:wq<ENTER>", "\x1b:wq\r"),
        ("<Up><PageDown><Backspace>", "\x1b[A\x1b[6~\x7f"),
        ("#include <stdio.h> <b>a < b</b>", "#include <stdio.h> <b>a < b</b>"),
        ("", ""),
    ],
)
def test_keys(text: str, keys: str) -> None:
    assert keys_of(text) == keys


@given(st.text(st.characters(exclude_characters="<\r\n")))
def test_text_without_keys_is_typed_as_it_stands(text: str) -> None:
    assert keys_of(text) == text


def test_the_policy_sees_keys_and_a_time_only() -> None:
    spec = terminal().spec
    assert spec.name == "terminal"
    assert set(spec.parameters["properties"]) == {"keys", "timeout_s"}
    assert spec.needs == (Interactive,)
    for wrong in ({"argv": "bash"}, {"argv": []}, {"settle_s": 0}, {"wait_s": -1.0}):
        with pytest.raises(ConfigError):
            terminal(**wrong)


@pytest.mark.slow
async def test_a_shell_a_prompt_and_the_end() -> None:
    tool, env, other = terminal(argv=["bash", "--norc"], settle_s=0.3), here(), here()
    await env.start(Task("t"))
    await other.start(Task("t"))
    try:
        await press(tool, env, "X=7; read -p 'Go on? ' answer; echo $answer$X<Enter>")
        await look(tool, env, "\nGo on?")
        await press(tool, other, "echo -$X-<Enter>")
        await look(tool, other, "\n--\n")  # an env of its own, a terminal too
        await press(tool, env, "yes<Enter>")
        shown = await look(tool, env, "\nyes7\n")
        assert shown.content.splitlines()[-1].startswith("[cursor in row ")
        with pytest.raises(ToolError, match="timeout_s must be greater than 0"):
            await press(tool, env, "", timeout_s=0)
        await press(tool, env, "cat > notes<Enter>two<Enter>lines<Enter><C-d>wc -l notes<Enter>")
        await look(tool, env, "\n2 notes\n")  # each line is typed when the one before has begun
        shown = await press(tool, env, "exit 4<Enter>", timeout_s=30)
        while shown.metadata["exit_code"] is None:
            shown = await press(tool, env, "")
        assert shown.content.endswith("[ended with exit code 4; the next keys start it again]")
        await press(tool, env, "echo fresh$X<Enter>")
        await look(tool, env, "\nfresh\n")
        await press(tool, env, "(sleep 2; kill -9 $$) & exec sleep 100<Enter>", timeout_s=0.4)
        await anyio.sleep(4)
        shown = await press(tool, env, "lost<Enter>")
        assert shown.metadata["exit_code"] == 137, "it had ended since the last call"
        await press(tool, env, "echo again<Enter>")
        await look(tool, env, "\nagain\n")
    finally:
        await env.close()
        await other.close()


@pytest.mark.slow
async def test_a_sandbox_that_died_is_told_of_and_the_next_has_a_terminal() -> None:
    tool, env = terminal(), here()
    await env.start(Task("t"))
    try:
        await press(tool, env, "echo one<Enter>")
        sandbox = env.sandbox
        assert isinstance(sandbox, EmbeddedSandbox)
        os.kill(sandbox._keeper.pid, signal.SIGKILL)
        while await sandbox.alive():
            await anyio.sleep(0.01)
        with pytest.raises(ToolError, match="replaced by a fresh one"):
            await press(tool, env, "echo two<Enter>")
        assert "three" in (await press(tool, env, "echo three<Enter>")).content
        await env.sandbox.close()
        with pytest.raises(SandboxDead):
            await press(tool, env, "echo four<Enter>")
    finally:
        await env.close()


@pytest.mark.slow
async def test_an_agent_edits_with_vim() -> None:
    def call(number: int, keys: str) -> Message:
        return Message("assistant", "", tool_calls=(ToolCall(f"call0000{number}", "terminal", {"keys": keys}),))

    async def judge(trajectory: object, env: SandboxEnv) -> float:
        return float(await env.read("poem.txt") == b"roses\nviolets\n")

    script = [call(0, "vim -u NONE poem.txt<Enter>"), call(1, "iroses<Enter>violets<Esc>:wq<Enter>"), "Done."]
    agent = Agent(ScriptedMessageModel(script), env=here, tools=[terminal], reward=judge)
    trajectory = await agent.run("Write a poem.")
    assert trajectory.exit_reason is ExitReason.FINISHED, trajectory.error
    assert trajectory.score == 1.0
