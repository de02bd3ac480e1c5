"""Tools from functions: what the policy sees, what is injected, what comes back."""

import functools
import pickle
from typing import Annotated, Any, Protocol, runtime_checkable

import anyio
import attrs
import pytest

from agentkit.errors import ConfigError, SandboxDead, ToolError
from agentkit.protocols import Files, Observation, Shell, Tool, ToolCall, ToolContext
from agentkit.tools import FunctionTool, finish, submit, tool


def context_for(env: object = None, deadline: float = float("inf")) -> ToolContext:
    return ToolContext(ToolCall("call_0", "t", {}), env, "task#0", deadline)


@runtime_checkable
class Counter(Protocol):
    def count(self) -> int: ...


class NotCheckable(Protocol):
    def count(self) -> int: ...


class Room:
    def __init__(self) -> None:
        self.n = 0

    def count(self) -> int:
        self.n += 1
        return self.n


@tool
async def look(counter: Counter, context: ToolContext, what: str, near: list[int] | None = None) -> str:
    """Look at something.

    Twice, if need be.

    Args:
        counter: Not for the policy.
        what: The thing to look at,
            by name.
        near (list): Places
            nearby.

    Returns:
        What was seen.
    """
    return f"{what} {near} {counter.count()} {context.rollout_id}"


def test_spec_holds_what_the_policy_may_give_and_the_env_must():
    assert isinstance(look, Tool)
    assert look.spec.name == "look"
    assert look.spec.description == "Look at something.\n\nTwice, if need be."
    assert look.spec.parameters == {
        "type": "object",
        "properties": {
            "what": {"type": "string", "description": "The thing to look at, by name."},
            "near": {
                "anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
                "description": "Places nearby.",
            },
        },
        "required": ["what"],
    }
    assert look.spec.needs == (Counter,)
    assert (look.spec.parallel, look.spec.timeout_s) == (False, None)


async def test_env_and_context_are_injected_and_cannot_be_forged():
    room = Room()
    first = await look.call({"what": "door"}, context_for(room))
    second = await look.call({"what": "door", "near": [1], "counter": "forged", "context": 1}, context_for(room))
    assert first == Observation("door None 1 task#0")
    assert second == Observation("door [1] 2 task#0")


async def test_the_tool_is_still_the_function():
    assert await look(Room(), context_for(), "x") == "x None 1 task#0"
    assert look.__name__ == "look"
    assert look.__doc__ is not None
    assert look.__doc__.startswith("Look")
    assert pickle.loads(pickle.dumps(look)) is look


async def test_options_and_renaming():
    @tool(name="peek", parallel=True, timeout_s=3)
    async def inner(at: Annotated[str, "where to peek"]) -> str:
        return at

    assert (inner.spec.name, inner.spec.parallel, inner.spec.timeout_s) == ("peek", True, 3)
    assert inner.spec.parameters["properties"] == {"at": {"type": "string", "description": "where to peek"}}
    again = tool(name="again")(inner)
    assert again.spec.name == "again"
    assert again.spec.description == inner.spec.description
    assert await again.call({"at": "x"}, context_for()) == Observation("x")
    with pytest.raises(ConfigError, match="timeout_s"):
        tool(name="never", timeout_s=0)(inner)


async def test_bound_methods_partials_and_callable_objects_make_tools():
    class Place:
        name = "here"

        async def where(self, far: bool) -> str:
            return f"{self.name} {far}"

        async def __call__(self, n: int) -> int:
            return n + 1

    assert await tool(Place().where).call({"far": True}, context_for()) == Observation("here True")
    assert await tool(name="add")(Place()).call({"n": 1}, context_for()) == Observation("2")
    bound = tool(name="at")(functools.partial(Place().where, far=False))
    assert bound.spec.parameters["required"] == []
    assert await bound.call({}, context_for()) == Observation("here False")


@attrs.frozen
class Found:
    path: str
    line: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "(nothing returned)"),
        ({"a": [1, None, "ü"]}, '{"a": [1, null, "ü"]}'),
        ([Found("a", 1)], '[{"path": "a", "line": 1}]'),
        (3.5, "3.5"),
        ((), "[]"),
    ],
)
async def test_what_is_returned_becomes_text(value, text):
    @tool
    async def give() -> Any:
        return value

    assert await give.call({}, context_for()) == Observation(text)


async def test_observations_pass_unchanged():
    given = Observation("x", done=True, metadata={"k": 1})

    @tool
    async def give() -> Observation:
        return given

    assert await give.call({}, context_for()) is given


async def test_what_no_policy_can_read_is_a_tool_error():
    @tool
    async def give() -> Any:
        return object()

    with pytest.raises(ToolError, match="'give' must return an Observation, text or a JSON value, found object"):
        await give.call({}, context_for())


async def test_errors_of_the_function_pass_but_none_ends_the_process():
    @tool
    async def fail(kind: str) -> None:
        raise {"dead": SandboxDead("gone"), "value": ValueError("bad"), "exit": SystemExit(3)}[kind]

    with pytest.raises(SandboxDead, match="gone"):
        await fail.call({"kind": "dead"}, context_for())
    with pytest.raises(ValueError, match="bad"):
        await fail.call({"kind": "value"}, context_for())
    with pytest.raises(ToolError, match=r"SystemExit\(3\)"):
        await fail.call({"kind": "exit"}, context_for())


async def test_an_async_tool_is_cancelled():
    @tool
    async def sleep() -> None:
        await anyio.sleep(3600)

    with anyio.move_on_after(1) as scope:
        await sleep.call({}, context_for())
    assert scope.cancelled_caught


def test_every_bad_signature_names_the_parameter():
    async def bare(x): ...
    async def rest(*x: int): ...
    async def odd(x: complex): ...
    async def pair(x: tuple[int, str]): ...
    async def keys(x: dict[int, str]): ...
    async def need(x: NotCheckable): ...
    async def unknown(x: "Nowhere"): ...  # type: ignore[name-defined]  # noqa: F821

    for function, words in [
        (bare, "'x' of tool 'bare' has no annotation"),
        (rest, "'x' of tool 'rest' must be a plain named parameter"),
        (odd, "'x' of tool 'odd' cannot be annotated .*complex"),
        (pair, r"'x' of tool 'pair' .*only tuple\[T, \.\.\.\]"),
        (keys, "'x' of tool 'keys' .*keys of a JSON object are str"),
        (need, "'x' of tool 'need' needs NotCheckable of the env, which is not @runtime_checkable"),
        (unknown, "annotations of tool 'unknown' cannot be read: .*Nowhere"),
    ]:
        with pytest.raises(ConfigError, match=words):
            tool(function)


def test_protocols_of_the_sandbox_are_needs():
    @tool
    async def both(shell: Shell, files: Files, again: Shell, path: str) -> str:
        return path

    assert isinstance(both, FunctionTool)
    assert both.spec.needs == (Shell, Files)
    assert list(both.spec.parameters["properties"]) == ["path"]  # type: ignore[arg-type]


async def test_finish_and_submit_end_the_rollout():
    ended = await finish.call({"answer": "42"}, context_for())
    assert (ended.done, ended.content, ended.metadata) == (True, "42", {"answer": "42"})
    handed_in = await submit.call({}, context_for())
    assert handed_in.done
    assert handed_in.metadata == {"submitted": True}
    assert finish.spec.parameters["required"] == ["answer"]
    assert submit.spec.parameters["properties"] == {}
