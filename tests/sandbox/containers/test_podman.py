"""What holds for containers beyond the suites: images, users, labels, hostile programs inside, and clear refusals."""

import contextlib
import io
import runpy
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentkit.errors import ConfigError, SandboxDead, SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.sandbox.containers import DockerBackend, PodmanBackend
from agentkit.sandbox.registry import Registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def _inspect(rig: Any, name: str, what: str) -> str:
    return str(rig.podman("inspect", "--format", what, name)).strip()


async def test_the_image_decides_and_the_spec_has_the_last_word(podman: PodmanBackend) -> None:
    sandbox = await podman.start(SandboxSpec(env={"FROM_THE_SPEC": "yes"}))
    try:
        for result in (await sandbox.run("env"), await sandbox.exec(["env"])):
            seen = dict(line.split("=", 1) for line in result.text.splitlines())
            assert seen["PATH"].startswith("/opt/tools/bin:")
            assert (seen["FROM_THE_IMAGE"], seen["FROM_THE_SPEC"], seen["TERM"]) == ("yes", "yes", "dumb")
            assert not {"container", "HOSTNAME", "HTTP_PROXY", "http_proxy"} & set(seen)
        own = await sandbox.exec(["sh", "-c", "echo $FROM_THE_IMAGE"], env={"FROM_THE_IMAGE": "no"})
        assert own.text == "no\n"
        await sandbox.write("/opt/tools/bin/tool", b"#!/bin/sh\necho tool")
        await sandbox.run("chmod +x /opt/tools/bin/tool")
        assert (await sandbox.exec(["tool"])).text == "tool\n", "programs are looked up on the image's own path"
    finally:
        await sandbox.close()


async def test_a_container_says_whose_it_is(podman: PodmanBackend, rig: Any) -> None:
    sandbox = await podman.start(SandboxSpec(labels={"task": "a b"}, lifetime_s=100.0))
    try:
        labels = _inspect(rig, sandbox.name, "{{json .Config.Labels}}")
        for word in ('"agentkit.owner":"', '"agentkit.deadline":"', '"task":"a b"'):
            assert word in labels
        assert [entry.name for entry in Registry().entries()] == [sandbox.name]
        capabilities = (await sandbox.run("grep CapEff /proc/self/status")).text.split()[1]
        assert int(capabilities, 16).bit_count() == 10
        assert (await sandbox.run("grep NoNewPrivs /proc/self/status")).text == "NoNewPrivs:\t1\n"
    finally:
        await sandbox.close()
    assert list(Registry().entries()) == []
    assert sandbox.name not in rig.names()


async def test_a_directory_as_the_root_is_not_written_to(podman: PodmanBackend, rig: Any) -> None:
    sandbox = await podman.start(SandboxSpec(rootfs=rig.rootfs))
    try:
        assert (await sandbox.run("echo x > /etc/written; cat /etc/written; python3 -c 'print(1)'")).text == "x\n1\n"
    finally:
        await sandbox.close()
    assert not Path(rig.rootfs, "etc/written").exists()


async def test_commands_run_as_the_user_asked_for(podman: PodmanBackend, rig: Any, directory: Path) -> None:
    backend = PodmanBackend(command=rig.command, image=rig.image, directory=str(directory), user="1234:1234")
    sandbox = await backend.start(SandboxSpec(cwd="/tmp/mine"))
    try:
        assert (await sandbox.run("id -u; pwd; touch x; export A=1")).text == "1234\n/tmp/mine\n"
        assert (await sandbox.exec(["id", "-u"])).text == "1234\n"
        assert (await sandbox.run("exit 3")).died
        assert (await sandbox.run("echo $A; pwd")).text == "1\n/tmp/mine\n", "a fresh shell takes over"
    finally:
        await sandbox.close()
    with pytest.raises(SandboxError, match="/forbidden cannot be made"):
        await backend.start(SandboxSpec(cwd="/forbidden"))
    assert list(Registry().entries()) == []


