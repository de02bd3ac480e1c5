"""Components from their names and arguments: models, envs, tools and whatever else a configuration names.

A component is a name, or a mapping of `use: name` and arguments. What it becomes depends on its role (`roles.py`): a
model is made here and now, an env is a factory of which each rollout makes its own. Arguments are made by the
annotations of what is called, so that nested components, lists and classes work the same at any depth.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from attrs import field, frozen

from agentkit.protocols import Tool
from agentkit.runs.config.hints import Parameter, Parameters, Unresolved, parameters_of
from agentkit.runs.config.problems import Problem, Problems, nearest, shown
from agentkit.runs.config.references import Importer, what_failed
from agentkit.runs.config.roles import Kind, Role, kind_of
from agentkit.runs.config.sandboxes import structure_sandbox
from agentkit.runs.config.values import StrictValues
from agentkit.runs.config.variables import plain
from agentkit.sandbox import SandboxConfig


@frozen
class Named:
    """A component as it is written."""

    use: str
    arguments: Mapping[str, object] = field(factory=dict)


class Fresh(functools.partial[Any]):
    """Arguments bound to a factory; lists, mappings and sets among them are copied for each object made."""

    def __repr__(self) -> str:  # values may be secret
        return f"{getattr(self.func, '__qualname__', self.func)}({', '.join(f'{name}=...' for name in self.keywords)})"

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        return super().__call__(*args, **{**{name: _copied(value) for name, value in self.keywords.items()}, **kwargs})


class JudgedAfresh:
    """A reward that makes a fresh object for each trajectory, and lets that judge."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __repr__(self) -> str:
        return f"JudgedAfresh({self._make!r})"

    async def __call__(self, trajectory: object, env: object, /) -> object:
        """What the fresh reward says. Cancellation: the reward's own."""
        return await self._make()(trajectory, env)


class Components:
    """Makes components; one object a configuration, so that what it imported is known."""

    def __init__(self, importer: Importer) -> None:
        self._importer = importer
        self.values = StrictValues(lambda value, hint: self.make(value, kind_of(hint)), folder=importer.folder)
        self.values.register(SandboxConfig, lambda value: structure_sandbox(value, importer))

    def named(self, value: object, group: str | None) -> Named:
        """`value` as a component, its form and its name checked; nothing is imported.

        Raises:
            Problems: it is no name and no mapping with `use`, or there is no such name.
        """
        if isinstance(value, str):
            component = Named(str(value))
        elif isinstance(value, Mapping):
            use = value.get("use")
            if "use" not in value:
                hint = f"; the keys are {', '.join(sorted(value))[:200]}" if value else ""
                raise Problems.one(f"must say what it is by `use: name`, which is missing{hint}")
            if not isinstance(use, str):
                raise Problems.one(f"must be a name, found {shown(use)}", "use")
            component = Named(str(use), {key: item for key, item in value.items() if key != "use"})
        else:
            raise Problems.one(f"must be a name or {{use: name, ...}}, found {shown(value)}")
        try:
            self._importer.names.check(component.use, group)
        except Problems as error:
            raise error.under(*(("use",) if isinstance(value, Mapping) else ())) from None
        return component

    def make(self, value: object, kind: Kind) -> object:
        """What `value` becomes.

        Raises:
            Problems: all there are: with its name, its import, its arguments, or what it said when it was called.
        """
        component = self.named(value, kind.group)
        steps = ("use",) if isinstance(value, Mapping) else ()
        try:
            target = self._importer.find(component.use, kind.group)
        except Problems as error:
            raise error.under(*steps) from None
        if kind.role is Role.MADE:
            return self._made(target, component, kind)
        if kind.role is Role.ENV:
            return self._factory(target, component, kind)
        if kind.role is Role.TOOL:
            return self._tool(target, component, kind)
        return self._function(target, component, kind)

    def _made(self, target: object, component: Named, kind: Kind) -> object:
        if not inspect.isclass(target) and (_satisfies(target, kind.protocol) or not callable(target)):
            made: object = target
            if component.arguments:
                raise _takes_none(component, target)
        else:
            made = self._call(target, component)
        if not _satisfies(made, kind.protocol):
            wanted = " or ".join(each.__name__ for each in get_args(kind.protocol) or (kind.protocol,))
            raise Problems.one(f"is {component.use!r}, which gave {_kind_of_object(made)}, and no {wanted}")
        return made

    def _factory(self, target: object, component: Named, kind: Kind) -> object:
        if not inspect.isclass(target) and (not callable(target) or _satisfies(target, kind.protocol)):
            raise Problems.one(
                f"is {component.use!r}, an object of {type(target).__name__}, shared by all rollouts: name its class, "
                "or a function that makes one"
            )
        if inspect.iscoroutinefunction(target):
            raise Problems.one(f"is {component.use!r}, which is async: what makes an env is not")
        return self._bound(target, component, skip=0)

    def _tool(self, target: object, component: Named, kind: Kind) -> object:
        if not inspect.isclass(target) and isinstance(target, Tool):
            if component.arguments:
                raise _takes_none(component, target)
            return target
        if inspect.iscoroutinefunction(target):
            raise Problems.one(f"is {component.use!r}, a plain async function: decorate it with @agentkit.tool")
        if not callable(target):
            raise Problems.one(f"is {component.use!r}, {_kind_of_object(target)}, and no tool")
        factory = self._bound(target, component, skip=0)
        made = _called(factory, component, {})
        if inspect.isclass(made) or not isinstance(made, Tool):
            raise Problems.one(f"is {component.use!r}, which gave {_kind_of_object(made)}, and no Tool (spec and call)")
        return factory

    def _function(self, target: object, component: Named, kind: Kind) -> object:
        if not callable(target):
            raise Problems.one(f"is {component.use!r}, {_kind_of_object(target)}, which cannot be called")
        if kind.role is Role.REWARD and inspect.isclass(target):
            return JudgedAfresh(self._bound(target, component, skip=0))
        if kind.role is Role.FUNCTION or inspect.iscoroutinefunction(target) or not inspect.isroutine(target):
            if kind.role is Role.LOOP and inspect.isclass(target):
                return self._call(target, component)
            skip = kind.leading
            if skip is None:
                skip = 0 if component.arguments else 1_000
            return self._bound(target, component, skip=skip)
        if not component.arguments and _takes(target, kind.leading):
            role = kind.role.name.lower()
            raise Problems.one(
                f"is {component.use!r}, which is not async: a {role} is `async def {target.__name__}(...)`"
            )
        made = self._call(target, component)  # a plain function that makes a reward or a loop
        if not callable(made):
            raise Problems.one(
                f"is {component.use!r}, which gave {_kind_of_object(made)}: where it is the {kind.role.name.lower()} "
                "itself it must be async"
            )
        return made

    def _bound(self, target: Callable[..., object], component: Named, *, skip: int) -> Callable[..., Any]:
        given = self._arguments(target, component, skip=skip)
        return Fresh(target, **given) if given else target

    def _call(self, target: Callable[..., object], component: Named) -> object:
        return _called(target, component, self._arguments(target, component, skip=0))

    def _arguments(self, target: Callable[..., object], component: Named, *, skip: int) -> dict[str, object]:
        parameters = parameters_of(target, skip=skip)
        if parameters is None:
            return {name: plain(value) for name, value in component.arguments.items()}
        made: dict[str, object] = {}
        problems: list[Problem] = []
        for name, value in component.arguments.items():
            try:
                parameter = _parameter(parameters, name, component)
                if value is None and not self.values.accepts_none(parameter.hint):
                    continue
                made[name] = self.values.structure(value, parameter.hint)
            except Problems as error:
                problems += error.under(name).problems
        given = {problem.path[0] for problem in problems} | set(made)
        problems += [
            Problem((name,), f"is missing: {component.use} needs it{_only_by_place(parameter)}")
            for name, parameter in parameters.named.items()
            if parameter.required and name not in given
        ]
        if problems:
            raise Problems(problems)
        return made


