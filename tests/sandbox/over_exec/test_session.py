"""What only a sandbox over one call can meet: a channel that breaks, a directory that goes, strays of others."""

from collections.abc import Callable, Iterable, Sequence

import anyio
import pytest

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols import OutputCap, SandboxSpec
from tests.sandbox.over_exec.conftest import BwrapChannel, OverExecBackend

pytestmark = pytest.mark.slow


async def test_what_is_not_kept_is_not_sent(backend: OverExecBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        sent = 0
        channel = backend.channels[0]
        plain = channel.sandbox.exec

        async def counted(*args: object, on_output: Callable[[bytes], None], **options: object) -> object:
            def take(data: bytes) -> None:
                nonlocal sent
                sent += len(data)
                on_output(data)

            return await plain(*args, on_output=take, **options)  # type: ignore[arg-type]

        channel.sandbox.exec = counted  # type: ignore[method-assign, assignment]
        cap = OutputCap(1000, 500)
        result = await sandbox.run("head -c 3000000 /dev/zero; echo the end", cap=cap)
        assert (result.total_bytes, result.truncated, result.exit_code) == (3_000_008, True, 0)
        assert result.output.startswith(b"\0" * 1000 + b"\n[... 2998508 bytes left out ...]\n")
        assert result.output.endswith(b"\0the end\n")
        assert sent < 5000
    finally:
        await sandbox.close()


async def test_the_session_comes_back_when_its_directory_is_removed(backend: OverExecBackend) -> None:
    sandbox = await backend.start(SandboxSpec(env={"GIVEN": "yes"}))
    try:
        await sandbox.run("cd /usr")
        await sandbox.run("rm -rf /dev/shm/.agentkit-* /tmp/.agentkit-*")
        result = await sandbox.run("pwd; echo $GIVEN")
        assert result.text == "/usr\nyes\n"
        with pytest.raises(SandboxError, match="nowhere"):
            await sandbox.exec(["true"], cwd="/nowhere")
    finally:
        await sandbox.close()


async def test_everything_killed_from_within_is_a_death_and_not_the_end(backend: OverExecBackend) -> None:
    sandbox = await backend.start(SandboxSpec(env={"GIVEN": "yes"}))
    try:
        await sandbox.run("export KEPT=1; cd /usr")
        result = await sandbox.run("kill -9 -1", timeout_s=10.0)
        assert (result.died, result.exit_code) == (True, 137)
        assert (await sandbox.run("pwd; echo $KEPT$GIVEN")).text == "/usr\n1yes\n"
    finally:
        await sandbox.close()


async def test_a_job_that_kills_the_shell_between_commands(backend: OverExecBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        await sandbox.run("export KEPT=1; (sleep 0.2; kill -9 $$) &")
        await anyio.sleep(0.8)
        result = await sandbox.run("echo $KEPT")
        assert (result.text, result.died) == ("1\n", False)
    finally:
        await sandbox.close()


async def test_a_program_does_not_end_the_daemons_of_others(backend: OverExecBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        await sandbox.run("(setsid sleep 3331 >/dev/null 2>&1 &); sleep 3332 & sleep 0.05")
        stubborn = await sandbox.exec(
            ["bash", "-c", "trap '' INT TERM; (setsid sleep 3333 &); while :; do sleep 3334; done"], timeout_s=0.3
        )
        assert (stubborn.timed_out, stubborn.exit_code) == (True, 137)
        left = await sandbox.run("pgrep -af 'sleep 333[0-9]' | grep -o '333[0-9]' | sort; jobs -r | wc -l")
        assert left.text == "3331\n3332\n1\n"
        timed = await sandbox.run("(setsid sleep 3335 &); sleep 3336", timeout_s=0.3)
        assert timed.timed_out
        left = await sandbox.run("pgrep -af 'sleep 333[0-9]' | grep -o '333[0-9]' | sort")
        assert left.text == "3331\n3332\n", "earlier jobs are not this command's"
    finally:
        await sandbox.close()


@pytest.mark.parametrize("error", [SandboxError("broken", retryable=True), SandboxDead("gone")])
async def test_a_channel_that_fails_is_told_apart_from_a_dead_sandbox(
    backend: OverExecBackend, error: SandboxError
) -> None:
    sandbox = await backend.start(SandboxSpec())
    channel = backend.channels[0]
    try:
        channel.fail = error
        with pytest.raises(type(error), match=str(error)):
            await sandbox.run("true")
        channel.fail = None
        assert (await sandbox.run("echo on")).text == "on\n"
        await channel.sandbox.close()
        channel.fail = SandboxError("broken", retryable=True)
        with pytest.raises(SandboxDead, match="has ended"):
            await sandbox.run("true")
    finally:
        await sandbox.close()


class NoBash(BwrapChannel):
    """An image without bash."""

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        stdin: Iterable[bytes],
        on_output: Callable[[bytes], None],
        timeout_s: float | None,
    ) -> None:
        on_output(b"exec: bash: not found\n")


async def test_an_image_without_bash_says_so_at_the_start() -> None:
    with pytest.raises(SandboxError, match="bash does not run"):
        await OverExecBackend(NoBash).start(SandboxSpec())


class Silent(BwrapChannel):
    """A way to the sandbox that swallows one answer."""

    deaf = False

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        stdin: Iterable[bytes],
        on_output: Callable[[bytes], None],
        timeout_s: float | None,
    ) -> None:
        if self.deaf:
            type(self).deaf = False
            await anyio.sleep_forever()
        await super().exec(argv, stdin=stdin, on_output=on_output, timeout_s=timeout_s)


async def test_an_answer_that_never_comes_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkit.sandbox.over_exec.session.GRACE_S", 0.5)
    sandbox = await OverExecBackend(Silent).start(SandboxSpec())
    try:
        Silent.deaf = True
        with anyio.fail_after(10), pytest.raises(SandboxError) as caught:
            await sandbox.run("true", timeout_s=0.2)
        assert caught.value.retryable
        assert (await sandbox.run("echo on")).text == "on\n"
    finally:
        await sandbox.close()


async def test_variables_of_any_name_arrive(backend: OverExecBackend) -> None:
    env = {"PLAIN": "a b", "dotted.name": "c", "UID": "77", "IFS": "x", "_ak_dir": "/", "QUOTED": 'it\'s\n"two"'}
    sandbox = await backend.start(SandboxSpec())
    try:
        result = await sandbox.exec(["env", "-0"], env=env)
        seen = dict(line.split("=", 1) for line in result.text.rstrip("\0").split("\0"))
        assert {name: seen.get(name) for name in env} == env
    finally:
        await sandbox.close()
