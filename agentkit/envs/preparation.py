"""What a fresh sandbox gets before the policy sees it: tools, files and commands."""

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap, Sandbox

_TOLD = OutputCap(head_bytes=1_000, tail_bytes=3_000)
# A home that cannot be written to, as in images made for another user, leaves the directory for temporary files.
_BIN = '{ mkdir -p "$HOME/.local/bin" && cd "$HOME/.local/bin" || cd "$(mktemp -d)"; } 2>/dev/null && pwd -P'


@frozen(kw_only=True)
class Preparation:
    """Tools, uploads, files, then commands, in this order.

    `tools` are executables of this machine, put on the PATH inside; `uploads` are files and trees of this machine by
    their path inside, `files` contents by their path inside. `commands` run in the shell session, so that what one
    exports, or where it goes, is there for the policy too.
    """

    commands: Sequence[str] = ()
    files: Mapping[str, str | bytes] = field(factory=dict)
    uploads: Mapping[str, Path] = field(factory=dict)
    tools: Sequence[Path] = ()

    def __attrs_post_init__(self) -> None:
        if isinstance(self.commands, str):
            raise ConfigError(f"commands must be a list of commands, found the text {self.commands!r:.80}")
        for name in self.tools:
            if not Path(name).is_file():
                raise ConfigError(f"tools holds {str(name)!r}, which is no file of this machine")
        for inside, source in self.uploads.items():
            if not Path(source).exists():
                raise ConfigError(f"uploads.{inside} is {str(source)!r}, which is not on this machine")
        names = [Path(name).name for name in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"tools has several of one name: {', '.join(twice)}")

    async def prepare(self, sandbox: Sandbox) -> Mapping[str, str]:
        """Do it; returns the variables that programs started by `exec` need beside those of the spec.

        Raises:
            SandboxError: something could not be put there, or a command failed; the message has its output.
            SandboxDead: the sandbox is gone.
        Cancellation: the sandbox is left half prepared.
        """
        variables = await self._put_tools(sandbox)
        for inside, source in self.uploads.items():
            await sandbox.upload(Path(source), inside)
        for inside, content in self.files.items():
            await sandbox.write(inside, content.encode() if isinstance(content, str) else content)
        for command in self.commands:
            result = await sandbox.run(command, cap=_TOLD)
            if result.exit_code != 0:
                raise SandboxError(f"the set-up command {command!r:.200} ended with {_ending(result)}")
        return variables

    async def _put_tools(self, sandbox: Sandbox) -> Mapping[str, str]:
        if not self.tools:
            return {}
        found = await sandbox.run(f'( {_BIN} ) && printf %s "$PATH"', cap=_TOLD)
        directory, newline, path = found.text.partition("\n")
        if found.exit_code != 0 or not newline or not directory.startswith("/"):
            raise SandboxError(f"there is no directory for tools in the sandbox: {_ending(found)}")
        places: list[str] = []
        for tool in self.tools:
            places.append(posixpath.join(directory, Path(tool).name))
            await sandbox.upload(Path(tool), places[-1])
        made = f'chmod 0755 -- {shlex.join(places)} && export PATH={shlex.quote(directory)}:"$PATH"'
        result = await sandbox.run(made, cap=_TOLD)
        if result.exit_code != 0:
            raise SandboxError(f"the tools in {directory!r} could not be made executable: {_ending(result)}")
        return {"PATH": f"{directory}:{path}"}


def _ending(result: ExecResult) -> str:
    """How it ended and what it printed last, escaped: it is nobody's terminal that should act on it."""
    return f"{result.exit_code}: {result.text.strip()[-1_000:]!r}"
