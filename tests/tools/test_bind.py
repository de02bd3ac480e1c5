"""Needs of tools against envs: everything that is missing is said at once, and what cannot be known is not said."""

import functools
from typing import Any, Protocol, runtime_checkable

import pytest

from agentkit.errors import ConfigError
from agentkit.protocols import Env, ExecResult, Files, Sandbox, Shell
from agentkit.tools import check_needs, execute_bash, finish, tool
from agentkit.tools.bind import protocol_members


class Counting:
    async def start(self, task):
        return None

    async def close(self): ...


class WithShell(Counting):
    async def run(self, command, *, timeout_s=None, cap=None):
        return ExecResult(0, b"")

    async def exec(self, argv, **options):
        return ExecResult(0, b"")


class Declares(Counting):
    run: Any
    exec: Any


class Forwards(Counting):
    def __getattr__(self, name):
        if name in ("run", "exec"):
            return lambda: None
        raise AttributeError(name)


class RunOnly(Counting):
    def __init__(self):
        self.run = lambda: None
        self.exec = None


@tool
async def read_file(path: str, files: Files) -> str:
    """Read a file."""
    return (await files.read(path)).decode()


MISSING = r"tool 'execute_bash' needs Shell \(run, exec\) of the env, but Counting has no run, exec"


def makes_counting() -> Counting:
    return Counting()


def makes_shell(root: str) -> WithShell:
    return WithShell()


def makes_something() -> Env:
    return WithShell()


def says_nothing():
    return Counting()


def unreadable() -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
    return Counting()


class Factory:
    def __call__(self) -> Counting:
        return Counting()


@pytest.mark.parametrize(
    "env",
    [Counting, Counting(), makes_counting, Factory(), functools.partial(Counting), functools.partial(makes_counting)],
)
def test_an_unmet_need_is_named(env):
    with pytest.raises(ConfigError, match=f"^{MISSING}$"):
        check_needs([finish, execute_bash], env)
    check_needs([finish], env)


@pytest.mark.parametrize(
    "env", [WithShell, WithShell(), Declares, Forwards, Forwards(), makes_shell, functools.partial(makes_shell, "/")]
)
def test_met_needs_pass(env):
    check_needs([finish, execute_bash], env)


@pytest.mark.parametrize("env", [makes_something, says_nothing, unreadable])
def test_what_a_factory_does_not_say_is_left_for_the_instance(env):
    check_needs([execute_bash], env)


def test_every_unmet_need_is_said_at_once():
    with pytest.raises(ConfigError, match=MISSING + r"; tool 'read_file' needs Files \(read, write\) of the env, but "):
        check_needs([execute_bash, finish, read_file], Counting)


def test_a_member_that_is_none_is_missing():
    with pytest.raises(ConfigError, match=r"but RunOnly has no exec$"):
        check_needs([execute_bash], RunOnly())


def test_no_env_meets_no_need():
    check_needs([finish], None)
    with pytest.raises(ConfigError, match="but the agent without an env has no run, exec"):
        check_needs([execute_bash], None)


def test_members_include_what_a_protocol_inherits_and_its_attributes():
    @runtime_checkable
    class Named(Shell, Protocol):
        label: str

    assert protocol_members(Named) == ("run", "exec", "label")
    assert set(protocol_members(Sandbox)) == {"run", "exec", "read", "write", "upload", "download", "alive", "close"}
