"""Back ends with one fault each, under the one test that must see it. Run by test_sandbox_suites.py.

`PLANTED` says for each class which test that is, and what its failure speaks of.
"""

import contextlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import anyio
import pytest
from attrs import evolve

from agentkit.errors import SandboxDead
from agentkit.protocols import ExecResult, OutputCap, Sandbox, SandboxBackend, SandboxSpec
from agentkit.protocols.sandbox_spec import Capabilities, Limits
from agentkit.sandbox import BwrapBackend, HostBackend, collect
from agentkit.sandbox.leaks import owner, remove_tree
from agentkit.sandbox.registry import Entry, Registry
from agentkit.testing.sandboxes import BoundsSuite, ConformanceSuite, LeakSuite, SecuritySuite, Traces

CAP = OutputCap()
PLANTED: dict[str, tuple[str, str]] = {}


class Fine:
    """A sandbox that does what the one within does: where the faulty ones start from."""

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner

    async def run(self, command, /, *, timeout_s=None, cap=CAP) -> ExecResult:
        return await self.inner.run(command, timeout_s=timeout_s, cap=cap)

    async def exec(
        self, argv, /, *, cwd=None, env=None, stdin=b"", timeout_s=None, cap=CAP, on_output=None
    ) -> ExecResult:
        return await self.inner.exec(
            argv, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output
        )

    async def read(self, path, /):
        return await self.inner.read(path)

    async def write(self, path, data, /):
        await self.inner.write(path, data)

    async def upload(self, source, destination, /):
        await self.inner.upload(source, destination)

    async def download(self, source, destination, /):
        await self.inner.download(source, destination)

    async def alive(self):
        return await self.inner.alive()

    async def close(self):
        await self.inner.close()


class Backend:
    """A back end whose sandboxes are `sandbox(...)`, made by host or bwrap; what it claims is not looked into."""

    def __init__(self, sandbox=Fine, *, inner: SandboxBackend | None = None, **claims) -> None:
        self.sandbox = sandbox
        self.inner = inner or HostBackend(directory=Path(tempfile.gettempdir()))
        self.capabilities = Capabilities(**{"isolated": False} | claims)

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        return self.sandbox(await self.inner.start(self.known(spec)))

    def known(self, spec: SandboxSpec) -> SandboxSpec:
        """What of the spec the back end within is told: no limits, no lifetime."""
        return evolve(spec, limits=Limits(), lifetime_s=None)


def sees(test: str, complaint: str) -> Callable[[type], type]:
    """Leave the class that test alone, which must fail and speak of `complaint`."""

    def keep(cls: type) -> type:
        assert hasattr(cls, test)
        for name in dir(cls):
            if name.startswith("test_") and name != test:
                setattr(cls, name, None)
        cls.loops = ("asyncio",)
        PLANTED[cls.__name__] = (test, complaint)
        return cls

    return keep


class Conforming(ConformanceSuite):
    loops = ("asyncio",)
    slack_s = 0.5
    lifetime_s = 0.2
    sandbox = Fine

    @pytest.fixture
    def backend(self):
        return Backend(self.sandbox)


class Isolating(SecuritySuite):
    loops = ("asyncio",)
    sandbox = Fine
    claims: dict = {}

    @pytest.fixture
    def backend(self):
        return Backend(self.sandbox, isolated=True, **self.claims)


class Leaking(LeakSuite):
    loops = ("asyncio",)
    many = 12
    settle_s = 0.5
    kills = 2
    sandbox = Fine

    @pytest.fixture
    def backend(self):
        return Backend(self.sandbox)

    @pytest.fixture
    def leftovers(self, backend, state, mark):
        yield (traces := Traces(mark)).left
        for line in traces.left():  # the faults leak, their tests do not
            kind, what, *_ = line.split()
            if kind == "process":
                with contextlib.suppress(OSError):
                    os.kill(int(what), 9)
            elif kind == "directory":
                remove_tree(Path(what))


# Conformance


@sees("test_every_case_of_the_shell_battery_holds", "sleep past the limit: output is")
class TestLosesWhatWasPrinted(Conforming):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            result = await self.inner.run(command, **options)
            return evolve(result, output=b"", total_bytes=0) if result.timed_out else result


