"""Tools of verl in rollouts of ours: one instance a rollout, released whatever happens."""

import json
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from agentkit_verl.instances import AgentData, EnvWithTools, HoldsVerlTools, with_tools
from agentkit_verl.tools import ResponseLimit, verl_tools

from agentkit import Agent, Budget, ExitReason, Message, Pool, Task, Trajectory
from agentkit.errors import ConfigError
from agentkit.models import ScriptedModel
from agentkit.protocols import Env, Observation, ObservationStatus, Steps, Tool
from agentkit.testing import World


class Schema:
    """As much of verl's `OpenAIFunctionToolSchema` as is asked of it."""

    def __init__(self, name: str) -> None:
        self.function = SimpleNamespace(name=name, model_dump=self._dump)

    def _dump(self, *, exclude_unset: bool, exclude_none: bool) -> dict[str, Any]:
        assert exclude_unset
        assert exclude_none
        number = {"type": "integer", "description": "how many"}
        return {
            "name": self.function.name,
            "description": "Counts.",
            "parameters": {"type": "object", "properties": {"n": number}, "required": ["n"]},
        }


class Counter:
    """A tool of verl that counts for each instance, and knows which are open."""

    def __init__(self, name: str = "count") -> None:
        self.tool_schema = Schema(name)
        self.name = name
        self.open: dict[str, int] = {}
        self.created: list[dict[str, Any]] = []
        self.released: list[str] = []
        self.seen: list[AgentData] = []
        self.on_create: Callable[[], Any] = anyio.lowlevel.checkpoint
        self.on_execute: Callable[[], Any] = anyio.lowlevel.checkpoint
        self.on_release: Callable[[], Any] = anyio.lowlevel.checkpoint

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, object]:
        assert instance_id is not None
        self.open[instance_id] = 0
        self.created.append(kwargs)
        await self.on_create()
        return instance_id, None

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        self.seen.append(kwargs["agent_data"])
        await self.on_execute()
        self.open[instance_id] += parameters["n"]
        response = SimpleNamespace(text=f"now {self.open[instance_id]}", image=None, video=None)
        return response, 0.25, {"steps": 1, "tensor": object()}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.released.append(instance_id)
        del self.open[instance_id]
        await self.on_release()


def call(name: str = "count", n: int = 1) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'n': n}})}</tool_call>"


async def rolled(
    tools: Sequence[object], script: Sequence[str], *, task: Task | None = None, env: Any = None, **options: Any
) -> Trajectory:
    budget = options.pop("budget", Budget())
    agent = Agent(ScriptedModel(script), env=with_tools(env), tools=verl_tools(tools, **options), budget=budget)
    return await agent.run(task or Task("sum", "count"))


def observed(trajectory: Trajectory) -> list[Observation]:
    return [each for turn in trajectory.turns for each in turn.observations]


def function_tool(name: str, fn: Callable[..., Any], *, is_async: bool = True) -> object:
    return SimpleNamespace(name=name, tool_schema=Schema(name), fn=fn, is_async=is_async)


async def test_a_rollout_has_one_instance_from_its_first_call_to_its_end() -> None:
    tool, idle = Counter(), Counter("idle")
    trajectory = await rolled([tool, idle], [call(n=1), call(n=2), "done"])
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert [each.content for each in observed(trajectory)] == ["now 1", "now 3"]
    assert [dict(each.metadata) for each in observed(trajectory)] == [
        {"tool_reward": 0.25, "tool_metrics": {"steps": 1}}
    ] * 2
    assert (len(tool.created), len(tool.released), tool.open) == (1, 1, {})
    assert (idle.created, idle.released) == ([], [])


async def test_rollouts_share_nothing_and_leave_nothing() -> None:
    tool = Counter()
    tool.on_execute = lambda: anyio.sleep(1)
    agent = Agent(ScriptedModel([call(n=1), call(n=1), "done"]), env=with_tools(None), tools=verl_tools([tool]))
    async with Pool(agent, group_size=8) as pool:
        trajectories = await pool.run([Task("sum", "count")])
    assert all([each.content for each in observed(trajectory)] == ["now 1", "now 2"] for trajectory in trajectories)
    assert (len(set(tool.released)), tool.open) == (8, {})
    assert len({each.request_id for each in tool.seen}) == 8


async def test_a_tool_is_made_with_the_arguments_of_its_task() -> None:
    kwargs = {"count": {"create_kwargs": {"start": [1]}}, "other": 3}
    tool = Counter()
    await rolled([tool], [call(), "done"], task=Task("sum", "count", {"tools_kwargs": kwargs}))
    assert tool.created == [{"create_kwargs": {"start": [1]}}]
    assert tool.seen[0].tools_kwargs == kwargs
    bare = Counter()
    await rolled([bare], [call(), "done"])
    assert bare.created == [{"create_kwargs": {}}]


