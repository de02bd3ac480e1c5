# ruff: noqa: S101  # pytest tests
"""What holds for commands: of the session, and programs on their own."""

import random
import resource
from pathlib import Path

import anyio

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols import OutputCap, Sandbox, SandboxBackend
from agentkit.testing.sandboxes._pytest import pytest
from agentkit.testing.sandboxes.cases import Case, cases
from agentkit.testing.sandboxes.suite import SandboxSuite, opened, running, unique_s


class CommandTests(SandboxSuite):
    """Tests of `Shell` and `Lifecycle`."""

    async def test_every_case_of_the_shell_battery_holds(self, backend: SandboxBackend) -> None:
        found: list[str] = []
        slots = anyio.Semaphore(self.concurrency)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def play(case: Case) -> None:
            async with slots:
                sandbox = await backend.start(self.spec())
                try:
                    found.extend(await case.play(sandbox, slack_s=self.slack_s))
                finally:
                    await sandbox.close()

        async with opened(backend), anyio.create_task_group() as group:
            for case in cases():
                if not case.needs & self.may_lack:
                    group.start_soon(play, case)
        assert found == []
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown_mb < 60, "gigabytes of output went by, of which the first and last bytes are kept"

    async def test_it_is_a_sandbox_until_it_is_closed(self, backend: SandboxBackend) -> None:
        async with self.started(backend) as sandbox:
            assert isinstance(sandbox, Sandbox)
            assert await sandbox.alive()
            await sandbox.close()
            await sandbox.close()
            assert not await sandbox.alive()
            for call in (
                lambda: sandbox.run("true"),
                lambda: sandbox.exec(["true"]),
                lambda: sandbox.read("x"),
                lambda: sandbox.write("x", b""),
                lambda: sandbox.upload(Path(__file__), "x"),
                lambda: sandbox.download("x", Path("never-made")),
            ):
                with pytest.raises(SandboxDead):
                    await call()

    async def test_a_program_gets_its_input_and_its_output_is_exact(self, backend: SandboxBackend) -> None:
        async with self.started(backend) as sandbox:
            blob = random.Random(1).randbytes(500_000)
            echoed = await sandbox.exec(["cat"], stdin=blob, cap=OutputCap(1_000_000, 0))
            assert (echoed.exit_code, echoed.total_bytes, echoed.truncated) == (0, len(blob), False)
            is_exact = echoed.output == blob  # not in the assertion: pytest would compare half a million lines
            assert is_exact, "the bytes that came back are others than those that went in"
            capped = await sandbox.exec(["cat"], stdin=blob, cap=OutputCap(1000, 500))
            assert (capped.total_bytes, capped.truncated) == (len(blob), True)
            assert capped.output.startswith(blob[:1000])
            assert capped.output.endswith(blob[-500:])
            assert len(capped.output) < 2000
            ignored = await sandbox.exec(["true"], stdin=blob)  # a program that does not read its input
            assert ignored.exit_code == 0
            assert (await sandbox.exec(["cat"])).output == b"", "without input, its end comes at once"

    async def test_a_program_has_directory_and_environment(self, backend: SandboxBackend) -> None:
        async with self.started(backend, env={"A": "b c"}) as sandbox:
            pieces: list[bytes] = []
            script = 'echo "$A $B"; pwd; echo e >&2; exit 5'
            both = await sandbox.exec(["sh", "-c", script], env={"B": "d\ne'\"$"}, on_output=pieces.append)
            assert both.exit_code == 5
            first, second, directory, last = both.text.splitlines()
            assert (first, second, Path(directory).name, last) == ("b c d", "e'\"$", "work", "e")
            assert b"".join(pieces) == both.output
            await sandbox.run("cd /usr; export A=changed; echo shared > ~-/file")
            plain = await sandbox.exec(["sh", "-c", "echo $A; cat file"])
            assert plain.text == "b c\nshared\n", "programs see the files of the session, and none of its state"
            assert (await sandbox.exec(["pwd"], cwd="/usr")).text == "/usr\n"
            await sandbox.exec(["mkdir", "-p", "be low"])
            assert (await sandbox.exec(["pwd"], cwd="be low")).text.endswith("/work/be low\n")
            words = ["", "a b", "*", "$A", "\\", "'", '"', "\n", "ä", "-n"]
            printed = await sandbox.exec(["printf", "%s|", *words])
            assert printed.text == "".join(f"{word}|" for word in words), "arguments arrive as they are"

    async def test_what_cannot_run_is_told_apart(self, backend: SandboxBackend) -> None:
        async with self.started(backend) as sandbox:
            assert (await sandbox.exec(["sh", "-c", "kill -9 $$"])).exit_code == 137
            assert (await sandbox.exec(["no-such-program"])).exit_code == 127
            await sandbox.write("plain", b"no program")
            assert (await sandbox.exec(["./plain"])).exit_code == 126
            with pytest.raises(SandboxError, match="nowhere"):
                await sandbox.exec(["true"], cwd="nowhere")
            for argv in ([], ["a\0b"], "true"):
                with pytest.raises(SandboxError):
                    await sandbox.exec(argv)
            with pytest.raises(SandboxError):
                await sandbox.run("a\0b")
            assert (await sandbox.run("echo on")).text == "on\n"
            assert await sandbox.alive()

    async def test_a_program_that_outlives_its_limit(self, backend: SandboxBackend) -> None:
        mark = unique_s()
        async with self.started(backend) as sandbox:
            polite = await sandbox.exec(["sh", "-c", f"echo part; exec sleep {mark}"], timeout_s=0.3)
            assert (polite.timed_out, polite.text, polite.exit_code) == (True, "part\n", 130)
            script = f"trap '' INT TERM; (setsid sleep {mark} &); while :; do sleep {mark}; done"
            stubborn = await sandbox.exec(["bash", "-c", script], timeout_s=0.3)
            assert (stubborn.timed_out, stubborn.exit_code) == (True, 137)
            assert 0.6 < stubborn.duration_s < 1.0 + self.slack_s
            assert await running(sandbox, mark) == 0

    async def test_a_daemon_holding_the_output_does_not_hold_the_program(self, backend: SandboxBackend) -> None:
        mark = unique_s()
        async with self.started(backend) as sandbox:
            result = await sandbox.exec(["sh", "-c", f"sleep {mark} & echo done"])
            assert (result.text, result.exit_code) == ("done\n", 0)
            assert result.duration_s < 0.5 + self.slack_s
            assert await running(sandbox, mark) == 1

    async def test_an_error_in_on_output_ends_the_program(self, backend: SandboxBackend) -> None:
        mark = unique_s()

        def fail(_: bytes) -> None:
            raise LookupError("enough")

        async with self.started(backend) as sandbox:
            with pytest.raises(LookupError):
                await sandbox.exec(["sh", "-c", f"echo x; exec sleep {mark}"], on_output=fail)
            assert await running(sandbox, mark) == 0

    async def test_output_comes_while_the_program_runs(self, backend: SandboxBackend) -> None:
        async with self.started(backend) as sandbox:
            with anyio.move_on_after(10.0 + self.slack_s) as scope:
                heard = anyio.Event()

                def hear(data: bytes) -> None:
                    if b"early" in data:
                        heard.set()

                async with anyio.create_task_group() as group:
                    group.start_soon(
                        lambda: sandbox.exec(["sh", "-c", "echo early; sleep 60"], on_output=hear, timeout_s=60.0)
                    )
                    await heard.wait()
                    group.cancel_scope.cancel()
            assert not scope.cancelled_caught, "its first line was not heard in time"

    async def test_cancelling_kills_at_once_and_the_session_goes_on(self, backend: SandboxBackend) -> None:
        earlier, mark = unique_s(), unique_s()
        async with self.started(backend) as sandbox:
            await sandbox.run(f"cd /usr; export KEPT=1; sleep {earlier} &")
            for command in (
                f"sleep {mark}",
                f"trap '' INT TERM; (setsid sleep {mark} &); while :; do sleep {mark}; done",
                f"yes {mark}",
                "while :; do :; done",
            ):
                with anyio.move_on_after(0.25) as scope:
                    await sandbox.run(command)
                late_s = anyio.current_time() - scope.deadline
                assert scope.cancelled_caught
                assert late_s < 0.1 + self.slack_s
                assert await running(sandbox, mark) == 0
                after = await sandbox.run("pwd; echo $KEPT")
                assert (after.text, after.exit_code) == ("/usr\n1\n", 0)
            with anyio.move_on_after(0.25) as scope:
                await sandbox.exec(["sh", "-c", f"trap '' INT TERM; sleep {mark}; sleep {mark}"])
            assert scope.cancelled_caught
            assert await running(sandbox, mark) == 0
            assert await running(sandbox, earlier) == 1, "an earlier command's job is not this one's"

    async def test_commands_of_a_session_wait_for_their_turn(self, backend: SandboxBackend) -> None:
        async with self.started(backend) as sandbox:
            texts: list[str] = []

            async def one(number: int) -> None:
                texts.append((await sandbox.run(f"echo {number}; sleep 0.01; echo {number}")).text)

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(one, number)
            assert sorted(texts) == [f"{number}\n{number}\n" for number in range(8)]

    async def test_programs_do_not_wait_for_each_other(self, backend: SandboxBackend) -> None:
        async with self.started(backend) as sandbox:
            with anyio.fail_after(20.0 + self.slack_s):  # each waits for a file that only the other writes
                async with anyio.create_task_group() as group:
                    for mine, other in (("a", "b"), ("b", "a")):
                        script = f"touch {mine}; while [ ! -e {other} ]; do sleep 0.02; done"
                        group.start_soon(sandbox.exec, ["sh", "-c", script])
                    group.start_soon(sandbox.run, "while [ ! -e a ] || [ ! -e b ]; do sleep 0.02; done")

    async def test_closing_during_a_command_is_sandbox_dead(self, backend: SandboxBackend) -> None:
        outcomes: list[str] = []
        async with self.started(backend) as sandbox:

            async def expect_dead(what: str) -> None:
                try:
                    await (sandbox.run("sleep 100") if what == "run" else sandbox.exec(["sleep", "100"]))
                except SandboxDead:
                    outcomes.append(what)

            async with anyio.create_task_group() as group:
                group.start_soon(expect_dead, "run")
                group.start_soon(expect_dead, "exec")
                await anyio.sleep(0.3)
                await sandbox.close()
        assert sorted(outcomes) == ["exec", "run"]