@pytest.fixture
def bare(rig: Any) -> Iterator[str]:
    """An image without any file."""
    name = "localhost/agentkit-rig:bare"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    subprocess.run([rig.command, "import", "-", name], input=archive.getvalue(), capture_output=True, check=True)
    yield name
    rig.podman("rmi", "--force", name)


async def test_what_cannot_start_says_why_and_leaves_nothing(
    podman: PodmanBackend, rig: Any, bare: str, directory: Path
) -> None:
    before = rig.names()
    for changes, why in (
        ({"image": bare}, "no bash"),
        ({"image": "localhost/no-such:image"}, "pull localhost/no-such:image"),
        ({"image": "--privileged"}, "name of an image"),
        ({"rootfs": "/no/such/directory"}, "could not start.*agentkit sandbox doctor podman"),
        ({"read_only": (("/etc,rw", "/x"),)}, "comma"),
    ):
        with pytest.raises((SandboxError, ConfigError), match=why) as caught:
            await podman.start(SandboxSpec(env={"KEY": "hunter2"}, **changes))  # type: ignore[arg-type]  # of all kinds
        assert "hunter2" not in str(caught.value)
    missing = PodmanBackend(command=rig.command, pull="missing", directory=str(directory))
    with pytest.raises(SandboxError, match="could not pull"):
        await missing.start(SandboxSpec(image="127.0.0.1:1/no/such:image"))
    await (await missing.start(SandboxSpec(image=rig.image))).close()
    with pytest.raises(ConfigError, match="set image"):
        await PodmanBackend(command=rig.command).start(SandboxSpec())
    with pytest.raises(SandboxError, match="no-such-engine"):
        await PodmanBackend(command="no-such-engine", image="x").start(SandboxSpec())
    assert [name for name in rig.names() if name not in before] == []
    assert (list(Registry().entries()), list(directory.iterdir())) == ([], [])


HOSTILE = """
cd /.agentkit
for name in *; do rm -f "$name"; mv "$name" other; ln -s /etc/passwd "$name.link"; done 2>/dev/null
mkfifo /.agentkit/mine 2>/dev/null && echo made
touch /.agentkit/file 2>/dev/null && echo made
kill -TERM 1; kill -INT 1; kill -HUP 1; kill -KILL 1; kill -ALRM 1; kill -STOP 1
echo done
"""
FORGED = """
for number in {1..400}; do
  for name in /.agentkit/s-*; do (exec 9<>"$name"; printf 'exit 0\\nsignalled x\\nno line' >&9) 2>/dev/null; done
done &
"""


async def test_hostile_programs_reach_their_own_sandbox_at_most(podman: PodmanBackend, directory: Path) -> None:
    neighbour = await podman.start(SandboxSpec())
    sandbox = await podman.start(SandboxSpec())
    try:
        shared = next(path / "shared" for path in directory.iterdir() if path.name in sandbox.name)
        kept = sorted(path.name for path in shared.iterdir() if not path.name.startswith(("s-", "f-")))
        assert kept == ["guest"]
        assert (await sandbox.run(HOSTILE, timeout_s=30.0)).text == "done\n"
        assert sorted(path.name for path in shared.iterdir() if not path.name.startswith(("s-", "f-"))) == kept
        await sandbox.run("kill -9 -1", timeout_s=5.0)
        assert (await sandbox.run("echo on", timeout_s=5.0)).text == "on\n"
        await sandbox.run(FORGED, timeout_s=5.0)
        for _ in range(5):  # it may forge what is said of its own programs, and be told dead for it
            with contextlib.suppress(SandboxDead), anyio.fail_after(10.0):
                assert (await sandbox.exec(["true"], timeout_s=5.0)).exit_code in (0, 137)
        assert (await neighbour.exec(["sh", "-c", "exit 3"])).exit_code == 3
    finally:
        with anyio.fail_after(15.0):
            await sandbox.close()
            await neighbour.close()
    assert list(directory.iterdir()) == []


