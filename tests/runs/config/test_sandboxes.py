"""An env that is a sandbox, from YAML: what is right is made, what is wrong is told with its path and line."""

from pathlib import Path

import pytest

from agentkit.envs import SandboxEnv
from agentkit.errors import ConfigError
from agentkit.protocols import Limits, SandboxSpec
from agentkit.runs.config import RunConfig, load_config
from agentkit.sandbox import BwrapBackend, HostBackend

RUN = """\
model: {use: scripted, script: [Done.]}
agent:
  env:
    use: sandbox
%s
dataset: {path: tasks.jsonl}
"""


def load(folder: Path, env: str) -> RunConfig:
    (folder / "tasks.jsonl").write_text('{"id": "a", "prompt": "Go."}\n')
    (folder / "run.yaml").write_text(RUN % "\n".join(f"    {line}" for line in env.splitlines()))
    return load_config(folder / "run.yaml")


def made(config: RunConfig) -> SandboxEnv:
    env = config.agent.make_env()
    assert isinstance(env, SandboxEnv)
    return env


def test_a_sandbox_and_all_around_it(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    config = load(
        tmp_path,
        "sandbox: {type: bwrap, max_starts: 4, cwd: /code, env: {A: '1'}, network: host, lifetime_s: 60}\n"
        "env: {B: '2'}\nfiles: {a.txt: hello}\nuploads: {data: tasks.jsonl}\ntools: [tool]\n"
        "commands: [make]\nstarts: {attempts: 5}\nrestarts: 2",
    )
    first, second = made(config), made(config)
    assert isinstance(first._backend, BwrapBackend)
    assert first._backend is second._backend, "one back end, whose limit of starts holds for all rollouts"
    spec = first._spec
    assert (spec.cwd, dict(spec.env), spec.network, spec.lifetime_s) == ("/code", {"A": "1", "B": "2"}, "host", 60)
    assert first._preparation.uploads == {"data": tmp_path / "tasks.jsonl"}, "relative to the configuration"
    assert list(first._preparation.tools) == [tmp_path / "tool"]
    assert (first._starts.attempts, first._restarts) == (5, 2)


def test_a_back_end_and_a_spec_with_nested_fields(tmp_path: Path) -> None:
    config = load(tmp_path, "backend: host\nspec: {cwd: /code, limits: {cpus: 0.5, memory_bytes: 1000}}")
    env = made(config)
    assert isinstance(env._backend, HostBackend)
    assert env._spec == SandboxSpec(cwd="/code", limits=Limits(cpus=0.5, memory_bytes=1000))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("sandbox: {type: bwrapp}", r"agent\.env\.sandbox\.type \(line 5\) is 'bwrapp', which is no .*'bwrap'"),
        ("sandbox: {cwd: /a}", r"agent\.env\.sandbox \(line 5\) has no type: it must be one of .*host"),
        ("sandbox: bwrap", r"agent\.env\.sandbox \(line 5\) must be a mapping with a type"),
        (
            "sandbox: {type: host, limits: {cpuz: 1}}",
            r"sandbox\.limits\.cpuz \(line 5\) .*did you mean 'cpus'\?",
        ),
        ("sandbox: {type: bwrap, cdw: /a}", r"sandbox\.cdw \(line 5\) .*did you mean 'cwd'\?"),
        ("sandbox: {type: bwrap, lifetime_s: -1}", r"sandbox\.lifetime_s \(line 5\) must be greater than 0, found -1"),
        ("sandbox:\n  type: bwrap\n  read_only: [[/usr]]", r"sandbox\.read_only.* \(line 7\)"),
        ("spec: {limits: {cpuz: 1}}", r"agent\.env\.spec\.limits\.cpuz \(line 5\) is unknown: did you mean 'cpus'\?"),
        ("starts: {atempts: 1}", r"agent\.env\.starts\.atempts \(line 5\) is unknown: did you mean 'attempts'\?"),
        ("commands: make", r"agent\.env\.commands \(line 5\) must be a list"),
        ("files: {a: 3}", r"agent\.env\.files\.a \(line 5\)"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path: Path, env: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, env)


def test_a_row_names_no_code_that_the_configuration_does_not(tmp_path: Path) -> None:
    (tmp_path / "evil_backend.py").write_text("raise RuntimeError('imported')\n")
    config = load(tmp_path, "sandbox: {type: host}")
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "a", "prompt": "Go.", "overrides": {"env": {"sandbox": {"type": "evil_backend:Backend"}}}}\n'
    )
    config = load_config(tmp_path / "run.yaml")
    (task,) = config.tasks()
    with pytest.raises(ConfigError, match=r"sandbox\.type.*may name only what has a short name") as caught:
        config.agent_of(task)
    assert "imported" not in str(caught.value)
