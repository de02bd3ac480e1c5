"""SWE-ReX's clouds: its own deployments, with clients that run the real server on this machine.

The clients are ours, made after the real ones; what modal is called with is checked against the real client's
signatures where that is installed. Nothing here has seen the clouds themselves.
"""

import contextlib
import inspect
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import pytest
from agentkit_swerex import SwerexBackend

from agentkit.errors import MissingExtraError, SandboxDead, SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.protocols.sandbox_spec import Limits
from agentkit.sandbox import collect
from agentkit.sandbox.registry import Registry

pytestmark = pytest.mark.slow


class Machine:
    """One sandbox of a cloud: a server that was told to start with some command line."""

    def __init__(self, command: str) -> None:
        self.command = command
        found = re.search(r"swerex-remote --port \d+ --auth-token (\S+)", command)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        words = ["--host", "127.0.0.1", "--port", str(self.port), *(["--auth-token", found[1]] if found else [])]
        code = "from swerex.server import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Cloud:
    """Every machine that was made, and how the next one is."""

    def __init__(self) -> None:
        self.machines: list[Machine] = []
        self.asked: list[dict[str, Any]] = []
        self.making = threading.Event()
        self.may_make = threading.Event()
        self.may_make.set()
        self.deaf = False

    def make(self, command: str, **asked: Any) -> Machine:
        self.asked.append(asked)
        self.making.set()
        self.may_make.wait(20.0)
        machine = Machine(command)
        self.machines.append(machine)
        return machine

    @property
    def running(self) -> int:
        return sum(machine.runs for machine in self.machines)


