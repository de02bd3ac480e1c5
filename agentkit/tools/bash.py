"""The shell as a tool: a command in, what a terminal would show out, short enough and free of surprises."""

import anyio

from agentkit.errors import ConfigError, SandboxDead, SandboxError, ToolError
from agentkit.protocols.actions import Observation, ObservationStatus
from agentkit.protocols.sandbox import ExecResult, OutputCap, Shell
from agentkit.protocols.tool import Tool, ToolContext
from agentkit.tools.function import tool
from agentkit.tools.terminal import clip, plain_text

NO_OUTPUT = "The command printed nothing."

_RESERVE_S = 1.0
_RESERVE_SHARE = 0.1


def bash(*, name: str = "execute_bash", head_chars: int = 8_000, tail_chars: int = 8_000) -> Tool:
    """A tool that runs commands in the env's shell session and shows `head_chars` + `tail_chars` of their output.

    Raises:
        ConfigError: a budget of characters is negative, or both are 0.
    """
    if min(head_chars, tail_chars) < 0 or head_chars + tail_chars == 0:
        raise ConfigError(f"head_chars and tail_chars must be >= 0, one of them > 0, found {head_chars}, {tail_chars}")

    @tool(name=name)
    async def run(command: str, shell: Shell, context: ToolContext, timeout_s: float | None = None) -> Observation:
        """Run a bash command in a shell session that keeps its directory and variables between calls.

        Standard input is empty: commands that wait for input end at once. Long output is cut in the middle.

        Args:
            command: The command to run, on one or more lines.
            shell: The env's shell session.
            context: The call.
            timeout_s: Seconds after which the command is killed; what it printed until then is shown.
        """
        if timeout_s is not None and timeout_s <= 0:
            raise ToolError(f"timeout_s must be greater than 0, found {timeout_s!r}")
        # UTF-8 takes 4 bytes a character at most: what the sandbox cuts is never more than what is cut here
        cap = OutputCap(4 * head_chars, 4 * tail_chars)
        limit_s = _limit_s(timeout_s, context.deadline)
        try:
            result = await shell.run(command, timeout_s=limit_s, cap=cap)
        except SandboxDead:
            raise
        except SandboxError as error:
            raise ToolError(f"the command could not be run: {error}", retryable=error.retryable) from error
        return _shown(result, cap, head_chars, tail_chars, limit_s)

    return run


def _limit_s(timeout_s: float | None, deadline: float) -> float | None:
    """Seconds for the command: a little less than the call has, so that its output outlives its timeout."""
    left_s = max(0.0, deadline - anyio.current_time())
    limit_s = left_s - min(_RESERVE_S, _RESERVE_SHARE * left_s)
    if timeout_s is not None:
        limit_s = min(limit_s, timeout_s)
    return None if limit_s == float("inf") else limit_s


def _shown(result: ExecResult, cap: OutputCap, head_chars: int, tail_chars: int, limit_s: float | None) -> Observation:
    total_bytes = max(result.total_bytes, len(result.output))
    head_end, tail_start, lost_bytes = len(result.output), len(result.output), 0
    if result.truncated:
        lost_bytes = max(0, total_bytes - len(result.output))  # of a sandbox with a smaller cap: no telling where
        if len(result.output) >= cap.head_bytes + cap.tail_bytes:  # what is between the two is the sandbox's own note
            head_end, tail_start = cap.head_bytes, len(result.output) - cap.tail_bytes
            lost_bytes = total_bytes - cap.head_bytes - cap.tail_bytes
    head, tail = plain_text(result.output[:head_end]), plain_text(result.output[tail_start:])
    text, left_out_bytes = clip(head, tail, left_out=lost_bytes, head_chars=head_chars, tail_chars=tail_chars)
    text = text.rstrip("\n")
    lines = [text if text.strip() else NO_OUTPUT]
    if result.timed_out:
        after = "" if limit_s is None else f" after {limit_s:.3g} s"
        lines.append(f"[timed out{after}; partial output above]")
    else:
        lines.append(f"[exit code {result.exit_code}]")
    if result.died:
        lines.append("[shell restarted: directory and exported variables are kept, functions and aliases are lost]")
    status = ObservationStatus.TIMEOUT if result.timed_out else ObservationStatus.OK
    metadata = {
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "shell_restarted": result.died,
        "total_bytes": total_bytes,
        "left_out_bytes": left_out_bytes,
        "duration_s": result.duration_s,
    }
    return Observation("\n".join(lines), status=status, metadata=metadata)


execute_bash = bash()
