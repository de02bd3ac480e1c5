# ruff: noqa: S101  # pytest tests
"""Nothing is left behind: cancelled at every await, killed at any moment, fifty at a time."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, TypeAlias

import anyio
from anyio import to_thread

from agentkit.errors import SandboxDead
from agentkit.protocols import Sandbox, SandboxBackend
from agentkit.sandbox import collect
from agentkit.sandbox.leaks import owner
from agentkit.sandbox.registry import Entry, Registry
from agentkit.testing.sandboxes._pytest import pytest
from agentkit.testing.sandboxes.suite import SandboxSuite, eventually, opened, running, unique_s
from agentkit.testing.sandboxes.sweep import Operation, awaits_of, cancel_at, on_asyncio
from agentkit.testing.sandboxes.traces import Traces, belonging

Leftovers: TypeAlias = Callable[[], list[str]]
Collect: TypeAlias = Callable[[], Awaitable[object]]


class LeakSuite(SandboxSuite):
    """Cancels and kills, then looks for what is left.

    Override the fixture `leftovers` to look where the back end keeps things (containers, a server's sandboxes), and
    `collect` where what a killed process left is not found by `agentkit.sandbox.collect()` alone. The test of kills
    needs the fixture `recipe`: Python source that binds `backend` to such a back end, in a process of its own (and
    `spec`, if it must have one).
    """

    max_awaits: ClassVar[int] = 40
    """How many awaits of an operation are cancelled at, evenly chosen; fewer for a back end that is slow to start."""
    kills: ClassVar[int] = 3
    """How many host processes are killed; the environment variable AGENTKIT_KILLS has the last word."""
    kill_after_s: ClassVar[float] = 1.0
    """They are killed at some moment of their first so many seconds with sandboxes."""
    settle_s: ClassVar[float] = 5.0
    """What is on its way out may take so long, seconds."""
    many: ClassVar[int] = 50
    """How many sandboxes live at a time in the test of many."""

    @pytest.fixture(autouse=True)
    def state(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A registry of its own, so that what others have made is not looked at."""
        path = tmp_path_factory.mktemp("state")
        monkeypatch.setenv("AGENTKIT_STATE", str(path))
        return path

    @pytest.fixture
    def mark(self) -> str:
        """Seconds to sleep, as a word that marks what the test starts inside."""
        return unique_s()

    @pytest.fixture
    def leftovers(self, backend: SandboxBackend, state: Path, mark: str) -> Leftovers:
        """What is left now, as lines to read. Made before the back end is used."""
        del backend, state
        return Traces(mark).left

    @pytest.fixture
    def collect(self) -> Collect:
        """Removes what owners that have ended left behind."""
        return collect

    async def test_a_start_cancelled_at_any_await(
        self, backend: SandboxBackend, leftovers: Leftovers, mark: str
    ) -> None:
        made: list[Sandbox] = []

        async def start() -> None:
            made.append(await backend.start(self.spec()))

        async def settle() -> list[str]:
            while made:
                sandbox = made.pop()
                assert (await sandbox.run("echo on")).text == "on\n", "it came to be in spite of the cancel"
                await sandbox.close()
            return await self._left(lambda: [one for one in leftovers() if one not in resting])

        async with opened(backend):
            async with self.started(backend) as sandbox:
                await sandbox.run(f"sleep {mark} &")
            resting = set(leftovers())
            found = await self._sweep(start, settle)
        assert found == []
        assert await self._left(leftovers) == []

    async def test_a_close_cancelled_at_any_await(
        self, backend: SandboxBackend, leftovers: Leftovers, mark: str
    ) -> None:
        made: list[Sandbox] = []

        async def fresh() -> None:
            made.append(await backend.start(self.spec()))
            await made[0].run(f"sleep {mark} & (setsid sleep {mark} >/dev/null 2>&1 &)")

        async def close() -> None:
            await made[0].close()

        async def again() -> list[str]:
            sandbox = made.pop()
            await sandbox.close()
            assert not await sandbox.alive()
            return await self._left(lambda: [one for one in leftovers() if one not in resting])

        async with opened(backend):
            async with self.started(backend) as sandbox:
                await sandbox.run(f"sleep {mark} &")
            resting = set(leftovers())
            found = await self._sweep(close, again, before=fresh)
        assert found == []
        assert await self._left(leftovers) == []

    async def test_a_command_cancelled_at_any_await(
        self, backend: SandboxBackend, leftovers: Leftovers, mark: str
    ) -> None:
        script = f"echo begun; cat; sleep {mark} & sleep 0.05; kill $!"
        async with opened(backend), self.started(backend) as sandbox:

            async def run() -> None:
                await sandbox.run(script)

            async def execute() -> None:
                await sandbox.exec(["sh", "-c", script], stdin=b"x" * 200_000, on_output=lambda _: None)

            async def usable() -> list[str]:
                assert (await sandbox.run("cd /usr && pwd")).text == "/usr\n"
                assert (await sandbox.exec(["echo", "on"])).text == "on\n"
                there = await running(sandbox, mark)
                return [f"{there} processes of the command are still there"] if there else []

            found = await self._sweep(run, usable) + await self._sweep(execute, usable)
        assert found == []
        assert await self._left(leftovers) == []

    async def test_files_and_trees_cancelled_at_any_await(
        self, backend: SandboxBackend, leftovers: Leftovers, tmp_path: Path
    ) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.mkdir()
        target.mkdir()
        (source / "file").write_bytes(b"y" * 300_000)
        async with opened(backend), self.started(backend) as sandbox:

            async def write_read() -> None:
                await sandbox.write("whole", b"x" * 300_000)
                await sandbox.read("whole")

            async def up_down() -> None:
                await sandbox.upload(source, "tree")
                await sandbox.download("tree", target / "made")

            async def usable() -> list[str]:
                await sandbox.write("after", b"on")
                assert await sandbox.read("after") == b"on"
                return []

            async def whole() -> list[str]:
                await usable()
                assert {path.name for path in target.iterdir()} <= {"made"}, "no work in progress is left"
                if (target / "made").exists():  # nothing, or all of it
                    assert (target / "made" / "file").read_bytes() == b"y" * 300_000
                    (target / "made" / "file").unlink()
                    (target / "made").rmdir()
                return []

            found = await self._sweep(write_read, usable) + await self._sweep(up_down, whole)
        assert found == []
        assert await self._left(leftovers) == []

    async def test_many_at_once_and_nothing_left(
        self, backend: SandboxBackend, leftovers: Leftovers, mark: str
    ) -> None:
        texts: list[str] = []
        ready = 0
        everybody = anyio.Event()

        async def one(number: int) -> None:
            nonlocal ready
            sandbox = await backend.start(self.spec(env={"N": str(number)}))
            try:
                ready += 1
                if ready == self.many:
                    everybody.set()
                await everybody.wait()
                await sandbox.run(f"(setsid sleep {mark} &); nohup sleep {mark} >/dev/null 2>&1 & echo $N > mine")
                texts.append((await sandbox.run("cat mine; ls")).text)
            finally:
                await sandbox.close()

        async with opened(backend), anyio.create_task_group() as group:
            for number in range(self.many):
                group.start_soon(one, number)
        assert sorted(texts) == sorted(f"{number}\nmine\n" for number in range(self.many))
        assert await self._left(leftovers) == []

    async def test_a_host_process_killed_at_any_moment(
        self, backend: SandboxBackend, leftovers: Leftovers, collect: Collect, mark: str, request: pytest.FixtureRequest
    ) -> None:
        try:
            recipe = str(request.getfixturevalue("recipe"))
        except pytest.FixtureLookupError:
            pytest.skip("no fixture `recipe` says how another process makes this back end")
        kills = int(os.environ.get("AGENTKIT_KILLS") or self.kills)
        async with opened(backend), self.started(backend) as bystander:
            await bystander.run("kept=1")
            resting = set(leftovers())
            await anyio.sleep(0.2)
            resting |= set(leftovers())  # a look takes a while, in which a process may have moved
            for number in range(kills):
                dead = await to_thread.run_sync(
                    _host_killed, recipe, random.choice(self.loops), mark, self.kill_after_s
                )
                await collect()

                def left(dead: str = dead) -> list[str]:
                    return [one for one in (*leftovers(), *belonging(dead)) if one not in resting]

                assert await self._left(left) == [], f"after kill {number + 1}"
                assert (await bystander.run("echo $kept")).text == "1\n", "what is another owner's lives on"
                assert (await bystander.exec(["echo", "on"])).text == "on\n"
        assert await self._left(leftovers) == []

    async def test_a_recycled_pid_is_known_for_dead(
        self, backend: SandboxBackend, leftovers: Leftovers, collect: Collect, state: Path
    ) -> None:
        async with opened(backend), self.started(backend) as bystander:
            before = {entry.name for entry in Registry().entries()}
            async with self.started(backend) as orphan:
                entries = [entry for entry in Registry().entries() if entry.name not in before]
                if not entries:
                    pytest.skip("it registers nothing for a sandbox: none outlives its host process")
                for entry in entries:
                    _give_to_an_earlier_process(state, entry)
                await collect()
                assert not {entry.name for entry in entries} & {entry.name for entry in Registry().entries()}
                with pytest.raises(SandboxDead):
                    await orphan.run("true", timeout_s=10.0)
                    await orphan.run("true", timeout_s=10.0)  # the first may see the shell die before the rest
            assert (await bystander.run("echo on")).text == "on\n"
        assert await self._left(leftovers) == []

    async def _sweep(
        self,
        operation: Operation,
        after: Callable[[], Awaitable[list[str]]],
        *,
        before: Operation | None = None,
    ) -> list[str]:
        """What `after` said of `operation`, cancelled at one await after the other, each preceded by `before`."""

        async def around(at: int) -> bool:
            if before is not None:
                await before()
            native = on_asyncio() and at // stride % 2 == 0
            went = await cancel_at(operation, at, natively=native)
            said = await after()
            if went.late_s > 5.0 + self.slack_s:
                said.append(f"it took {went.late_s:.1f} s to end")
            how = "by task.cancel()" if native else "by its scope"
            found.extend(f"cancelled {how} at await {at} of about {total}: {one}" for one in said)
            return went.sent

        if before is not None:
            await before()
        total = await awaits_of(operation)
        found = await after()
        stride = max(1, -(-total // self.max_awaits))
        for at in range(1, stride * self.max_awaits + 1, stride):
            if not await around(at) and at > total:  # it came to its end; how many awaits that takes is chance
                break
        return found

    async def _left(self, leftovers: Leftovers) -> list[str]:
        """What is still left once what is on its way out has had its time."""
        await eventually(lambda: not leftovers(), within_s=self.settle_s)
        return leftovers()


def _host_killed(recipe: str, loop: str, mark: str, within_s: float) -> str:
    """Start a process that makes and closes sandboxes, kill it at some moment; whose things are left then."""
    command = [sys.executable, "-m", "agentkit.testing.sandboxes.killed", loop, mark]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        try:
            host.stdin.write(recipe.encode())
            host.stdin.close()
            said = host.stdout.readline().decode().split()
            assert said[:1] == ["ready"], f"the host process did not come up: it said {said}"
            try:
                host.wait(random.uniform(0.0, within_s))
            except subprocess.TimeoutExpired:
                pass
            else:
                raise AssertionError(f"the host process ended by itself, with {host.returncode}")
        finally:
            host.kill()
    return said[1]


def _give_to_an_earlier_process(state: Path, entry: Entry) -> None:
    """Say that a process made it which had our pid, but began before us."""
    boot, pid, started = owner().split(".")
    for path in state.glob("*.json"):
        body = json.loads(path.read_text())
        if (body["type"], body["name"]) == (entry.type, entry.name):
            path.write_text(json.dumps(body | {"owner": f"{boot}.{pid}.{int(started) - 1}"}))
