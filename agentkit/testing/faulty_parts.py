"""Envs, tools, rewards, loops and whole agents that fail by a plan. What they wrap is called as it always is."""

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
from attrs import evolve

from agentkit.actors import Agent
from agentkit.errors import SandboxDead
from agentkit.protocols import (
    Env,
    Json,
    Message,
    Observation,
    RolloutKey,
    Score,
    Task,
    Tool,
    ToolContext,
    ToolSpec,
    Trajectory,
)
from agentkit.testing.faulty_models import faulty_model
from agentkit.testing.plan import FaultPlan
from agentkit.testing.witness import Witness, running_rollout

if TYPE_CHECKING:
    from agentkit.actors import Rollout

ToolT = TypeVar("ToolT")
_OWN = frozenset({"start", "close", "step"})
_CALL: ContextVar[str] = ContextVar("agentkit_faulty_call", default="")
"""The tool call that this code runs for."""


def faulty_agent(agent: Agent, plan: FaultPlan, *, witness: Witness | None = None) -> Agent:
    """`agent` with every part of it wrapped: model, env, tools, reward and loop. Sub-agents stay as they are."""
    witness = witness or Witness()
    return evolve(
        agent,
        model=faulty_model(agent.model, plan, witness=witness),
        env=None if agent.env is None else faulty_env(agent.env, plan, witness=witness),
        tools=tuple(faulty_tool(tool, plan, witness=witness) for tool in agent.tools),
        reward=None if agent.reward is None else faulty_reward(agent.reward, plan, witness=witness),
        loop=faulty_loop(agent.loop, plan, witness=witness),
    )


class _Faults:
    """The faults of one part, counted."""

    def __init__(self, plan: FaultPlan, witness: Witness | None) -> None:
        self.plan = plan
        self.witness = witness or Witness()

    def strike(self, key: RolloutKey, event: object, *faults: str) -> str | None:
        """The first of `faults` that happens at this event."""
        for fault in faults:
            if self.plan.strikes(fault, key, event):
                self.witness.struck[fault] += 1
                return fault
        return None

    async def be_slow(self, key: RolloutKey, event: object) -> None:
        if self.strike(key, event, "slow"):
            await anyio.sleep(self.plan.slow_s * self.plan.draw("slow for", key, event))

    def comes_after(self, key: RolloutKey, event: object) -> bool:
        """Whether a fault comes after what was asked for was done."""
        return self.plan.draw("after", key, event) < 0.5


def faulty_env(factory: Callable[[], Env], plan: FaultPlan, *, witness: Witness | None = None) -> Callable[[], Env]:
    """A factory of envs that fail by `plan`: as they start, step or close, and as tools call their async methods.

    What is made answers for every other attribute of the env that it wraps.
    """
    faults = _Faults(plan, witness)
    kinds: dict[type, type[_FaultyEnv]] = {}

    def make() -> Env:
        inner = factory()
        if not isinstance(inner, Env):
            return inner  # whatever it is, it is told that it is no env
        kind = kinds.setdefault(type(inner), _faulty_kind(type(inner)))
        return kind(inner, faults)

    return make


def _faulty_kind(kind: type) -> "type[_FaultyEnv]":
    """A class with the async methods of `kind`, so that it satisfies the Protocols that `kind` does."""
    methods: dict[str, object] = {}
    for name in dir(kind):
        if not name.startswith("_") and name not in _OWN and inspect.iscoroutinefunction(getattr(kind, name)):
            methods[name] = _forwarding(name)
    if callable(getattr(kind, "step", None)):
        methods["step"] = _forwarding("step")
    return type(f"Faulty{kind.__name__}", (_FaultyEnv,), methods)


def _forwarding(name: str) -> "Callable[..., Awaitable[object]]":
    async def forward(self: "_FaultyEnv", *args: object, **kwargs: object) -> object:
        return await self._call(name, *args, **kwargs)

    forward.__name__ = name
    return forward


