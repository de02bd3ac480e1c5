"""Programs on terminals: those that draw, ask, flood or refuse to end, driven as a person would."""

import os
import time
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import Interactive, SandboxBackend, SandboxSpec, Screen, Terminal
from agentkit.sandbox import BwrapBackend, EmbeddedSandbox, HostBackend

pytestmark = pytest.mark.slow
ISOLATED = BwrapBackend().available() is None
MARK = f"{os.getpid()}.7"
"""Begins an argument of `sleep` that nobody else on this machine has: host sandboxes see all processes."""
BACKENDS: list[Callable[[], SandboxBackend]] = [HostBackend, *([BwrapBackend] if ISOLATED else [])]


@pytest.fixture(params=BACKENDS, ids=[each.__name__ for each in BACKENDS])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedSandbox]:
    started = await request.param().start(SandboxSpec())
    assert isinstance(started, EmbeddedSandbox)
    assert isinstance(started, Interactive)
    try:
        yield started
    finally:
        await started.close()


async def until(terminal: Terminal, condition: Callable[[Screen], bool]) -> Screen:
    """The first screen that fulfils the condition."""
    last: Screen | None = None
    with anyio.move_on_after(20):
        while last is None or not condition(last):
            last = await terminal.read(settle_s=0.05, timeout_s=1)
        return last
    raise AssertionError(f"never shown: {last}")


def shows(text: str) -> Callable[[Screen], bool]:
    return lambda screen: text in screen.text


def ended(screen: Screen) -> bool:
    return screen.exit_code is not None


async def test_a_program_sees_a_terminal_of_the_size_asked_for(sandbox: EmbeddedSandbox) -> None:
    probe = "tty -s && stty size; echo $TERM; echo into-tty > /dev/tty"
    terminal = await sandbox.terminal(["bash", "-c", probe], rows=30, columns=100)
    screen = await until(terminal, ended)
    assert screen.text.splitlines()[:3] == ["30 100", "linux", "into-tty"]
    assert screen.exit_code == 0
    assert len(screen.lines) == 30
    await terminal.close()


async def test_a_prompt_is_answered(sandbox: EmbeddedSandbox) -> None:
    command = (
        'read -p "Your name? " name; read -s -p "Password: " word; echo; echo "hi $name, ${#word} letters"; exit 3'
    )
    terminal = await sandbox.terminal(["bash", "-c", command], env={"LANG": "C.UTF-8"})
    await until(terminal, shows("Your name?"))
    await terminal.send("\u00c9ve\r")
    screen = await until(terminal, shows("Password:"))
    assert "Your name? \u00c9ve" in screen.text, "what is typed is shown"
    await terminal.send("secret\r")
    screen = await until(terminal, ended)
    assert "hi \u00c9ve, 6 letters" in screen.text
    assert "secret" not in screen.text, "the program had turned the echo off"
    assert screen.exit_code == 3
    with pytest.raises(SandboxError, match="bytes could not be typed: the program has ended"):
        await terminal.send("more")
    await terminal.close()


async def test_a_python_session_keeps_its_state_and_is_interrupted(sandbox: EmbeddedSandbox) -> None:
    terminal = await sandbox.terminal(["python3", "-q"])
    await until(terminal, shows(">>>"))
    await terminal.send("x = 20 + 1\r")
    await terminal.send("print('twice', 2 * x)\r")
    await until(terminal, shows("twice 42"))
    await terminal.send("import time; time.sleep(1000)\r")
    await until(terminal, shows("sleep(1000)"))
    await anyio.sleep(0.3)
    await terminal.send("\x03")
    await until(terminal, shows("KeyboardInterrupt"))
    await terminal.send("print(x)\r\x04")
    screen = await until(terminal, ended)
    assert screen.exit_code == 0
    assert "21" in screen.text
    await terminal.close()