@sees("test_every_case_of_the_shell_battery_holds", "directory, variables and functions last: output is")
class TestForgetsItsState(Conforming):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            return await self.inner.exec(["bash", "-c", command], **options)


@sees("test_every_case_of_the_shell_battery_holds", "exit ends the shell: died is False")
class TestHidesThatTheShellEnded(Conforming):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            return evolve(await self.inner.run(command, **options), died=False)


@sees("test_a_program_gets_its_input_and_its_output_is_exact", "others than those that went in")
class TestKeepsText(Conforming):
    class sandbox(Fine):
        async def exec(self, argv, /, **options):
            result = await self.inner.exec(argv, **options)
            return evolve(result, output=result.text.encode())


@sees("test_a_program_has_directory_and_environment", "arguments arrive as they are")
class TestJoinsArguments(Conforming):
    class sandbox(Fine):
        async def exec(self, argv, /, **options):
            if argv[0] == "printf":
                argv = ["sh", "-c", " ".join(f'"{word}"' for word in argv)]
            return await self.inner.exec(argv, **options)


@sees("test_what_cannot_run_is_told_apart", "127")
class TestEatsTheExitCode(Conforming):
    class sandbox(Fine):
        async def exec(self, argv, /, **options):
            return evolve(await self.inner.exec(argv, **options), exit_code=137)


@sees("test_it_is_a_sandbox_until_it_is_closed", "alive()")
class TestStaysOpen(Conforming):
    class sandbox(Fine):
        async def alive(self):
            return True


@sees("test_closing_during_a_command_is_sandbox_dead", "exec")
class TestTakesDeathForAFailingCommand(Conforming):
    class sandbox(Fine):
        async def exec(self, argv, /, **options):
            try:
                return await self.inner.exec(argv, **options)
            except SandboxDead:
                return ExecResult(1, b"")


@sees("test_cancelling_kills_at_once_and_the_session_goes_on", "cancelled_caught")
class TestSwallowsCancellation(Conforming):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            with anyio.CancelScope(shield=True):
                return await self.inner.run(command, **options | {"timeout_s": 1.0})


@sees("test_a_program_that_outlives_its_limit", "await running(sandbox, mark) == 0")
class TestKillsOnlyTheChild(Conforming):
    class sandbox(Fine):
        async def exec(self, argv, /, **options):
            result = await self.inner.exec(argv, **options)
            if result.exit_code == 137:  # its daemon goes on
                mark = argv[-1].rpartition(" ")[0].rpartition(" ")[2].strip("; done")
                await self.inner.run(f"sleep {mark} & until pgrep -f 'sleep {mark}'; do :; done")
            return result


@sees("test_commands_of_a_session_wait_for_their_turn", "assert")
class TestMixesCommands(Conforming):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            first, _, rest = command.partition(";")
            early = await self.inner.run(first, **options)
            await anyio.sleep(0.01)
            return evolve(early, output=(await self.inner.run("cat last; echo $$ > last; " + rest)).output)


@sees("test_files", "DID NOT RAISE")
class TestReadsDevices(Conforming):
    class sandbox(Fine):
        async def read(self, path, /):
            if path == "/dev/zero":
                return b"\0"
            return await self.inner.read(path)


@sees("test_symlinks_lead_nowhere_on_the_host", "DID NOT RAISE")
class TestFollowsSymlinks(Conforming):
    class sandbox(Fine):
        async def read(self, path, /):
            return (await self.inner.exec(["cat", path])).output


@sees("test_a_tree_that_is_hostile_is_refused_whole", "DID NOT RAISE")
class TestUnpacksAnything(Conforming):
    class sandbox(Fine):
        async def download(self, source, destination, /):
            with tempfile.TemporaryFile() as spool:
                await self.inner.exec(["tar", "-c", "--exclude=bomb", "-C", source, "."], on_output=spool.write)
                spool.seek(0)
                with tarfile.open(fileobj=spool) as tar:
                    tar.extractall(destination, filter="fully_trusted")


