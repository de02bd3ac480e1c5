"""Engines' command lines are run apart from the event loop, and get no more of our environment than they need."""

import json
from pathlib import Path

import anyio
import pytest

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import SandboxSpec
from agentkit.sandbox import DockerBackend, Entry, Registry
from agentkit.sandbox.containers.client import Client, as_data, from_data

pytestmark = pytest.mark.slow


def _engine(directory: Path, script: str) -> Client:
    path = directory / "engine"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return Client(str(path))


async def test_secrets_of_ours_do_not_reach_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("DOCKER_HOST", "unix:///there")
    result = await Client("env").call()
    assert "hunter2" not in result.text
    assert "DOCKER_HOST=unix:///there\n" in result.text
    assert "PATH=" in result.text


async def test_a_call_that_hangs_ends_and_its_arguments_stay_secret(tmp_path: Path) -> None:
    client = _engine(tmp_path, "sleep 100")
    began = anyio.current_time()
    with pytest.raises(SandboxError, match=r"engine run did not end within 0\.2 s") as caught:
        await client.call("run", "--env", "KEY=hunter2", timeout_s=0.2)
    assert anyio.current_time() - began < 10.0
    assert caught.value.retryable
    assert "hunter2" not in str(caught.value)


async def test_daemons_of_an_engine_live_on(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    client = _engine(tmp_path, f"(setsid sh -c 'sleep 1.5; echo yes > {alive}' >/dev/null 2>&1 &); sleep 0.1")
    await client.call("run")
    with anyio.move_on_after(20.0):
        while not alive.exists():
            await anyio.sleep(0.05)
    assert alive.read_text() == "yes\n"


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        (["0 name"], 1),
        (["1 Error: No such container: name"], 1),
        (["1 removal of container name is already in progress", "1 Error: No such container: name"], 2),
    ],
)
async def test_a_container_is_removed_or_seen_to_be_gone(tmp_path: Path, answers: list[str], calls: int) -> None:
    for number, answer in enumerate(answers):
        (tmp_path / f"{number}").write_text(answer)
    script = """
    n=$(cat n 2>/dev/null || echo 0)
    echo $((n + 1)) > n
    read -r code said < $n
    echo $said
    exit $code"""
    client = _engine(tmp_path, f"cd {tmp_path}{script}")
    await client.remove("name", ("--force",))
    assert (tmp_path / "n").read_text() == f"{calls}\n"


async def test_a_container_that_stays_is_an_error(tmp_path: Path) -> None:
    client = _engine(tmp_path, "echo no permission; exit 1")
    with pytest.raises(SandboxError, match="no permission"):
        await client.remove("name", ())


def test_an_entry_says_how_to_call_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _engine(tmp_path, "true")
    monkeypatch.chdir(tmp_path)
    client = Client("./engine --root '/a b'")
    entry = Entry(type="podman", name="n", owner="o", data=as_data(client))
    assert json.loads(entry.data["command"]) == [str(tmp_path / "engine"), "--root", "/a b"]
    monkeypatch.chdir("/")
    assert from_data(entry, "podman").words == client.words
    assert from_data(Entry(type="podman", name="n", owner="o"), "true").words[0].endswith("/true")
    with pytest.raises(ConfigError, match="command"):
        Client(" ")


async def test_without_a_daemon_nothing_was_made_and_nothing_is_to_be_removed(tmp_path: Path) -> None:
    says = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    _engine(tmp_path, f"echo '{says}' >&2; exit 1")
    backend = DockerBackend(command=str(tmp_path / "engine"), image="debian", directory=str(tmp_path))
    with pytest.raises(SandboxError, match="Cannot connect"):
        await backend.start(SandboxSpec())
    assert list(Registry().entries()) == []