async def test_vim_edits_a_file(sandbox: EmbeddedSandbox) -> None:
    await sandbox.write("poem.txt", b"roses are red\n")
    terminal = await sandbox.terminal(["vim", "-u", "NONE", "-n", "poem.txt"])
    await until(terminal, shows("roses are red"))
    await terminal.send("oviolets are blue\x1b")
    await until(terminal, shows("violets are blue"))
    await terminal.send(":wq\r")
    assert (await until(terminal, ended)).exit_code == 0
    assert await sandbox.read("poem.txt") == b"roses are red\nviolets are blue\n"
    await terminal.close()


async def test_less_pages(sandbox: EmbeddedSandbox) -> None:
    await sandbox.write("long.txt", b"".join(b"line %d\n" % number for number in range(1, 101)))
    terminal = await sandbox.terminal(["less", "long.txt"], rows=10)
    screen = await until(terminal, shows("line 9"))
    assert "line 1\n" in screen.text
    await terminal.send("G")
    screen = await until(terminal, shows("line 100"))
    assert "line 1\n" not in screen.text
    await terminal.send("q")
    assert (await until(terminal, ended)).exit_code == 0
    await terminal.close()


async def test_jobs_of_a_shell_on_a_terminal(sandbox: EmbeddedSandbox) -> None:
    terminal = await sandbox.terminal(["bash", "--norc", "-i"], env={"PS1": "here> "})
    await until(terminal, shows("here>"))
    await terminal.send(f"sleep {MARK}0\r")
    await anyio.sleep(0.3)
    await terminal.send("\x1a")
    await until(terminal, shows("Stopped"))
    await terminal.send("bg; jobs -r\r")
    await until(terminal, shows("Running"))
    assert (await sandbox.exec(["pgrep", "-fx", f"sleep {MARK}0"])).exit_code == 0
    await terminal.close()
    with anyio.fail_after(10):
        while (await sandbox.exec(["pgrep", "-fx", f"sleep {MARK}0"])).exit_code == 0:
            await anyio.sleep(0.05)


async def test_a_flood_waits_and_is_stopped(sandbox: EmbeddedSandbox) -> None:
    terminal = await sandbox.terminal(["yes", "again and again"])
    gaps: list[float] = []

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(0.001)
            gaps.append(time.monotonic() - before)

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        began = time.monotonic()
        screen = await terminal.read(timeout_s=0.7)
        assert time.monotonic() - began < 5
        group.cancel_scope.cancel()
    assert "again and again" in screen.text
    assert max(gaps) < 1, "the loop goes on beside it"
    await terminal.send("\x03")
    with anyio.fail_after(20):
        while (screen := await terminal.read(timeout_s=1)).exit_code is None:
            pass
    assert screen.exit_code == 130
    await terminal.close()


