# ruff: noqa: S101  # pytest tests
"""Reaching for what is outside: the host's files, its processes, the network, other sandboxes, secrets."""

import logging
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio

from agentkit.protocols import ExecResult, Sandbox, SandboxBackend
from agentkit.sandbox.registry import Registry
from agentkit.testing.sandboxes._pytest import pytest
from agentkit.testing.sandboxes.suite import SandboxSuite, capabilities_of, need, running, unique_s

SECRET = "hunter2-of-the-host"
_ABSTRACT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect(b"\\0" + sys.argv[1].encode())
"""


class IsolatedSuite(SandboxSuite):
    """Tests for back ends that claim to isolate."""

    @pytest.fixture(autouse=True)
    def isolated(self, backend: SandboxBackend) -> None:
        """Skips where there is no isolation to test."""
        need(backend, capabilities_of(backend).isolated, "isolated")


class IntrusionTests(IsolatedSuite):
    """Tests of what is out of reach."""

    @pytest.fixture
    def host_files(self, tmp_path: Path) -> Path:
        """A directory of the host with a secret, which anybody may write to."""
        tmp_path.chmod(0o777)  # permissions are not what must protect it
        (tmp_path / "secret").write_text(SECRET)
        (tmp_path / "secret").chmod(0o666)
        return tmp_path

    async def test_files_of_the_host_are_out_of_reach(self, backend: SandboxBackend, host_files: Path) -> None:
        pid = os.getpid()
        roots = ("", "/proc/1/root", f"/proc/{pid}/root", "/proc/self/root", "/work/../../..", "/dev/fd/../..")
        tried = [f"{root}{host_files}" for root in roots]
        async with self.started(backend) as sandbox:
            for directory in tried:
                for result in await _both(sandbox, f"cat '{directory}/secret'"):
                    assert result.exit_code != 0
                    assert SECRET not in result.text, directory
            for directory in tried:
                await _both(sandbox, f"echo evil > '{directory}/planted'; echo evil >> '{directory}/secret'")
                await _both(sandbox, f"mkdir -p '{directory}' && echo evil > '{directory}/planted'")  # its own, if any
            search = f"cat /proc/[0-9]*/root{host_files}/secret /proc/[0-9]*/cwd/secret"
            for result in await _both(sandbox, search):
                assert SECRET not in result.text
        assert (host_files / "secret").read_text() == SECRET
        assert not (host_files / "planted").exists()

    async def test_nothing_of_ours_is_open_inside(self, backend: SandboxBackend, host_files: Path) -> None:
        with open(host_files / "secret") as file, socket.socket() as listening:  # noqa: ASYNC230  # to be inherited
            os.set_inheritable(file.fileno(), True)
            os.set_inheritable(listening.fileno(), True)
            script = (
                "for f in /proc/self/fd/*; do readlink $f; done; cat /proc/self/fd/[3-9]* 2>/dev/null | head -c 9999"
            )
            async with self.started(backend) as sandbox:
                results = [await sandbox.exec(["sh", "-c", script]), await sandbox.run(f"sh -c '{script}'")]
            for result in results:
                assert "/secret" not in result.text
                assert "socket:" not in result.text

    async def test_processes_of_the_host_are_out_of_reach(self, backend: SandboxBackend) -> None:
        mark = unique_s()
        with subprocess.Popen(["sleep", mark], env={"TOKEN": SECRET}) as victim:  # noqa: ASYNC220  # to be looked for
            try:
                async with self.started(backend) as sandbox:
                    assert await running(sandbox, mark) == 0
                    await _both(sandbox, f"kill -9 {victim.pid}")  # perhaps one of its own: there, pids are others
                    search = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/maps 2>/dev/null"
                    for result in await _both(sandbox, search):
                        assert SECRET not in result.text
                        assert mark not in result.text
                    assert (await sandbox.exec(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"])).text.strip() in _FEW
                assert victim.poll() is None
            finally:
                victim.kill()

    async def test_another_sandbox_is_out_of_reach(self, backend: SandboxBackend) -> None:
        mark = unique_s()
        async with self.started(backend) as mine, self.started(backend) as other:
            places = (".", "/tmp", "$HOME", "/dev/shm", "/var/tmp", "/run")  # noqa: S108  # inside
            try:
                for place in places:
                    await mine.run(f"echo {SECRET} > {place}/{mark}")
                await mine.run(f"sleep {mark} &")
                assert await mine.read(mark) == f"{SECRET}\n".encode()
                assert await running(mine, mark) == 1
                assert await running(other, mark) == 0
                for place in places:
                    for result in await _both(other, f"cat {place}/{mark} /proc/[0-9]*/root{place}/{mark}"):
                        assert SECRET not in result.text, place
                assert await running(mine, mark) == 1
            finally:  # it may have been the host's own directories
                await mine.run("rm -f " + " ".join(f"{place}/{mark}" for place in places))

    async def test_no_network_where_none_was_asked_for(self, backend: SandboxBackend) -> None:
        need(backend, "none" in capabilities_of(backend).networks, "a network of 'none'")
        with _listening() as (port, address, accepted):
            async with self.started(backend, network="none") as sandbox:
                for host in ("127.0.0.1", "localhost", address, "[::1]", "192.0.2.1"):
                    target = f"/dev/tcp/{host}/{port if host != '192.0.2.1' else 80}"
                    result = await sandbox.run(f"exec 9<>{target} && echo reached", timeout_s=4.0)
                    assert "reached" not in result.text, host
                    program = await sandbox.exec(["bash", "-c", f"exec 9<>{target} && echo reached"], timeout_s=4.0)
                    assert "reached" not in program.text, host
                assert (await sandbox.run("getent hosts localhost.example.org", timeout_s=4.0)).exit_code != 0
            assert accepted() == 0

    async def test_no_socket_of_the_host_is_reached_by_name(self, backend: SandboxBackend, host_files: Path) -> None:
        need(backend, "none" in capabilities_of(backend).networks, "a network of 'none'")
        need(backend, "python3" not in self.may_lack, "python3 in its sandboxes")
        name = f"agentkit-{unique_s()}"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"\0{name}")
            listening.listen()
            listening.setblocking(False)
            async with self.started(backend, network="none") as sandbox:
                works = await sandbox.exec(["python3", "-c", "print('works')"])
                assert works.text == "works\n"
                assert (await sandbox.exec(["python3", "-c", _ABSTRACT, name])).exit_code != 0
            with pytest.raises(BlockingIOError):
                listening.accept()

    async def test_secrets_of_ours_do_not_arrive(
        self, backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "BASH_ENV", "PROMPT_COMMAND", "LD_LIBRARY_PATH"):
            monkeypatch.setenv(name, f"/{SECRET}")
        async with self.started(backend) as sandbox:
            for command in ("env", "set", "cat /proc/self/environ /proc/1/environ /proc/$PPID/environ"):
                for result in await _both(sandbox, command):
                    assert SECRET not in result.text
            everything = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null"
            assert SECRET not in (await sandbox.exec(["sh", "-c", everything])).text

    async def test_secrets_for_a_sandbox_stay_there(
        self,
        backend: SandboxBackend,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path / "state"))
        given = f"given-{unique_s()}"
        seen: list[str] = []
        caplog.set_level(logging.DEBUG)
        async with self.started(backend, env={"API_KEY": given}) as sandbox:

            async def use() -> None:
                for result in await _both(sandbox, "echo $API_KEY; sleep 0.3"):
                    assert result.text == f"{given}\n"
                once = await sandbox.exec(["sh", "-c", "echo $ONCE; sleep 0.3"], env={"ONCE": given})
                assert once.text == f"{given}\n"
                stop.set()

            stop = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(use)
                while not stop.is_set():
                    seen += [line for line in _command_lines() if given in line]
                    await anyio.sleep(0.01)
            said = caplog.text + repr(sandbox) + repr(backend)
            said += "".join(path.read_text() for path in Registry().directory.glob("*"))
        assert seen == [], "on a command line, any user of this machine reads it"
        assert given not in said + caplog.text


_FEW = {str(number) for number in range(1, 25)}


async def _both(sandbox: Sandbox, script: str) -> tuple[ExecResult, ExecResult]:
    """As a command of the session, and as a program."""
    run = await sandbox.run(script, timeout_s=20.0)
    return run, await sandbox.exec(["bash", "-c", script], timeout_s=20.0)


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_text(errors="replace")
        except OSError:
            continue


class _listening:
    """A server on every address of this machine: its port, an address that is not loopback, how often it was called."""

    def __enter__(self) -> "tuple[int, str, _Accepted]":
        self._socket = socket.create_server(("", 0))
        self._socket.setblocking(False)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing: which of our addresses would be used
                address = str(probe.getsockname()[0])
            except OSError:
                address = "127.0.0.1"
        return self._socket.getsockname()[1], address, _Accepted(self._socket)

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()


class _Accepted:
    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._count = 0

    def __call__(self) -> int:
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return self._count
            self._count += 1