class Both:
    """A method as modal has them: plain, and for an event loop as `.aio`."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        return await anyio.to_thread.run_sync(lambda: self._call(*args, **kwargs))


def modal(cloud: Cloud) -> ModuleType:
    real = None
    if find_spec("modal") is not None:
        import modal as real_modal

        real = inspect.signature(real_modal.Sandbox.create)
    named: dict[str, Any] = {}

    class NotFoundError(Exception):
        pass

    class Sandbox:
        def __init__(self, machine: Machine, number: int) -> None:
            self.object_id = f"sb-{number}"
            self._machine = machine
            self.poll = Both(self._machine.process.poll)
            self.terminate = Both(lambda: None if cloud.deaf else self._machine.end())
            self.tunnels = Both(lambda: {8880: SimpleNamespace(url=f"http://127.0.0.1:{self._machine.port}")})
            self._get_task_id = Both(lambda: "ta-1")

        class _Create(Both):
            __signature__ = real

            def __call__(self) -> None: ...

        @staticmethod
        def made(*args: Any, **kwargs: Any) -> "Sandbox":
            if real is not None:
                real.bind(*args, **kwargs)
            sandbox = Sandbox(cloud.make(args[-1], **kwargs), len(cloud.machines) + 1)
            named[kwargs["name"]] = named[sandbox.object_id] = sandbox
            return sandbox

        @staticmethod
        def found(*key: str) -> "Sandbox":
            if key[-1] not in named:
                raise NotFoundError(key)
            return named[key[-1]]

    def create(*, name: str | None = None) -> None: ...

    class Image:
        @staticmethod
        def from_registry(name: str, secrets: Any = None) -> "Image":
            del name, secrets
            return Image()

        def apt_install(self, *_: str) -> "Image":
            return self

        run_commands = apt_install

    Sandbox.create = Sandbox._Create(Sandbox.made) if real is not None else create  # type: ignore[attr-defined]
    if real is None:
        create.aio = Both(Sandbox.made).aio  # type: ignore[attr-defined]
    Sandbox.from_id = Both(Sandbox.found)  # type: ignore[attr-defined]
    Sandbox.from_name = Both(Sandbox.found)  # type: ignore[attr-defined]
    module = ModuleType("modal")
    module.Sandbox, module.Image = Sandbox, Image  # type: ignore[attr-defined]
    module.App = SimpleNamespace(lookup=lambda name, create_if_missing: SimpleNamespace(name=name))  # type: ignore[attr-defined]
    module.config = SimpleNamespace(_profile="someone")  # type: ignore[attr-defined]
    return module


def boto3(cloud: Cloud) -> ModuleType:
    tasks: dict[str, Machine] = {}

    def run_task(**asked: Any) -> Any:
        (command,) = asked["overrides"]["containerOverrides"][0]["command"]
        machine = cloud.make(command, **asked)
        tasks[f"arn:task/{machine.port}"] = machine
        return {"tasks": [{"taskArn": f"arn:task/{machine.port}"}]}

    def describe_tasks(cluster: str, tasks: list[str]) -> Any:
        assert cluster == "arn:cluster"
        status = "RUNNING" if found[tasks[0]].runs else "STOPPED"
        details = [{"value": "subnet"}, {"value": "eni"}]
        return {"tasks": [{"lastStatus": status, "attachments": [{"details": details}]}]}

    found = tasks
    clients = {
        "iam": SimpleNamespace(),
        "ecs": SimpleNamespace(
            run_task=run_task,
            describe_tasks=describe_tasks,
            stop_task=lambda cluster, task: None if cloud.deaf else tasks[task].end(),
            get_waiter=lambda _: SimpleNamespace(wait=lambda **_: None),
        ),
    }
    module = ModuleType("boto3")
    module.client = clients.__getitem__  # type: ignore[attr-defined]
    module.Session = None  # type: ignore[attr-defined]
    return module


def daytona_sdk(cloud: Cloud) -> ModuleType:
    made: dict[str, Any] = {}

    class Daytona:
        def __init__(self, config: Any = None) -> None:
            self.config = config

        def create(self, params: Any) -> Any:
            sandbox = SimpleNamespace(id=f"id-{len(made)}", params=params, machine=None)

            def execute_session_command(session: str, request: Any) -> Any:
                del session
                sandbox.machine = cloud.make(request.command, **vars(params))
                return SimpleNamespace(exit_code=None, output="")

            sandbox.process = SimpleNamespace(
                create_session=lambda name: None, execute_session_command=execute_session_command
            )
            sandbox.get_preview_link = lambda port: SimpleNamespace(
                url=f"http://127.0.0.1:{sandbox.machine.port}", token="preview"
            )
            made[sandbox.id] = sandbox
            return sandbox

        def get(self, number: str) -> Any:
            if number not in made:
                raise LookupError("sandbox not found")
            return made[number]

        def delete(self, sandbox: Any) -> None:
            if cloud.deaf:
                raise OSError("the cloud is not reached")
            sandbox.machine.end()
            made.pop(sandbox.id, None)

    module = ModuleType("daytona_sdk")
    module.Daytona = Daytona  # type: ignore[attr-defined]
    for name in ("CreateSandboxFromImageParams", "DaytonaConfig", "SessionExecuteRequest"):
        setattr(module, name, lambda **given: SimpleNamespace(**given))
    return module


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    cloud = Cloud()
    exceptions = ModuleType("botocore.exceptions")
    exceptions.NoCredentialsError = RuntimeError  # type: ignore[attr-defined]
    parts = {"botocore": ModuleType("botocore"), "botocore.exceptions": exceptions}
    parts |= {"modal": modal(cloud), "boto3": boto3(cloud), "daytona_sdk": daytona_sdk(cloud)}
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("modal", "fargate", "daytona"):
        monkeypatch.delitem(sys.modules, f"swerex.deployment.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "swerex.utils.aws", raising=False)
    try:
        import swerex.deployment.fargate as fargate

        monkeypatch.setattr(fargate, "get_cluster_arn", lambda _: "arn:cluster")
        monkeypatch.setattr(fargate, "get_execution_role_arn", lambda **_: "arn:role")
        monkeypatch.setattr(fargate, "get_task_definition", lambda **_: {"taskDefinitionArn": "arn:definition"})
        monkeypatch.setattr(fargate, "get_default_vpc_and_subnet", lambda: ("vpc", "subnet"))
        monkeypatch.setattr(fargate, "get_security_group", lambda **_: "group")
        monkeypatch.setattr(fargate, "get_public_ip", lambda task, _: "127.0.0.1")
        yield cloud
    finally:
        for machine in cloud.machines:
            with contextlib.suppress(OSError):
                machine.end()
        for name in ("modal", "fargate", "daytona"):
            sys.modules.pop(f"swerex.deployment.{name}", None)


def backend(kind: str, cloud: Cloud) -> SwerexBackend:
    given: dict[str, Any] = {"type": kind}
    if kind == "fargate":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            given["log_group"] = None
    del cloud
    return SwerexBackend(deployment=given)


KINDS = ["modal", "fargate", "daytona"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> str:
    if request.param == "fargate":  # its servers are all at the port of the configuration, each at its own address
        import swerex.deployment.fargate as fargate

        plain = fargate.RemoteRuntime
        monkeypatch.setattr(
            fargate, "RemoteRuntime", lambda **given: plain(**{**given, "port": cloud.machines[-1].port})
        )
    return str(request.param)


async def test_a_sandbox_in_a_cloud(kind: str, cloud: Cloud, tmp_path: Any) -> None:
    spec = SandboxSpec(network="host", cwd=str(tmp_path), image="my-image", lifetime_s=1234.5)
    sandbox = await backend(kind, cloud).start(spec)
    assert cloud.running == 1
    assert len(list(Registry().entries())) == 1
    try:
        assert (await sandbox.run("echo a > file; cat file")).text == "a\n"
        assert (await sandbox.run("sleep 60", timeout_s=0.3)).timed_out
    finally:
        await sandbox.close()
    assert cloud.running == 0
    assert list(Registry().entries()) == []
    if kind == "daytona":
        assert cloud.asked[0]["labels"]["agentkit.name"] == sandbox.name
        assert "timeout 1235" in cloud.machines[0].command
    if kind == "fargate":
        assert "timeout 1235" in cloud.machines[0].command
    if kind == "modal":
        assert cloud.asked[0]["timeout"] == 1235
        assert cloud.asked[0]["name"].endswith(sandbox.name)


async def test_modal_is_told_the_limits(cloud: Cloud, tmp_path: Any) -> None:
    limits = Limits(cpus=2.0, memory_bytes=1 << 30)
    sandbox = await backend("modal", cloud).start(SandboxSpec(network="host", cwd=str(tmp_path), limits=limits))
    await sandbox.close()
    assert (cloud.asked[0]["cpu"][1], cloud.asked[0]["memory"][1]) == (2.0, 1024)


async def test_a_machine_that_goes_is_dead(
    kind: str, cloud: Cloud, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkit_swerex.bridge.PATIENCE_S", 1.0)
    sandbox = await backend(kind, cloud).start(SandboxSpec(network="host", cwd=str(tmp_path)))
    try:
        cloud.machines[0].end()
        with anyio.fail_after(40.0), pytest.raises(SandboxDead):
            await sandbox.run("true")
    finally:
        await sandbox.close()


async def test_a_start_cancelled_while_the_cloud_makes_it(kind: str, cloud: Cloud, tmp_path: Any) -> None:
    cloud.may_make.clear()

    async def later() -> None:
        await anyio.to_thread.run_sync(cloud.making.wait, 20.0)
        scope.cancel()
        await anyio.sleep(0.3)
        cloud.may_make.set()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(later)
            await backend(kind, cloud).start(SandboxSpec(network="host", cwd=str(tmp_path)))
        assert scope.cancelled_caught
    with anyio.fail_after(20.0):
        while cloud.running or list(Registry().entries()):
            await anyio.sleep(0.05)
    assert len(cloud.machines) == 1  # it was made, and removed


async def test_what_cannot_be_removed_stays_registered(
    kind: str, cloud: Cloud, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentkit_swerex.modal.STOP_S", 0.5)
    if kind == "fargate":
        pytest.skip("a task that was told to stop does")
    sandbox = await backend(kind, cloud).start(SandboxSpec(network="host", cwd=str(tmp_path)))
    cloud.deaf = True
    await sandbox.close()
    (entry,) = Registry().entries()
    assert "stays registered" in caplog.text
    with pytest.raises(SandboxError):
        await SwerexBackend.remove(entry)
    cloud.deaf = False
    await SwerexBackend.remove(entry)
    await SwerexBackend.remove(entry)
    assert cloud.running == 0


async def test_what_a_killed_process_left_is_collected(
    kind: str, cloud: Cloud, tmp_path: Any, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await backend(kind, cloud).start(SandboxSpec(network="host", cwd=str(tmp_path)))
    (entry,) = Registry().entries()
    (path,) = registry.glob("*.json")
    boot, pid, started = entry.owner.split(".")
    path.write_text(path.read_text().replace(entry.owner + '"', f'{boot}.{pid}.{int(started) - 1}"'))
    collected = await collect(types=("swerex",))
    assert len(collected.removed) == 1
    assert cloud.running == 0
    await sandbox.close()


async def test_a_client_that_is_not_installed_is_named(tmp_path: Any) -> None:
    if find_spec("daytona_sdk") is not None:
        pytest.skip("daytona_sdk is installed")
    made = SwerexBackend(deployment="daytona")
    assert "daytona_sdk" in (made.available() or "")
    began = time.monotonic()
    with pytest.raises(MissingExtraError, match=r"swe-rex\[daytona\]"):
        await made.start(SandboxSpec(network="host", cwd=str(tmp_path)))
    assert list(Registry().entries()) == []
    assert time.monotonic() - began < 10.0
