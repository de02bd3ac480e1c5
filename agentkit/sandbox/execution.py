"""One program, run to its end inside a place."""

import os
import signal
import time
from collections.abc import Callable

import anyio

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.sandbox.output import OutputRing
from agentkit.sandbox.pump import Pump
from agentkit.sandbox.spawner import Place, Process, Program, StartFailed, boot_ticks

POLITE_S = 0.2
KILL_S = 2.0


async def execute(
    place: Place,
    program: Program,
    *,
    stdin: bytes | int = b"",
    timeout_s: float | None = None,
    cap: OutputCap,
    on_output: Callable[[bytes], None] | None = None,
) -> ExecResult:
    """Run `program`; `stdin` is its input, or a descriptor to read it from (not closed).

    At the timeout it gets SIGINT, 0.2 s later SIGTERM, 0.2 s later SIGKILL, with all it started; an error raised by
    `on_output` kills it at once.

    Raises:
        SandboxError: it could not be started in that directory.
        SandboxDead: the place is gone.
    Cancellation: the program and all it started are killed.
    """
    began = time.monotonic()
    ring = OutputRing(cap)

    def take(data: bytes) -> None:
        ring.feed(data)
        if on_output is not None:
            on_output(data)

    def result(code: int, *, timed_out: bool = False) -> ExecResult:
        return ExecResult(
            code, ring.text(), ring.total_bytes, ring.truncated, timed_out, duration_s=time.monotonic() - began
        )

    since = boot_ticks()
    try:
        pump = await _start(place, program, stdin)
    except StartFailed as error:
        if error.stage == "exec":  # what a shell would say
            take(f"{program.argv[0]}: {os.strerror(error.number)}\n".encode())
            return result(127 if error.number == 2 else 126)
        if error.stage == "enter":
            raise SandboxDead(f"the sandbox is gone: {error}") from error
        raise SandboxError(f"cannot run {program.argv[0]!r} in {program.cwd[0]!r}: {error}") from error
    process = pump.process
    try:

        async def finish() -> None:
            while not process.ended:
                await pump.step(take, None)

        with anyio.move_on_after(timeout_s):
            await finish()
        timed_out = not process.ended
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if process.ended:
                break
            await pump.signal(number, take, None, since=since)
            with anyio.move_on_after(KILL_S if number == signal.SIGKILL else POLITE_S):
                await finish()
        if timed_out and process.ended:
            process.kill(signal.SIGKILL, since=since, itself=False)
        if process.exit_code is None:
            raise SandboxDead("the sandbox is gone" if process.lost else "a killed program did not end")
        pump.drain(take)
        return result(process.exit_code, timed_out=timed_out)
    finally:
        if not process.ended:
            with anyio.CancelScope(shield=True), anyio.move_on_after(KILL_S):
                process.kill(since=since)
                await process.gone()
        pump.close()


async def _start(place: Place, program: Program, stdin: bytes | int) -> Pump:
    far: dict[int, int] = {}
    near_in: int | None = None
    near_out = place.pipe(far, 1)
    process: Process | None = None
    try:
        far[2] = far[1]
        if isinstance(stdin, int) and place.takes_descriptors:
            far[0] = os.dup(stdin)
        elif stdin or isinstance(stdin, int):
            near_in = place.pipe(far, 0, ours_writes=True)
        process = await place.spawn(program, far)
        pump = Pump(process, output=near_out, stdin=near_in)
    except BaseException:
        os.close(near_out)
        if near_in is not None:
            os.close(near_in)
        if process is not None:
            process.close()
        raise
    finally:
        for fd in set(far.values()):
            os.close(fd)
    if near_in is not None and isinstance(stdin, int):
        pump.send_from(stdin)
    elif near_in is not None and isinstance(stdin, bytes):
        pump.send(stdin, last=True)
    return pump
