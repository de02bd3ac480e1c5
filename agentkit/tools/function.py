"""A tool from a typed function: schema from its annotations, words from its docstring, needs from its Protocols."""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_type_hints, overload

import attrs
from attrs import frozen

from agentkit.errors import ConfigError, ToolError
from agentkit.protocols.actions import Observation
from agentkit.protocols.media import Medium
from agentkit.protocols.messages import Json, ToolSpec
from agentkit.protocols.tool import ToolContext
from agentkit.tools.annotations import Shape, UnsupportedAnnotation, shape_of
from agentkit.tools.docstrings import describe
from agentkit.tools.threads import run_in_thread

P = ParamSpec("P")
R = TypeVar("R")


class FunctionTool(Generic[P, R]):
    """A `Tool` that is also still the function it was made from."""

    def __init__(self, function: Callable[P, R], *, name: str | None, parallel: bool, timeout_s: float | None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout_s of a tool must be a number > 0, found {timeout_s!r}")
        if isinstance(function, FunctionTool):  # a tool made again, under another name
            function = function._function
        functools.update_wrapper(self, function)
        self._function: Callable[P, R] = function
        self._options = (name, parallel, timeout_s)
        self._signature = _read(function, name or str(getattr(function, "__name__", type(function).__name__)))
        self._spec = attrs.evolve(self._signature.spec, parallel=parallel, timeout_s=timeout_s)
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # asks how it is called, not whether
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self._spec.name!r}>"

    def __reduce__(self) -> "str | tuple[object, ...]":
        # the decorated name refers to the tool, so that pickling the function by reference would find the wrong object
        path = getattr(self, "__qualname__", "")
        found: object = sys.modules.get(self.__module__)
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is self and self.__module__ != "__main__":
            return str(path)
        return _rebuild, (self._function, *self._options)

    @property
    def spec(self) -> ToolSpec:
        """Name, description, schema, and what the tool needs."""
        return self._spec

    async def call(self, arguments: Mapping[str, Json], context: ToolContext, /) -> Observation:
        """Call the function: an async one here, any other in a daemon thread of its own.

        Raises:
            ToolError: the function raised it, returned what no policy can read, or tried to end the process.
        Cancellation: an async function is cancelled; the thread of any other is abandoned, named in `stuck_threads`.
        """
        given = self._signature.bind(arguments, context)
        function: Callable[..., Any] = self._function
        name = self._spec.name
        try:
            if self._is_async:
                value = await function(**given)
            else:
                value = await run_in_thread(functools.partial(function, **given), name=f"{name}:{context.rollout_id}")
                if inspect.isawaitable(value):
                    value = await value
        except SystemExit as error:
            raise ToolError(f"tool {name!r} raised {error!r}") from error
        return _observation(value, name)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, parallel: bool = False, timeout_s: float | None = None
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    parallel: bool = False,
    timeout_s: float | None = None,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """A tool from a typed function, async or not, as `@tool` or `@tool(name=..., parallel=True, timeout_s=...)`.

    A parameter annotated with a runtime-checkable Protocol is what the tool needs of the env: the policy does not see
    it, and the env is put there at the call. One annotated `ToolContext` gets the context. All others make the schema.
    What is returned is an `Observation`, text, a medium (`image(...)`), or a JSON value.

    Raises:
        ConfigError: the annotation of a parameter is missing, or has no JSON schema.
    """
    if function is not None:
        return FunctionTool(function, name=name, parallel=parallel, timeout_s=timeout_s)
    return functools.partial(_rebuild, name=name, parallel=parallel, timeout_s=timeout_s)


def _rebuild(function: Callable[P, R], name: str | None, parallel: bool, timeout_s: float | None) -> FunctionTool[P, R]:
    return FunctionTool(function, name=name, parallel=parallel, timeout_s=timeout_s)


@frozen
class _Signature:
    """How a function's parameters are filled: from the arguments, from the env, or with the context."""

    spec: ToolSpec
    shapes: Mapping[str, Shape]
    from_env: tuple[str, ...]
    from_context: tuple[str, ...]

    def bind(self, arguments: Mapping[str, Json], context: ToolContext) -> dict[str, object]:
        given: dict[str, object] = {
            name: self.shapes[name].build(value) for name, value in arguments.items() if name in self.shapes
        }
        given |= dict.fromkeys(self.from_env, context.env)
        given |= dict.fromkeys(self.from_context, context)
        return given


def _read(function: Callable[..., object], name: str) -> _Signature:
    description, described = describe(inspect.getdoc(function) or "")
    hints = _hints(function, name)
    shapes: dict[str, Shape] = {}
    required: list[Json] = []
    needs: list[type] = []
    from_env: list[str] = []
    from_context: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"parameter {parameter.name!r} of tool {name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where} must be a plain named parameter, found a {parameter.kind.description} one")
        if parameter.name not in hints:
            hint = " (make the tool of a bound method: tool(instance.method))" if parameter.name == "self" else ""
            raise ConfigError(f"{where} has no annotation{hint}")
        annotation = hints[parameter.name]
        if annotation is ToolContext:
            from_context.append(parameter.name)
        elif isinstance(annotation, type) and getattr(annotation, "_is_protocol", False):
            if not getattr(annotation, "_is_runtime_protocol", False):
                raise ConfigError(f"{where} needs {annotation.__name__} of the env, which is not @runtime_checkable")
            from_env.append(parameter.name)
            needs += [annotation] if annotation not in needs else []
        else:
            shapes[parameter.name] = _described(annotation, described.get(parameter.name), where)
            required += [parameter.name] if parameter.default is parameter.empty else []
    properties: dict[str, Json] = {key: shape.schema for key, shape in shapes.items()}
    schema: dict[str, Json] = {"type": "object", "properties": properties, "required": required}
    spec = ToolSpec(name, description, schema, needs=tuple(needs))
    return _Signature(spec, shapes, tuple(from_env), tuple(from_context))


def _hints(function: Callable[..., object], name: str) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    described = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(described, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"the annotations of tool {name!r} cannot be read: {error}") from error


def _described(annotation: object, description: str | None, where: str) -> Shape:
    try:
        shape = shape_of(annotation)
    except UnsupportedAnnotation as error:
        raise ConfigError(f"{where} cannot be annotated {annotation!r}: {error}") from error
    if description and "description" not in shape.schema:
        return Shape({**shape.schema, "description": description}, shape.build)
    return shape


def _observation(value: object, name: str) -> Observation:
    if isinstance(value, Observation):
        return value
    if isinstance(value, str) and not isinstance(value, Enum):
        return Observation(value)
    if value is None:
        return Observation("(nothing returned)")
    if isinstance(value, Medium):
        return Observation.of(value)
    try:
        return Observation(json.dumps(value, ensure_ascii=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(
            f"tool {name!r} must return an Observation, text or a JSON value, found {type(value).__name__}: {error}"
        ) from error


def _plain(value: Any) -> object:
    """The JSON form of what JSON does not know."""
    kind = cast("type[object]", type(value))
    if isinstance(value, Enum):
        return value.value
    if attrs.has(kind):
        return attrs.asdict(value, recurse=False)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return list(cast("Sequence[object]", value))
    raise TypeError(f"a {kind.__name__} is no JSON value")