class _FaultyEnv:
    def __init__(self, inner: Env, faults: _Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._key = running_rollout()
        self._calls: Counter[str] = Counter()
        faults.witness.opened(self, self._key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def start(self, task: Task, /) -> "list[Message] | None":
        key, faults = self._key, self._faults
        await faults.be_slow(key, "start")
        fault = faults.strike(key, "start", "failed_start", "hung_start")
        said = None if fault and not faults.comes_after(key, "start") else await self._inner.start(task)
        if fault == "hung_start":
            await anyio.sleep_forever()
        elif fault is not None:
            raise OSError("the sandbox did not come up")
        return cast("list[Message] | None", said)

    async def close(self) -> None:
        faults = self._faults
        faults.witness.closed(self, self._key)
        await self._inner.close()
        fault = faults.strike(self._key, "close", "failed_close", "hung_close")
        if fault == "hung_close":
            await anyio.sleep_forever()
        elif fault is not None:
            raise OSError("the sandbox does not stop")

    async def _call(self, name: str, *args: object, **kwargs: object) -> object:
        within = _CALL.get()
        event = f"{name} {within} {self._calls[within]}"
        self._calls[within] += 1
        dies = self._faults.strike(self._key, event, "dead_sandbox") is not None
        if dies and not self._faults.comes_after(self._key, event):
            raise SandboxDead(f"the sandbox died before {name!r} ran")
        result: object = await getattr(self._inner, name)(*args, **kwargs)
        if dies:
            raise SandboxDead(f"the sandbox died while {name!r} ran")
        return result


def faulty_tool(tool: ToolT, plan: FaultPlan, *, witness: Witness | None = None) -> ToolT:
    """`tool` with the faults of `plan`; a class or factory of tools becomes such a factory.

    A tool that runs within its rollout, such as a sub-agent, stays as it is.
    """
    faults = _Faults(plan, witness)
    item: object = tool
    if inspect.isclass(item) or not isinstance(item, Tool):
        factory = cast("Callable[[], Tool]", item)
        return cast("ToolT", lambda: _wrapped_tool(factory(), faults))
    return cast("ToolT", _wrapped_tool(item, faults))


def _wrapped_tool(tool: Tool, faults: _Faults) -> Tool:
    return tool if hasattr(tool, "call_within") else _FaultyTool(tool, faults)


class _FaultyTool:
    def __init__(self, inner: Tool, faults: _Faults) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def spec(self) -> ToolSpec:
        return self._inner.spec

    async def call(self, arguments: Mapping[str, Json], context: ToolContext, /) -> Observation:
        key, faults = running_rollout(), self._faults
        event = f"{self.spec.name} {context.call.id}"  # not its place in time: calls of one turn may run side by side
        _CALL.set(event)
        await faults.be_slow(key, event)
        fault = faults.strike(key, event, "tool_error", "hung_tool", "stubborn_tool")
        if fault is None:
            return await self._inner.call(arguments, context)
        if faults.comes_after(key, event):
            await self._inner.call(arguments, context)
        if fault == "hung_tool":
            await anyio.sleep_forever()
        if fault == "stubborn_tool":
            await _refuse_to_end()
        raise RuntimeError(f"the tool {self.spec.name!r} failed")


async def _refuse_to_end() -> None:
    while True:
        try:
            await anyio.sleep(1000)
        except GeneratorExit:  # closed by force: there is nothing to be won
            raise
        except BaseException:  # noqa: S112  # what else comes is swallowed: that is the fault
            continue


def faulty_reward(reward: Any, plan: FaultPlan, *, witness: Witness | None = None) -> Any:
    """`reward`, or what its class makes for each rollout, with the faults of `plan`."""
    faults = _Faults(plan, witness)

    async def judge(trajectory: Trajectory, env: Any) -> "float | Score":
        key = running_rollout()
        fault = faults.strike(key, "reward", "failed_reward", "hung_reward")
        if fault is None or faults.comes_after(key, "reward"):
            made = cast("Callable[[Trajectory, Any], Any]", reward() if inspect.isclass(reward) else reward)
            verdict = made(trajectory, env)
            if inspect.isawaitable(verdict):
                verdict = await verdict
            if fault is None:
                return cast("float | Score", verdict)
        if fault == "hung_reward":
            await anyio.sleep_forever()
        raise RuntimeError("the grader failed")

    return judge


def faulty_loop(
    loop: "Callable[[Rollout], Awaitable[None]]", plan: FaultPlan, *, witness: Witness | None = None
) -> "Callable[[Rollout], Awaitable[None]]":
    """`loop` that now and then raises what nobody expects, before it begins or as it ends."""
    faults = _Faults(plan, witness)

    async def faulty(rollout: "Rollout") -> None:
        crashes = faults.strike(running_rollout(), "loop", "crash") is not None
        if not crashes or faults.comes_after(running_rollout(), "loop"):
            await loop(rollout)
        if crashes:
            raise ZeroDivisionError("a bug in the loop")

    return faulty