@sees("test_nothing_of_our_environment_is_inside", "hunter2")
class TestInheritsTheEnvironment(Conforming):
    @pytest.fixture
    def backend(self):
        class Inheriting(Backend):
            def known(self, spec):
                return evolve(spec, env=dict(os.environ) | dict(spec.env))

        return Inheriting()


@sees("test_what_it_cannot_do_is_refused_before_anything_starts", "DID NOT RAISE")
class TestIgnoresLimits(Conforming):
    @pytest.fixture
    def backend(self):
        return Backend(
            read_only=True, image=True, rootfs=True, snapshots=True, networks=frozenset({"none", "host", "allow"})
        )


@sees("test_it_ends_by_itself_at_its_lifetime", "eventually")
class TestOutlivesItsLifetime(Conforming):
    @pytest.fixture
    def backend(self):
        return Backend(lifetime=True)


# Security: a back end that claims to isolate and does not, on one point after the other


@sees("test_files_of_the_host_are_out_of_reach", "hunter2-of-the-host")
class TestOpensTheHostsFiles(Isolating):
    pass


@sees("test_processes_of_the_host_are_out_of_reach", "assert 1 == 0")
class TestShowsTheHostsProcesses(Isolating):
    pass


@sees("test_another_sandbox_is_out_of_reach", "assert 1 == 0")
class TestSharesBetweenSandboxes(Isolating):
    pass


@sees("test_no_network_where_none_was_asked_for", "reached")
class TestHasANetwork(Isolating):
    pass


@sees("test_no_socket_of_the_host_is_reached_by_name", "!= 0")
class TestReachesSockets(Isolating):
    pass


@sees("test_secrets_of_ours_do_not_arrive", "hunter2-of-the-host")
class TestPassesSecretsOn(Isolating):
    class sandbox(Fine):
        async def exec(self, argv, /, *, env=None, **options):
            return await self.inner.exec(argv, env=dict(os.environ) | dict(env or {}), **options)


@sees("test_secrets_for_a_sandbox_stay_there", "any user of this machine reads it")
class TestPutsSecretsOnCommandLines(Isolating):
    class sandbox(Fine):
        async def exec(self, argv, /, *, env=None, **options):
            words = [f"{name}={value}" for name, value in (env or {}).items()]
            script = '"$@"; exit $?'  # it stays, as the client of a container engine does
            return await self.inner.exec(["sh", "-c", script, "sh", "env", *words, *argv], **options)


@sees("test_what_a_sandbox_packs_writes_nowhere_else", "planted")
class TestTrustsTar(Isolating):
    @pytest.fixture
    def backend(self):
        return Backend(self.sandbox, inner=BwrapBackend(), isolated=True)  # so that its tar is not the host's

    class sandbox(Fine):
        async def download(self, source, destination, /):
            with tempfile.TemporaryFile() as spool:
                await self.inner.exec(["tar", "-c", source], on_output=spool.write)
                spool.seek(0)
                with tarfile.open(fileobj=spool) as tar:
                    tar.extractall(destination.parent, filter="fully_trusted")
                (destination.parent / "tree").rename(destination)


@sees("test_a_symlink_inside_does_not_lead_a_download_out", "AssertionError: tree")
class TestDereferencesWhatItPacks(Isolating):
    class sandbox(Fine):
        async def download(self, source, destination, /):
            await self.inner.exec(["cp", "-rL", source, str(destination)])


@sees("test_an_upload_takes_links_along_and_not_what_they_lead_to", "hunter2-of-the-host")
class TestDereferencesWhatItUploads(Isolating):
    class sandbox(Fine):
        async def upload(self, source, destination, /):
            await self.inner.exec(["cp", "-rL", str(source), destination])


@sees("test_an_upload_goes_through_no_link_to_the_host", "planted")
class TestUploadsThroughLinks(Isolating):
    class sandbox(Fine):
        async def upload(self, source, destination, /):
            await self.inner.exec(["cp", "-r", str(source) + "/.", destination])


@sees("test_a_symlink_at_the_destination_is_not_written_through", "evil")
class TestDownloadsThroughLinks(Isolating):
    class sandbox(Fine):
        async def download(self, source, destination, /):
            destination.write_bytes(await self.inner.read(source))


