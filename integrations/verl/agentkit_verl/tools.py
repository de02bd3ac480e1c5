"""The tools of verl, from `tool_config_path` and `function_tool_path`, as tools of an agent.

What is used of them is asked of the objects: verl is not imported.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import anyio
from attrs import frozen

from agentkit.errors import BoundaryError, ConfigError, ToolError
from agentkit.protocols import Json, Observation, Tool, ToolContext, ToolSpec
from agentkit.runs.dataset.rows import Fault
from agentkit.tools.threads import run_in_thread
from agentkit_verl.instances import HoldsVerlTools
from agentkit_verl.media import as_medium
from agentkit_verl.plain import plain


@frozen
class ResponseLimit:
    """How long an answer of a tool may be, in characters, and where a longer one is cut.

    These are `max_tool_response_length` and `tool_response_truncate_side` of verl's `rollout.multi_turn`.
    """

    length: int = 256
    side: Literal["left", "right", "middle"] = "middle"

    def __attrs_post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"max_tool_response_length must be >= 1, found {self.length!r}")
        if self.side not in ("left", "right", "middle"):
            raise ConfigError(f"tool_response_truncate_side must be left, right or middle, found {self.side!r}")

    def cut(self, text: str) -> str:
        """The text, cut if it is too long, with the words that verl's own loop writes there."""
        if len(text) <= self.length:
            return text
        if self.side == "left":
            return "(truncated)..." + text[-self.length :]
        if self.side == "right":
            return text[: self.length] + "...(truncated)"
        half = self.length // 2
        return text[:half] + "...(truncated)..." + text[len(text) - half :]


def verl_tools(
    tools: Sequence[object],
    *,
    limit: ResponseLimit | None = None,
    only: Sequence[str] | None = None,
    parallel: bool = False,
) -> tuple[Tool, ...]:
    """The `tools` of verl (of the `ToolListWrap` that an agent loop is made with) for `Agent(tools=...)`.

    Answers are cut to `limit`. `only` are the names of those wanted, as in a row's `extra_info["tool_selection"]`.
    `parallel` declares that calls of one turn may run side by side, as verl's own loop runs them. A tool's reward and
    metrics are in the observation's metadata: `tool_reward`, `tool_metrics`. The agent's env must be one of
    `with_tools`, unless there are function tools alone.

    Raises:
        ConfigError: something among them is no tool of verl.
    """
    made = [_tool(item, index, limit, parallel) for index, item in enumerate(tools)]
    return tuple(each for each in made if only is None or each.spec.name in only)


class _VerlTool:
    """A tool of verl for all rollouts."""

    def __init__(self, spec: ToolSpec, ask: Callable[..., Any], limit: ResponseLimit | None) -> None:
        self.spec = spec
        self._ask = ask
        self._limit = limit

    async def call(self, arguments: Mapping[str, Json], context: ToolContext, /) -> Observation:
        """Ask verl's tool.

        Raises:
            ToolError: it raised, or returned what no policy can be shown.
        Cancellation: goes to the tool; the thread of a function that is not async is abandoned.
        """
        name = self.spec.name
        try:
            return await self._observation(await self._ask(dict(arguments), context))
        except BoundaryError:
            raise
        except (Exception, SystemExit) as error:
            told = f"{type(error).__name__}: {error}"
            raise ToolError(f"tool {name!r} failed: {self._cut(told)}") from error

    async def _observation(self, returned: object) -> Observation:
        response, reward, metrics = _triple(returned)
        text, pictures = _shown(response)
        metadata: dict[str, Any] = {}
        scored = None if reward is None else plain(float(cast("Any", reward)), "tool_reward")
        if scored is not None:
            metadata["tool_reward"] = scored
        if kept := _plain_items(metrics):
            metadata["tool_metrics"] = kept
        content = self._cut(text)
        if not pictures:
            return Observation(content, metadata=metadata)
        shown = await anyio.to_thread.run_sync(lambda: tuple(map(as_medium, pictures)), abandon_on_cancel=True)
        return Observation.of(*shown, *((content,) if content else ()), metadata=metadata)

    def _cut(self, text: str) -> str:
        return text if self._limit is None else self._limit.cut(text)


def _tool(item: Any, index: int, limit: ResponseLimit | None, parallel: bool) -> _VerlTool:
    where = f"tools[{index}]"
    schema = getattr(item, "tool_schema", None)
    function = getattr(schema, "function", None)
    if function is None or not hasattr(function, "model_dump"):
        raise ConfigError(f"{where} must be a tool of verl, which has a tool_schema, found {item!r:.100}")
    needs: tuple[type, ...] = ()
    if callable(getattr(item, "execute", None)):
        ask, needs = partial(_ask_instance, item, function.name), (HoldsVerlTools,)
    elif callable(getattr(item, "fn", None)):
        ask = partial(_ask_function, item, function.name)
    else:
        raise ConfigError(f"{where} must be a tool of verl, which has execute or fn, found {type(item).__name__}")
    told = function.model_dump(exclude_unset=True, exclude_none=True)
    parameters = told.get("parameters") or {"type": "object", "properties": {}, "required": []}
    spec = ToolSpec(function.name, told.get("description", ""), parameters, parallel=parallel, needs=needs)
    return _VerlTool(spec, ask, limit)


async def _ask_instance(tool: Any, name: str, arguments: dict[str, Any], context: ToolContext) -> object:
    instances = cast("HoldsVerlTools", context.env).verl_instances
    instance_id = await instances.of(tool, name)
    return await tool.execute(instance_id, arguments, agent_data=instances.agent_data)


async def _ask_function(tool: Any, name: str, arguments: dict[str, Any], context: ToolContext) -> object:
    if getattr(tool, "is_async", False):
        return await tool.fn(**arguments)
    return await run_in_thread(partial(tool.fn, **arguments), name=f"{name}:{context.rollout_id}")


def _triple(returned: object) -> tuple[object, object, object]:
    """Response, reward and metrics, in all the forms that verl takes."""
    values = cast("tuple[object, ...]", returned) if isinstance(returned, tuple) else (returned,)
    if not 1 <= len(values) <= 3:
        raise TypeError(f"it returned {len(values)} values, not a response, a reward and metrics")
    response, reward, metrics = (*values, None, None)[:3]
    return response, reward, metrics


def _plain_items(metrics: object) -> dict[str, object]:
    kept: dict[str, object] = {}
    for key, value in cast("Mapping[object, object]", metrics).items() if isinstance(metrics, Mapping) else ():
        try:
            kept[str(key)] = plain(value, "tool_metrics")
        except Fault:  # tensors and the like are not for whoever reads a trajectory
            continue
    return kept


def _shown(response: Any) -> tuple[str, list[object]]:
    """The text and the images of a response."""
    if isinstance(response, str):
        return response, []
    if not (hasattr(response, "text") and hasattr(response, "image")):
        return json.dumps(response, ensure_ascii=False) if isinstance(response, dict) else str(response), []
    if getattr(response, "video", None):
        raise TypeError("it returned a video, and agents see images only")
    return response.text or "", [picture for picture in response.image or () if picture is not None]