async def test_arguments_that_are_no_object_are_told() -> None:
    trajectory = await rolled([Counter()], ["done"], task=Task("sum", "count", {"tools_kwargs": [1]}))
    assert trajectory.exit_reason is ExitReason.INTERNAL_ERROR
    assert "data.tools_kwargs must be an object" in str(trajectory.error)
    of_tool = Task("sum", "count", {"tools_kwargs": {"count": 3}})
    told = observed(await rolled([Counter()], [call(), "done"], task=of_tool))[0]
    assert (told.status, "tools_kwargs.count must be an object, found 3" in told.content) == (
        ObservationStatus.ERROR,
        True,
    )


async def test_what_a_tool_raises_is_for_the_policy_to_read() -> None:
    tool = Counter()

    def fail() -> None:
        raise ValueError("no such number")

    tool.on_execute = fail
    trajectory = await rolled([tool], [call(), "done"])
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert observed(trajectory)[0].content == "Error: tool 'count' failed: ValueError: no such number"
    assert tool.open == {}


async def test_an_instance_that_could_not_be_made_is_tried_again_and_not_released() -> None:
    tool, tries = Counter(), []

    async def fail_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("busy")

    tool.on_create = fail_once
    trajectory = await rolled([tool], [call(), call(), "done"])
    assert [each.content for each in observed(trajectory)] == ["Error: tool 'count' failed: OSError: busy", "now 1"]
    assert len(tool.released) == 1


async def test_a_call_that_is_cut_while_it_makes_its_instance_leaves_nothing() -> None:
    tool, tries = Counter(), []

    async def hang_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            await anyio.sleep_forever()

    tool.on_create = hang_once
    trajectory = await rolled([tool], [call(), call(n=3), "done"], budget=Budget(tool_s=5))
    first, second = observed(trajectory)
    assert (first.status, second.content) == (ObservationStatus.TIMEOUT, "now 3")
    assert (len(tool.created), len(set(tool.released)), tool.open) == (2, 2, {})


async def test_cancelled_rollouts_release_their_instances() -> None:
    tool = Counter()
    tool.on_execute = anyio.sleep_forever
    with anyio.move_on_after(30):
        await rolled([tool], [call()], budget=Budget(tool_s=1000, trajectory_s=2000))
    assert (len(tool.created), tool.open) == (1, {})


async def test_a_tool_that_does_not_release_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    stuck, broken, fine = Counter("stuck"), Counter("broken"), Counter("fine")

    def fail() -> None:
        raise OSError("gone")

    stuck.on_release, broken.on_release = anyio.sleep_forever, fail
    started = anyio.current_time()
    with caplog.at_level(logging.WARNING, logger="agentkit_verl.instances"):
        script = [call("stuck"), call("fine"), call("broken"), "done"]
        trajectory = await rolled([stuck, broken, fine], script, env=world)
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert (stuck.open, broken.open, fine.open) == ({}, {}, {})
    assert anyio.current_time() - started == pytest.approx(5, abs=0.5)
    assert (world.open, world.closed) == (set(), 1)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "tool 'broken' did not release its instance: OSError('gone')",
        "tool 'stuck' took longer than 5 s to release; not asked: none",
    ]


async def test_calls_side_by_side_share_one_instance() -> None:
    tool = Counter()
    tool.on_create = lambda: anyio.sleep(1)
    trajectory = await rolled([tool], [call(n=1) + call(n=2), "done"], parallel=True)
    assert sorted(each.content for each in observed(trajectory)) in (["now 1", "now 3"], ["now 2", "now 3"])
    assert len(tool.created) == 1


class Wordy:
    """An env that speaks, steps, and has something for tools and rewards."""

    def __init__(self) -> None:
        self.mood = "calm"
        self.closed = 0

    async def start(self, task: Task, /) -> Sequence[Message]:
        return [Message("user", f"solve {task.id}")]

    async def step(self, action: Any, /) -> Observation:
        return Observation("go on", done=True)

    async def close(self) -> None:
        self.closed += 1


async def test_an_env_with_tools_is_the_env_within_to_everybody_else() -> None:
    env = cast("Any", with_tools(Wordy)())
    assert [isinstance(env, kind) for kind in (Wordy, Env, Steps, HoldsVerlTools)] == [True] * 4
    env.mood = "wild"
    assert env._inner.mood == env.mood == "wild"
    with pytest.raises(AttributeError, match="nothing"):
        _ = env.nothing
    assert await env.start(Task("a", "x")) == [Message("user", "solve a")]
    await env.close()
    assert env.closed == 1
    bare = with_tools(None)()
    assert [isinstance(bare, kind) for kind in (EnvWithTools, Env, HoldsVerlTools, Steps)] == [True, True, True, False]
    assert await bare.start(Task("a", "x")) is None
    await bare.close()


async def test_an_env_that_steps_goes_on_stepping() -> None:
    trajectory = await rolled([Counter()], ["hello"], env=Wordy)
    assert [message.content for message in trajectory.prompt] == ["solve sum"]
    assert [each.content for each in observed(trajectory)] == ["go on"]


async def test_the_env_closes_even_if_it_never_started() -> None:
    async def fail(task: Task) -> None:
        raise OSError("no room")

    world = World(on_start=fail)
    trajectory = await rolled([Counter()], [call(), "done"], env=world)
    assert trajectory.exit_reason is ExitReason.ENV_START_FAILED
    assert (world.open, world.closed) == (set(), world.made)


