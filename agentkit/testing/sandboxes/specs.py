# ruff: noqa: S101  # pytest tests
"""What holds for what a spec asks for, and what a back end says it can do."""

import secrets
from pathlib import Path
from typing import Any

import anyio

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import SandboxBackend
from agentkit.protocols.sandbox import Capable, Interactive, Snapshots
from agentkit.protocols.sandbox_spec import Allow, Limits
from agentkit.testing.sandboxes._pytest import pytest
from agentkit.testing.sandboxes.suite import SandboxSuite, capabilities_of, eventually, need, opened


class SpecTests(SandboxSuite):
    """Tests of `SandboxSpec`, `Capabilities`, and the Protocols that a back end may do without."""

    lifetime_s = 2.0
    """The lifetime that is tried, seconds; more where a start takes longer."""

    async def test_nothing_of_our_environment_is_inside(
        self, backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = f"hunter2-{secrets.token_hex(16)}"  # of nobody else who is at work on this machine
        monkeypatch.setenv("SECRET_TOKEN", secret)
        async with self.started(backend, env={"GIVEN": "given"}) as sandbox:
            for result in (await sandbox.run("env; set"), await sandbox.exec(["env"])):
                assert secret not in result.text
                assert "GIVEN=given\n" in result.text
                assert "PATH=" in result.text
                assert "HOME=" in result.text
            everybody = await sandbox.run(f"cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c {secret}")
            assert everybody.text == "0\n", "neither in what started the sandbox, nor in what keeps it"

    async def test_a_cwd_that_cannot_be_is_refused(self, backend: SandboxBackend) -> None:
        async with opened(backend):
            for cwd in ("relative", "/"):
                with pytest.raises(SandboxError):
                    await backend.start(self.spec(cwd=cwd))

    async def test_the_working_directory_is_made(self, backend: SandboxBackend) -> None:
        async with self.started(backend, cwd="/some/where else") as sandbox:
            for result in (await sandbox.run("pwd"), await sandbox.exec(["pwd"])):
                assert result.text.endswith("/some/where else\n")
            await sandbox.write("here", b"x")
            assert (await sandbox.run("cat here")).text == "x"

    async def test_shared_read_only_paths(self, backend: SandboxBackend, tmp_path: Path) -> None:
        need(backend, capabilities_of(backend).read_only, "read_only")
        shared = tmp_path / "shared"
        shared.mkdir()
        (shared / "data").write_text("given")
        async with self.started(backend, read_only=((str(shared), "/work/given"),)) as sandbox:
            assert (await sandbox.run("cat given/data")).text == "given"
            if capabilities_of(backend).isolated:
                assert (await sandbox.run("echo x > given/data")).exit_code != 0
                assert (await sandbox.run("rm -f given/data")).exit_code != 0
                assert (shared / "data").read_text() == "given"

    async def test_what_it_cannot_do_is_refused_before_anything_starts(self, backend: SandboxBackend) -> None:
        need(backend, isinstance(backend, Capable), "any capabilities")
        can = capabilities_of(backend)
        asked: list[dict[str, Any]] = []
        if not can.image:
            asked.append({"image": "debian:12"})
        if not can.rootfs:
            asked.append({"rootfs": "/srv/rootfs"})
        if not can.read_only:
            asked.append({"read_only": (("/usr", "/work/usr"),)})
        if not can.snapshots:
            asked.append({"snapshot": _NoSnapshot()})
        networks = {"none": "none", "host": "host", "allow": Allow(("example.org",))}
        asked += [{"network": network} for name, network in networks.items() if name not in can.networks]
        for limit, value in (("cpus", 1.0), ("memory_bytes", 1 << 30), ("processes", 100), ("disk_bytes", 1 << 30)):
            if limit not in can.limits:
                asked.append({"limits": Limits(**{limit: value})})  # type: ignore[arg-type]  # cpus alone is a float
        async with opened(backend):
            for changes in asked:
                with pytest.raises(ConfigError, match=next(iter(changes))):
                    await backend.start(self.spec(**changes))

    async def test_it_ends_by_itself_at_its_lifetime(self, backend: SandboxBackend) -> None:
        need(backend, capabilities_of(backend).lifetime, "lifetime")
        async with self.started(backend, lifetime_s=self.lifetime_s) as sandbox:

            async def gone() -> bool:
                return not await sandbox.alive()

            assert await eventually(gone, within_s=self.lifetime_s + 2.0 + self.slack_s)
            with pytest.raises(SandboxDead):
                await sandbox.run("true")
            with pytest.raises(SandboxDead):
                await sandbox.exec(["true"])

    async def test_a_snapshot_keeps_the_files_and_a_fork_has_them(self, backend: SandboxBackend) -> None:
        need(backend, capabilities_of(backend).snapshots, "snapshots")
        async with self.started(backend) as sandbox:
            assert isinstance(sandbox, Snapshots)
            await sandbox.run("mkdir kept; echo first > kept/file; touch removed; rm removed; ln -s kept/file link")
            snapshot = await sandbox.snapshot()
            try:
                await sandbox.write("kept/file", b"second\n")
                fork = await sandbox.fork()
                try:
                    await fork.write("kept/file", b"third\n")
                    for number in range(2):
                        again = await backend.start(self.spec(snapshot=snapshot))
                        try:
                            assert (await again.run("cat link; ls")).text == "first\nkept\nlink\n"
                            await again.write("kept/file", f"{number}".encode())
                        finally:
                            await again.close()
                    assert await fork.read("link") == b"third\n"
                    assert await sandbox.read("link") == b"second\n"
                finally:
                    await fork.close()
            finally:
                await snapshot.close()
                await snapshot.close()
            assert await sandbox.read("link") == b"second\n"

    async def test_a_program_on_a_terminal(self, backend: SandboxBackend) -> None:
        need(backend, capabilities_of(backend).terminal, "terminal")
        async with self.started(backend) as sandbox:
            assert isinstance(sandbox, Interactive)
            terminal = await sandbox.terminal(["sh"], rows=10, columns=60)
            try:
                await terminal.send("test -t 0 && stty size && echo 4$((1))2\r")

                async def shown() -> bool:
                    screen = await terminal.read(timeout_s=1.0)
                    return "10 60" in screen.text and "412" in screen.text

                assert await eventually(shown, within_s=5.0 + self.slack_s)
                await terminal.send("sleep 100\r")
                await anyio.sleep(0.3)
                await terminal.send("\x03exit 7\r")

                async def ended() -> bool:
                    return (await terminal.read(timeout_s=1.0)).exit_code == 7

                assert await eventually(ended, within_s=5.0 + self.slack_s)
            finally:
                await terminal.close()
                await terminal.close()


class _NoSnapshot:
    name = "none"

    async def close(self) -> None: ...
