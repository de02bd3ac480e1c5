"""The tool calls of one turn: validated, run in order or side by side, answered one to one."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import anyio
from attrs import define, field, frozen

from agentkit.actors._guard import describe
from agentkit.errors import SandboxDead, ToolError
from agentkit.protocols import (
    CallFault,
    ExitReason,
    FaultStatus,
    Json,
    Observation,
    ObservationStatus,
    Tool,
    ToolCall,
    ToolContext,
)
from agentkit.tools import check_arguments

if TYPE_CHECKING:
    from agentkit.actors.rollout import Rollout


INTERRUPTED = "Interrupted by the user."
CUT = "Cut short: the rollout ended while this call was under way."


class RolloutTool(Protocol):
    """A tool that needs the rollout itself, such as a sub-agent."""

    async def call_within(self, arguments: Mapping[str, Json], rollout: "Rollout", /) -> Observation:
        """Do it, as part of `rollout`."""
        ...


@frozen
class Ready:
    """A call that can run."""

    tool: Tool
    call: ToolCall
    arguments: Mapping[str, Json]


@define
class TurnCalls:
    """The answers to the calls of one turn, filled in as they come."""

    attempts: Sequence[ToolCall | CallFault]
    observations: list[Observation | None] = field(init=False)
    begun: set[int] = field(factory=set)
    """The calls that were started, whether they came to an answer or not."""
    valid: int = 0
    timeouts: int = 0
    env_dead: bool = False

    def __attrs_post_init__(self) -> None:
        self.observations = [None] * len(self.attempts)

    def answered(self) -> tuple[Observation, ...]:
        """One observation for each attempt: those that were not run are `skipped`."""
        return tuple(
            observation
            or Observation(
                CUT if index in self.begun else "Not run: the turn had already ended.",
                status=ObservationStatus.SKIPPED,
                call_id=attempt.id,
                name=attempt.name,
            )
            for index, (attempt, observation) in enumerate(zip(self.attempts, self.observations, strict=True))
        )


def resolve(attempt: ToolCall | CallFault, tools: Mapping[str, Tool]) -> Ready | CallFault:
    """The call with its tool and checked arguments, or what is wrong with it."""
    if isinstance(attempt, CallFault):
        return attempt
    tool = tools.get(attempt.name)
    if tool is None:
        valid = ", ".join(sorted(tools)) or "none"
        reason = f"there is no tool {attempt.name!r}; the tools are: {valid}"
        return CallFault(FaultStatus.UNKNOWN_TOOL, reason, name=attempt.name, id=attempt.id)
    arguments, problem = check_arguments(tool.spec, attempt.arguments)
    if problem is not None:
        return CallFault(FaultStatus.BAD_ARGUMENTS, problem, name=attempt.name, id=attempt.id)
    return Ready(tool, attempt, arguments)


async def run_calls(calls: TurnCalls, rollout: "Rollout", tools: Mapping[str, Tool]) -> None:
    """Answer every attempt of the turn, until one ends the rollout.

    Calls run in the order written; neighbours that are declared `parallel` run side by side, each under its own limit.

    Cancellation: calls under way are cancelled; what was answered stands.
    """
    plan = [resolve(attempt, tools) for attempt in calls.attempts]
    calls.valid = sum(isinstance(step, Ready) for step in plan)
    at = 0
    while at < len(plan) and not rollout.ended and not rollout.bounds.interrupted:
        step = plan[at]
        stop = at + 1
        if isinstance(step, Ready) and step.tool.spec.parallel:
            while stop < len(plan) and _is_parallel(plan[stop]):
                stop += 1
        if stop - at == 1:
            await _answer(calls, at, step, rollout)
        else:
            async with anyio.create_task_group() as group:
                for index in range(at, stop):
                    group.start_soon(_answer, calls, index, plan[index], rollout)
        at = stop


def _is_parallel(step: Ready | CallFault) -> bool:
    return isinstance(step, Ready) and step.tool.spec.parallel


async def _answer(calls: TurnCalls, index: int, step: Ready | CallFault, rollout: "Rollout") -> None:
    if isinstance(step, CallFault):
        calls.observations[index] = Observation(
            f"Tool call failed: {step.reason}",
            status=ObservationStatus.FORMAT_ERROR,
            call_id=step.id,
            name=step.name,
        )
        return
    calls.begun.add(index)
    observation = await _call(calls, step, rollout)
    if observation.status is ObservationStatus.TIMEOUT:
        calls.timeouts += 1
    calls.observations[index] = observation
    if observation.done:
        rollout.end(ExitReason.FINISHED)


async def _call(calls: TurnCalls, step: Ready, rollout: "Rollout") -> Observation:
    spec = step.tool.spec
    limit_s = rollout.budget.tool_s if spec.timeout_s is None else min(spec.timeout_s, rollout.budget.tool_s)
    if hasattr(step.tool, "call_within"):  # a sub-agent has limits of its own, and what remains of this rollout's time
        limit_s = rollout.remaining_s
    status = ObservationStatus.ERROR
    try:
        observation, timed_out = await rollout.bounds.run(
            _start(step, rollout, limit_s), name=spec.name, limit_s=limit_s
        )
        if not timed_out:
            return _named(observation, step.call)
    except SandboxDead as error:
        calls.env_dead = True
        rollout.end(ExitReason.ENV_DEAD, error)
        rollout.bounds.cut()  # nothing is left that the calls beside it could work in
        text = f"The environment is gone: {error}"
    except ToolError as error:
        text = f"Error: {error}"
    except Exception as error:  # a tool's fault is the policy's to read, and never takes a rollout down
        text = f"Error: {describe(error)}"
    else:
        if rollout.bounds.interrupted:
            return Observation(INTERRUPTED, status=ObservationStatus.SKIPPED, call_id=step.call.id, name=step.call.name)
        if calls.env_dead:
            return Observation(CUT, status=ObservationStatus.SKIPPED, call_id=step.call.id, name=step.call.name)
        status = ObservationStatus.TIMEOUT
        text = f"Timed out after {limit_s:g} s."
    return Observation(text, status=status, call_id=step.call.id, name=step.call.name)


def _start(step: Ready, rollout: "Rollout", limit_s: float) -> Callable[[], Awaitable[Observation]]:
    within = getattr(step.tool, "call_within", None)  # RolloutTool: asking the Protocol itself is slow
    if within is not None:
        return lambda: cast("RolloutTool", step.tool).call_within(step.arguments, rollout)
    context = ToolContext(step.call, rollout.env, rollout.id, rollout.bounds.now() + limit_s)
    return lambda: step.tool.call(step.arguments, context)


def _named(observation: object, call: ToolCall) -> Observation:
    if not isinstance(observation, Observation):
        raise ToolError(f"tool {call.name!r} returned {type(observation).__name__} instead of an Observation")
    return Observation(
        observation.content,
        observation.done,
        observation.status,
        call.id,
        call.name,
        observation.metadata,
        observation.parts,
    )
