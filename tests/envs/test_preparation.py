"""What a sandbox is given before the policy sees it."""

from pathlib import Path

import attrs
import pytest

from agentkit.envs import SandboxEnv
from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import Interactive, Sandbox, SandboxBackend, SandboxSpec, Task, Transfer
from agentkit.sandbox import BwrapBackend, HostBackend, sandbox_from


def backend_here() -> SandboxBackend:
    return BwrapBackend() if BwrapBackend().available() is None else HostBackend()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"restarts": -1}, r"restarts must be a whole number >= 0, found -1"),
        ({"restarts": True}, r"restarts must be"),
        ({"commands": "make"}, r"commands must be a list of commands, found the text 'make'"),
        ({"tools": [Path("/nowhere/tool")]}, r"tools holds '/nowhere/tool', which is no file"),
        ({"uploads": {"data": Path("/nowhere")}}, r"uploads.data is '/nowhere', which is not on this machine"),
        ({"tools": [Path(__file__), Path(__file__)]}, r"tools has several of one name: test_preparation.py"),
        ({"sandbox": {"type": "host"}}, r"sandbox must be a SandboxConfig, found dict: .*sandbox_from"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SandboxEnv(**arguments)  # type: ignore[arg-type]


def test_a_sandbox_is_said_once() -> None:
    config = sandbox_from({"type": "host"})
    with pytest.raises(ConfigError, match="give the one or the others"):
        SandboxEnv(HostBackend(), sandbox=config)
    with pytest.raises(ConfigError, match="give the one or the others"):
        SandboxEnv(spec=SandboxSpec(), sandbox=config)


@pytest.mark.slow
async def test_tools_uploads_files_commands_and_setup_come_in_this_order(tmp_path: Path) -> None:
    tool = tmp_path / "greet"
    tool.write_text('#!/bin/sh\necho "hello $1 from $WHO"\n')
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/inner.txt").write_text("inner")
    seen: list[str] = []

    async def setup(sandbox: Sandbox, task: Task) -> None:
        seen.append((await sandbox.read("log")).decode())

    env = SandboxEnv(
        backend_here(),
        SandboxSpec(env={"WHO": "spec", "KEPT": "1"}),
        setup=setup,
        tools=[tool],
        uploads={"data": tmp_path / "tree"},
        files={"a/b.txt": "text", "raw": b"\xff\x00"},
        commands=["greet you > log && cat data/inner.txt a/b.txt >> log", "mkdir below && cd below", "export SET=yes"],
        env={"WHO": "env"},
    )
    assert isinstance(env, Transfer)
    assert isinstance(env, Interactive)
    try:
        await env.start(Task("t"))
        assert seen == ["hello you from env\ninnertext"]
        assert await env.read("raw") == b"\xff\x00"
        # the session is where the commands left it, and both ways to run a program find the tool
        assert (await env.run("basename $PWD; echo $SET $KEPT; greet me")).text == "below\nyes 1\nhello me from env\n"
        assert (await env.exec(["greet", "it"])).text == "hello it from env\n"
        assert (await env.exec(["sh", "-c", "echo $MORE"], env={"MORE": "more"})).text == "more\n"
        await env.download("data", tmp_path / "back")
        assert (tmp_path / "back/inner.txt").read_text() == "inner"
        await env.upload(tmp_path / "tree", "again")
        assert await env.read("again/inner.txt") == b"inner"
    finally:
        await env.close()


@pytest.mark.slow
async def test_a_command_that_fails_says_what_it_printed_and_acts_on_no_terminal() -> None:
    env = SandboxEnv(backend_here(), commands=["true", "printf 'no such thing\\033[2J'; exit 3"], files={"f": "x"})
    try:
        with pytest.raises(
            SandboxError, match=r"the set-up command .* ended with 3: 'no such thing\\x1b\[2J'"
        ) as caught:
            await env.start(Task("t"))
        assert "\x1b" not in str(caught.value)
        assert not caught.value.retryable
    finally:
        await env.close()


@pytest.mark.slow
async def test_tools_find_a_place_where_home_cannot_be_written_to(tmp_path: Path) -> None:
    tool = tmp_path / "tool with space"
    tool.write_text("#!/bin/sh\necho works\n")
    env = SandboxEnv(backend_here(), SandboxSpec(env={"HOME": "/proc"}), tools=[tool])
    try:
        await env.start(Task("t"))
        assert (await env.run("'tool with space'")).text == "works\n"
        assert (await env.exec(["tool with space"])).text == "works\n"
    finally:
        await env.close()


@pytest.mark.slow
async def test_a_task_has_a_spec_of_its_own() -> None:
    def spec_for(spec: SandboxSpec, task: Task) -> SandboxSpec:
        return attrs.evolve(spec, cwd=f"/{task.id}", env={**spec.env, "TASK": task.id})

    env = SandboxEnv(backend_here(), SandboxSpec(env={"A": "1"}), env={"B": "2"}, spec_for=spec_for)
    try:
        await env.start(Task("one"))
        assert (await env.run("basename $PWD; echo $TASK$A$B")).text == "one\none12\n"
    finally:
        await env.close()


@pytest.mark.slow
async def test_a_configuration_says_backend_and_spec() -> None:
    kind = "bwrap" if BwrapBackend().available() is None else "host"
    env = SandboxEnv(sandbox=sandbox_from({"type": kind, "env": {"A": "1"}}), env={"B": "2"})
    try:
        await env.start(Task("t"))
        assert (await env.run("echo $A$B")).text == "12\n"
    finally:
        await env.close()