def _parameter(parameters: Parameters, name: str, component: Named) -> Parameter:
    if name in parameters.named:
        return parameters.named[name]
    if parameters.rest is not None:
        return parameters.rest
    hint = nearest(name, parameters.named, kind="arguments")
    raise Problems.one(f"is no argument of {component.use}: {hint}")


def _only_by_place(parameter: Parameter) -> str:
    return f", but {parameter.hint.reason}" if isinstance(parameter.hint, Unresolved) else ""


def _called(target: Callable[..., object], component: Named, arguments: Mapping[str, object]) -> object:
    try:
        made = target(**arguments)
    except (Exception, SystemExit) as error:
        raise Problems.one(f"is {component.use!r}, which failed: {what_failed(error)}") from None
    if inspect.iscoroutine(made):
        made.close()
        raise Problems.one(f"is {component.use!r}, which is async: what makes a component is not")
    return made


def _takes(target: Callable[..., object], count: int | None) -> bool:
    """Whether `target` needs `count` arguments, as what is called with them does."""
    parameters = parameters_of(target)
    return parameters is not None and sum(each.required for each in parameters.named.values()) == count


def _satisfies(made: object, protocol: Any) -> bool:
    if protocol is None:
        return True
    if getattr(protocol, "_is_protocol", False) and not getattr(protocol, "_is_runtime_protocol", False):
        return True
    return not (inspect.isclass(made) and protocol is not type) and isinstance(made, protocol)


def _takes_none(component: Named, target: object) -> Problems:
    return Problems(
        Problem((name,), f"is no argument: {component.use!r} is {_kind_of_object(target)} already")
        for name in component.arguments
    )


def _kind_of_object(value: object) -> str:
    return f"the class {value.__name__}" if inspect.isclass(value) else f"an object of {type(value).__name__}"


def _copied(value: object) -> object:
    if type(value) is dict:
        return {key: _copied(item) for key, item in cast("dict[object, object]", value).items()}
    if type(value) is list:
        return [_copied(item) for item in cast("list[object]", value)]
    return set(cast("set[object]", value)) if type(value) is set else value