class Unlimited(Isolating):
    @pytest.fixture
    def backend(self):
        inner = BwrapBackend(max_processes=1024)
        return Backend(
            inner=inner, isolated=True, limits=frozenset({"processes", "memory_bytes", "disk_bytes", "cpus"})
        )


@sees("test_a_fork_bomb_is_contained", "<= 55")
class TestLetsProcessesGrow(Unlimited):
    pass


@sees("test_memory_is_bounded", "!= 0")
class TestLetsMemoryGrow(Unlimited):
    pass


@sees("test_disk_is_bounded", "whole")
class TestLetsFilesGrow(Unlimited):
    pass


@sees("test_processors_are_shared", "a tenth of a processor")
class TestLetsLoopsRun(Unlimited):
    pass


# Leaks


@sees("test_many_at_once_and_nothing_left", "process ")
class TestLeavesAProcess(Leaking):
    class sandbox(Fine):
        async def close(self):
            subprocess.Popen(["sleep", "55"])
            await self.inner.close()


@sees("test_many_at_once_and_nothing_left", "open descriptors")
class TestLeavesDescriptors(Leaking):
    class sandbox(Fine):
        async def close(self):
            os.dup(2)
            await self.inner.close()


@sees("test_many_at_once_and_nothing_left", "entry ")
class TestLeavesEntries(Leaking):
    class sandbox(Fine):
        async def close(self):
            await self.inner.close()
            Registry().add("host", f"one-{id(self)}")


@sees("test_many_at_once_and_nothing_left", "directory ")
class TestLeavesADirectory(Leaking):
    class sandbox(Fine):
        async def close(self):
            await self.inner.close()
            (Path(tempfile.gettempdir()) / f"agentkit-{owner()}-left-{id(self)}").mkdir()


@sees("test_a_start_cancelled_at_any_await", "cancelled by")
class TestForgetsACancelledStart(Leaking):
    @pytest.fixture
    def backend(self):
        class Forgetful(Backend):
            async def start(self, spec):
                sandbox = await self.inner.start(spec)
                kept = subprocess.Popen(["sleep", "55"])
                for _ in range(10):
                    await anyio.sleep(0.001)
                kept.kill()
                kept.wait()
                return sandbox

        return Forgetful()


@sees("test_a_close_cancelled_at_any_await", "cancelled by")
class TestForgetsACancelledClose(Leaking):
    class sandbox(Fine):
        closed = False

        async def alive(self):
            return not self.closed

        async def close(self):
            if not self.closed:
                self.closed = True
                await anyio.sleep(0.001)
                await self.inner.close()


@sees("test_a_command_cancelled_at_any_await", "processes of the command are still there")
class TestForgetsACancelledCommand(Leaking):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            if "begun" not in command:
                return await self.inner.run(command, **options)
            there = subprocess.Popen(["sleep", command.partition("sleep ")[2].partition(" ")[0]])
            await anyio.sleep(0.01)
            there.kill()
            there.wait()
            return ExecResult(0, b"begun\n")


@sees("test_files_and_trees_cancelled_at_any_await", "no work in progress")
class TestLeavesHalfATree(Leaking):
    max_awaits = 400  # the upload before it takes as many as the machine makes of it

    class sandbox(Fine):
        async def download(self, source, destination, /):
            part = destination.with_suffix(".part")
            part.mkdir(exist_ok=True)
            await anyio.sleep(0.001)
            part.rmdir()
            await self.inner.download(source, destination)


class Outside(Fine):
    """Keeps a process that is not within: like a container, it survives who made it."""

    async def run(self, command, /, **options):
        mark = command.partition("sleep ")[2].partition(" ")[0]
        self.outside = subprocess.Popen(["sleep", mark], env={}, start_new_session=True)
        return await self.inner.run(command, **options)

    async def close(self):
        if hasattr(self, "outside"):
            self.outside.kill()
            self.outside.wait()
        await self.inner.close()


