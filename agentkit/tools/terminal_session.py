"""A terminal as a tool: keys in, the screen out, for programs that draw or ask."""

import re
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import anyio

from agentkit.errors import ConfigError, SandboxDead, SandboxError, ToolError
from agentkit.protocols.actions import Observation
from agentkit.protocols.sandbox import Interactive, Screen, Terminal
from agentkit.protocols.tool import Tool, ToolContext
from agentkit.tools.function import tool

_NAMED = {
    "enter": "\r",
    "tab": "\t",
    "esc": "\x1b",
    "space": " ",
    "backspace": "\x7f",
    "delete": "\x1b[3~",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[1~",
    "end": "\x1b[4~",
    "pageup": "\x1b[5~",
    "pagedown": "\x1b[6~",
}
_PAUSE_S = 0.1
_LINES = re.compile("[^\r]*\r|[^\r]+")
_KEY = re.compile(r"<(?:C-(?P<control>[a-zA-Z@\[\\\]^_])|(?P<name>[A-Za-z]+))>")


def keys_of(text: str) -> str:
    r"""What to type for `text`: `<Enter>`, `<Esc>`, `<C-c>` and their like are keys, a newline is Enter.

    Anything else in angle brackets is typed as it stands.
    """

    def key(found: re.Match[str]) -> str:
        if found["control"]:
            return chr(ord(found["control"].upper()) & 0x1F)
        return _NAMED.get(found["name"].lower(), found.group())

    return _KEY.sub(key, text.replace("\r\n", "\n").replace("\n", "\r"))


def terminal(
    *,
    name: str = "terminal",
    argv: Sequence[str] = ("bash",),
    rows: int = 24,
    columns: int = 80,
    settle_s: float = 0.3,
    wait_s: float = 10.0,
) -> Tool:
    """A tool that types into a program on a terminal, `argv`, and shows its screen: one terminal for each env.

    It is started at the first call, and again once it has ended. The screen is shown when it has not changed for
    `settle_s` seconds, after `wait_s` at most, or as many as the policy says.

    Raises:
        ConfigError: there is no program, or a time is not greater than 0.
    """
    if isinstance(argv, str) or not argv:
        raise ConfigError(f"argv must be a list of a program and its arguments, found {argv!r}")
    if not (settle_s > 0 and wait_s > 0):
        raise ConfigError(f"settle_s and wait_s must be greater than 0, found {settle_s!r} and {wait_s!r}")
    opened: WeakKeyDictionary[object, Terminal] = WeakKeyDictionary()
    program = tuple(argv)

    @tool(name=name)
    async def session(
        keys: str, sandbox: Interactive, context: ToolContext, timeout_s: float | None = None
    ) -> Observation:
        """Type keys into a terminal and see its screen. For programs that draw or ask; a shell runs in it at first.

        Args:
            keys: What to type. <Enter>, <Tab>, <Esc>, <Up>, <Down>, <C-c> and such are keys. Empty to look only.
            sandbox: Where the terminal is.
            context: The call.
            timeout_s: Seconds to wait at most until the screen no longer changes.
        """
        if timeout_s is not None and timeout_s <= 0:
            raise ToolError(f"timeout_s must be greater than 0, found {timeout_s!r}")
        limit_s = min(wait_s if timeout_s is None else timeout_s, 0.9 * (context.deadline - anyio.current_time()))
        try:
            here = opened.get(sandbox)
            if here is None:
                here = opened[sandbox] = await sandbox.terminal(program, rows=rows, columns=columns)
            try:
                screen = await _typed(here, keys_of(keys), settle_s, max(0.05, limit_s))
            except SandboxDead:  # the sandbox, or only this terminal of it: starting another one tells
                del opened[sandbox]
                opened[sandbox] = await sandbox.terminal(program, rows=rows, columns=columns)
                raise ToolError("the terminal was gone: the next keys go to a fresh one") from None
        except SandboxDead:
            raise
        except SandboxError as error:
            raise ToolError(f"the keys could not be typed: {error}", retryable=error.retryable) from error
        if screen.exit_code is not None:
            del opened[sandbox]
            await here.close()
        return _shown(screen)

    return session


async def _typed(here: Terminal, keys: str, settle_s: float, limit_s: float) -> Screen:
    """The screen after `keys`; that of a program which has ended meanwhile as it left it.

    They are typed line by line, with a pause after each as long as time allows: what one line starts would find the
    next one typed before it had set up the terminal.
    """
    hurry = anyio.current_time() + limit_s / 2
    try:
        for line in _LINES.findall(keys):
            await here.send(line)
            if line.endswith("\r") and line != keys and anyio.current_time() < hurry:
                await here.read(settle_s=_PAUSE_S, timeout_s=4 * _PAUSE_S)
    except SandboxDead:
        raise
    except SandboxError:
        screen = await here.read(settle_s=settle_s, timeout_s=limit_s)
        if screen.exit_code is None:
            raise
        return screen
    return await here.read(settle_s=settle_s, timeout_s=limit_s)


def _shown(screen: Screen) -> Observation:
    row, column = screen.cursor
    if screen.exit_code is None:
        ending = f"[cursor in row {row + 1}, column {column + 1}]"
    else:
        ending = f"[ended with exit code {screen.exit_code}; the next keys start it again]"
    metadata = {"row": row, "column": column, "exit_code": screen.exit_code}
    return Observation(f"{screen.text}\n{ending}" if screen.text else ending, metadata=metadata)