async def test_one_read_takes_no_more_of_a_flood_than_it_may(
    sandbox: EmbeddedSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkit.sandbox.terminal.MOST_BYTES", 50_000)
    terminal = await sandbox.terminal(["yes", "again and again"])
    began = time.monotonic()
    screen = await terminal.read(timeout_s=10)
    assert time.monotonic() - began < 8
    assert "again and again" in screen.text
    await terminal.close()


async def test_what_takes_no_input_is_told_and_holds_nobody(
    sandbox: EmbeddedSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkit.sandbox.terminal.SEND_S", 0.5)
    terminal = await sandbox.terminal(["bash", "-c", "stty raw -echo; echo ready; sleep 1000"])
    await until(terminal, shows("ready"))
    told = r"of 100000 bytes could not be typed: the program took no more input for"
    with pytest.raises(SandboxError, match=told), anyio.fail_after(15):
        await terminal.send("x" * 100_000)
    await terminal.close()


async def test_a_long_paste_reaches_a_program_that_answers_meanwhile(sandbox: EmbeddedSandbox) -> None:
    terminal = await sandbox.terminal(["bash", "-c", "stty raw -echo; echo ready; exec cat"])
    await until(terminal, shows("ready"))
    with anyio.fail_after(20):
        await terminal.send("x" * 100_000)  # the answers fill the terminal: they are read while we type
    await terminal.send("\r\nand on")
    await until(terminal, shows("and on"))
    await terminal.close()


async def test_a_program_that_is_killed_or_kills_its_terminal(sandbox: EmbeddedSandbox) -> None:
    terminal = await sandbox.terminal(["bash", "-c", "echo going; kill -9 $$"])
    screen = await until(terminal, ended)
    assert screen.exit_code == 137
    assert "going" in screen.text
    await terminal.close()
    hangs_up = await sandbox.terminal(["bash", "-c", "exec </dev/null >/dev/null 2>&1; sleep 0.3; exit 7"])
    assert (await until(hangs_up, ended)).exit_code == 7
    await hangs_up.close()


async def test_close_kills_all_of_it_also_what_hid(sandbox: EmbeddedSandbox) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    detached = f"(setsid sleep {MARK}1 &); nohup sleep {MARK}2 >/dev/null 2>&1 & disown"
    hidden = f"trap '' HUP TERM INT; {detached}; echo up; sleep {MARK}3"
    terminal = await sandbox.terminal(["bash", "-c", hidden])
    await until(terminal, shows("up"))
    assert (await sandbox.exec(["pgrep", "-fx", f"sleep {MARK}[123]"])).exit_code == 0
    await terminal.close()
    await terminal.close()
    with anyio.fail_after(10):  # killed, though it may take a busy machine some time to see to it
        while (await sandbox.exec(["pgrep", "-fx", f"sleep {MARK}[123]"])).text:
            await anyio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    for call in (terminal.read(), terminal.send("x")):
        with pytest.raises(SandboxDead, match="the terminal is closed"):
            await call


async def test_a_cancelled_read_loses_nothing_and_a_cancelled_start_leaves_nothing(sandbox: EmbeddedSandbox) -> None:
    terminal = await sandbox.terminal(["bash", "-c", "for i in 1 2 3; do sleep 0.2; echo step $i; done; cat"])
    with anyio.move_on_after(0.3):
        await terminal.read(settle_s=10, timeout_s=10)
    screen = await until(terminal, shows("step 3"))
    assert screen.text.splitlines() == ["step 1", "step 2", "step 3"]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await sandbox.terminal(["sleep", f"{MARK}4"])
    await terminal.close()
    with anyio.fail_after(60):  # pgrep itself waits where some process of the machine is short of memory
        while (await sandbox.exec(["pgrep", "-fx", f"sleep {MARK}4"])).exit_code == 0:
            await anyio.sleep(0.05)


async def test_a_sandbox_takes_its_terminals_along(sandbox: EmbeddedSandbox) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    terminals = [await sandbox.terminal(["sleep", f"{MARK}5"]) for _ in range(3)]
    seen: list[type[BaseException]] = []

    async def wait() -> None:
        try:
            while (await terminals[0].read(settle_s=5, timeout_s=30)).exit_code is None:
                pass
        except SandboxDead as error:
            seen.append(type(error))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(0.2)
        with anyio.fail_after(10):
            await sandbox.close()
    with pytest.raises(SandboxDead):
        await terminals[1].read()
    with pytest.raises(SandboxDead):
        await sandbox.terminal(["true"])
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.mark.parametrize(
    ("size", "name"), [({"rows": 0}, "rows"), ({"columns": 501}, "columns"), ({"rows": True}, "rows")]
)
async def test_sizes_that_cannot_be(sandbox: EmbeddedSandbox, size: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a whole number from 1 to 500, found"):
        await sandbox.terminal(["true"], **size)


async def test_programs_that_cannot_start(sandbox: EmbeddedSandbox) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxError, match="cannot run 'no-such-program'"):
        await sandbox.terminal(["no-such-program"])
    with pytest.raises(SandboxError, match="cannot run 'true' in"):
        await sandbox.terminal(["true"], cwd="/nowhere/at/all")
    with pytest.raises(SandboxError, match="argv"):
        await sandbox.terminal([])
    assert len(os.listdir("/proc/self/fd")) == descriptors