@sees("test_a_host_process_killed_at_any_moment", "after kill 1")
class TestSurvivesItsHost(Leaking):
    sandbox = Outside
    kill_after_s = 0.0

    @pytest.fixture
    def recipe(self) -> str:
        # Ready only once one is there: what is killed then has certainly left it.
        return f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from planted_sandboxes import Backend, Outside
import subprocess
subprocess.Popen(["sleep", sys.argv[2]], env={{}}, start_new_session=True)
backend = Backend(Outside)
"""


@sees("test_a_host_process_killed_at_any_moment", "lives on")
class TestCollectsTheLiving(Leaking):
    @pytest.fixture
    def recipe(self) -> str:
        return "from agentkit.sandbox import HostBackend\nbackend = HostBackend()"

    @pytest.fixture
    def collect(self, backend):
        async def everybody() -> None:
            await collect()
            for sandbox in backend.made:
                await sandbox.inner.run("exit")

        return everybody

    @pytest.fixture
    def backend(self):
        class Noted(Backend):
            made: list = []

            async def start(self, spec):
                self.made.append(await super().start(spec))
                return self.made[-1]

        return Noted()


class Registering(Backend):
    """Registers each sandbox before it is made; `remove` ends it, as whoever finds the entry must be able to."""

    numbers = count()
    alive: dict = {}
    kind = "planted_sandboxes:Registering"

    async def start(self, spec):
        entry = Registry().add(self.kind, f"one-{next(self.numbers)}")
        made = self.alive[entry.name] = _Registered(await self.inner.start(spec), entry)
        return made

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        await cls.alive.pop(entry.name).close()


class _Registered(Fine):
    def __init__(self, inner, entry) -> None:
        super().__init__(inner)
        self.entry = entry

    async def close(self):
        await self.inner.close()
        Registry().forget(self.entry)


class OnlyForgotten(Registering):
    kind = "planted_sandboxes:OnlyForgotten"

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        """Says that it is gone."""


class TestRegisters(LeakSuite):
    """No fault: the test of recycled pids passes where a back end registers what it makes."""

    loops = ("asyncio",)

    @pytest.fixture
    def backend(self, monkeypatch):
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        import planted_sandboxes  # by the name that its entries have

        return planted_sandboxes.Registering()


for _name in dir(TestRegisters):
    if _name.startswith("test_") and _name != "test_a_recycled_pid_is_known_for_dead":
        setattr(TestRegisters, _name, None)


@sees("test_a_recycled_pid_is_known_for_dead", "DID NOT RAISE")
class TestOnlyForgets(Leaking):
    @pytest.fixture
    def backend(self, monkeypatch):
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        import planted_sandboxes

        return planted_sandboxes.OnlyForgotten()


# Bounds


class Bounded(BoundsSuite):
    loops = ("asyncio",)
    sandbox = Fine
    tries = 1

    @pytest.fixture
    def backend(self):
        return Backend(self.sandbox)


@sees("test_a_polite_command_is_gone_at_its_limit", "< (0.05 * 10.0)")
class TestIsLate(Bounded):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            result = await self.inner.run(command, **options)
            await anyio.sleep(0.6)
            return result


@sees("test_a_stubborn_command_is_gone_soon_after_its_limit", "not before its time")
class TestIsEarly(Bounded):
    class sandbox(Fine):
        async def run(self, command, /, *, timeout_s=None, **options):
            result = await self.inner.run("true")
            return evolve(result, timed_out=True)


@sees("test_a_cancelled_command_is_gone_at_once", "< (0.15 * 10.0)")
class TestIsLateToEnd(Bounded):
    class sandbox(Fine):
        async def run(self, command, /, **options):
            try:
                return await self.inner.run(command, **options)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1.7)


@sees("test_endless_output_costs_no_memory", "most")
class TestKeepsAllOutput(Bounded):
    class sandbox(Fine):
        async def exec(self, argv, /, *, on_output=None, timeout_s=None, **options):
            self.kept = kept = bytearray()

            def keep(data: bytes) -> None:
                if timeout_s == 3.0 and len(kept) < 50_000_000:
                    kept.extend(data)

            return await self.inner.exec(argv, on_output=keep, timeout_s=timeout_s, **options)