def test_an_agent_whose_env_holds_no_instances_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tool 'count' needs HoldsVerlTools \(verl_instances\) of the env"):
        Agent(ScriptedModel(["done"]), tools=verl_tools([Counter()]))


@pytest.mark.parametrize("other", [object(), SimpleNamespace(tool_schema=Schema("x"))])
def test_what_is_no_tool_of_verl_is_refused(other: object) -> None:
    with pytest.raises(ConfigError, match=r"tools\[1\] must be a tool of verl"):
        verl_tools([Counter(), other])


def test_the_schema_is_what_verl_would_show() -> None:
    (tool,) = verl_tools([Counter()])
    assert isinstance(tool, Tool)
    assert (tool.spec.name, tool.spec.description, tool.spec.parallel) == ("count", "Counts.", False)
    assert (
        tool.spec.parameters == Schema("count").function.model_dump(exclude_unset=True, exclude_none=True)["parameters"]
    )
    assert [each.spec.name for each in verl_tools([Counter("a"), Counter("b"), Counter("c")], only=["c", "a"])] == [
        "a",
        "c",
    ]


@pytest.mark.parametrize(
    ("side", "cut"),
    [("left", "(truncated)...45678"), ("right", "01234...(truncated)"), ("middle", "01...(truncated)...78")],
)
def test_long_answers_are_cut_as_verl_cuts_them(side: Any, cut: str) -> None:
    limit = ResponseLimit(5, side)
    assert limit.cut("012345678") == cut
    assert limit.cut("01234") == "01234"


def test_a_limit_of_one_character_keeps_no_more() -> None:
    assert ResponseLimit(1, "middle").cut("abc") == "...(truncated)..."


@pytest.mark.parametrize(("length", "side"), [(0, "left"), (5, "top")])
def test_a_limit_must_make_sense(length: int, side: Any) -> None:
    with pytest.raises(ConfigError, match="tool_response_truncate_side" if length else "max_tool_response_length"):
        ResponseLimit(length, side)


async def test_answers_and_errors_are_cut() -> None:
    async def shout(n: int) -> str:
        if n > 9:
            raise ValueError("y" * 99)
        return "x" * 99

    tools = [function_tool("shout", shout)]
    trajectory = await rolled(tools, [call("shout", 1), call("shout", 10), "done"], limit=ResponseLimit(20, "right"))
    assert [each.content for each in observed(trajectory)] == [
        "x" * 20 + "...(truncated)",
        "Error: tool 'shout' failed: ValueError: " + "y" * 8 + "...(truncated)",
    ]


RESPONSE = SimpleNamespace(text="said", image=None, video=None)


@pytest.mark.parametrize(
    ("returned", "content", "reward"),
    [
        ("said", "said", None),
        ({"a": "ä"}, '{"a": "ä"}', None),
        (3, "3", None),
        (RESPONSE, "said", None),
        (("said",), "said", None),
        ((RESPONSE, 0), "said", 0.0),
        ((RESPONSE, None, None), "said", None),
        ((RESPONSE, 1.5, {}), "said", 1.5),
        ((RESPONSE, float("nan")), "said", None),
        (SimpleNamespace(text=None, image=[None], video=None), "", None),
    ],
)
async def test_functions_may_return_all_that_verl_takes(returned: object, content: str, reward: float | None) -> None:
    async def give(n: int) -> object:
        return returned

    (seen,) = observed(await rolled([function_tool("give", give)], [call("give"), "done"]))
    assert (seen.content, seen.status, seen.metadata.get("tool_reward")) == (content, ObservationStatus.OK, reward)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ((), "returned 0 values"),
        (("a", 1, {}, 2), "returned 4 values"),
        (("a", "b"), "could not convert string to float"),
        (SimpleNamespace(text="", image=None, video=[1]), "returned a video"),
    ],
)
async def test_what_no_policy_can_be_shown_is_an_error(returned: object, told: str) -> None:
    async def give(n: int) -> object:
        return returned

    (seen,) = observed(await rolled([function_tool("give", give)], [call("give"), "done"]))
    assert seen.status is ObservationStatus.ERROR
    assert told in seen.content


async def test_function_tools_want_no_env_and_cannot_end_the_process() -> None:
    async def leave(n: int) -> str:
        raise SystemExit(n)

    agent = Agent(ScriptedModel([call("leave"), "done"]), tools=verl_tools([function_tool("leave", leave)]))
    (seen,) = observed(await agent.run("leave"))
    assert "SystemExit: 1" in seen.content


async def test_a_tool_that_takes_no_id_gives_its_own() -> None:
    class Own(Counter):
        async def create(self, **kwargs: Any) -> tuple[str, object]:  # type: ignore[override]
            return await super().create("mine", **kwargs)

    tool = Own()
    await rolled([tool], [call(), "done"])
    assert (tool.released, tool.created) == (["mine"], [{"create_kwargs": {}}])