async def test_a_clogged_guest_holds_nobody_up(podman: PodmanBackend, directory: Path, rig: Any) -> None:
    sandbox = await podman.start(SandboxSpec())
    # Keep the guest's own FIFO open for writing and fill it: it will not see that we are gone, and reads rubbish.
    clog = "exec 9>/proc/1/fd/200 && (while printf 'k %s\\n' {1..500} >&9; do :; done) & sleep 0.2; echo clogged"
    await sandbox.run(clog, timeout_s=5.0)
    began = anyio.current_time()
    with anyio.move_on_after(0.5), contextlib.suppress(SandboxDead):
        await sandbox.exec(["sleep", "100"])
    assert anyio.current_time() - began < 5.0
    with anyio.fail_after(25.0):
        await sandbox.close()
    assert sandbox.name not in rig.names()
    assert list(directory.iterdir()) == []


async def test_a_container_taken_away_is_dead_not_an_observation(podman: PodmanBackend, rig: Any) -> None:
    sandbox = await podman.start(SandboxSpec())
    try:
        rig.podman("rm", "--force", "--time", "0", sandbox.name)
        for call in (lambda: sandbox.run("true"), lambda: sandbox.exec(["true"]), lambda: sandbox.read("x")):
            with pytest.raises(SandboxDead):
                await call()
        assert not await sandbox.alive()
    finally:
        await sandbox.close()


async def test_what_an_owner_left_is_removed_by_its_entry(podman: PodmanBackend, rig: Any, directory: Path) -> None:
    sandbox = await podman.start(SandboxSpec())
    entry = next(iter(Registry().entries()))
    await PodmanBackend.remove(entry)
    await PodmanBackend.remove(entry)
    assert sandbox.name not in rig.names()
    assert list(directory.iterdir()) == []
    with pytest.raises(SandboxDead):
        await sandbox.run("true")
    await sandbox.close()


HOST = """
import sys, anyio
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import PodmanBackend

async def main():
    sandbox = await PodmanBackend(command=sys.argv[1], image=sys.argv[2], directory=sys.argv[3]).start(SandboxSpec())
    await sandbox.run("(setsid sleep 1000 &); trap '' TERM INT HUP; nohup sleep 1000 >/dev/null 2>&1 &")
    print(sandbox.name, flush=True)
    await sandbox.exec(["sleep", "1000"])

anyio.run(main, backend=sys.argv[4])
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_killed_host_takes_its_containers_along(loop: str, rig: Any, tmp_path: Path, directory: Path) -> None:
    """Without any collection: nobody but the container itself sees to it."""
    script = tmp_path / "host.py"
    script.write_text(HOST)
    command = [sys.executable, str(script), rig.command, rig.image, str(directory), loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        name = host.stdout.readline().decode().strip()
        assert name in rig.names()
        host.kill()
    deadline = time.monotonic() + 20.0
    while name in rig.names() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert name not in rig.names()


async def test_dockers_flags_are_flags(rig: Any, tmp_path: Path, directory: Path) -> None:
    """No docker daemon runs here: podman takes the same command line."""
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\nexec {rig.command} "$@"\n')
    docker.chmod(0o755)
    backend = DockerBackend(command=str(docker), image=rig.image, directory=str(directory))
    assert backend.available() is None
    async with backend:
        sandbox = await backend.start(SandboxSpec())
        assert (await sandbox.run("echo in docker")).text == "in docker\n"
        await sandbox.close()
        assert sandbox.name not in rig.names()
        with anyio.move_on_after(0.05):
            await (await backend.start(SandboxSpec())).close()
    assert (list(Registry().entries()), list(directory.iterdir())) == ([], [])


async def test_what_the_page_shows_is_true(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(rig.command).parent)  # a relative command means what it means here
    monkeypatch.setenv("PODMAN", f"./{Path(rig.command).name}")
    monkeypatch.setenv("IMAGE", rig.image)
    page = runpy.run_path(str(Path(__file__).parents[3] / "examples/pages/sandbox_containers.py"))
    await page["main"]()
    assert list(Registry().entries()) == []
