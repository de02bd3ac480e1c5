"""What a callable takes, by name and type: the checks that its author wrote as annotations."""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ForwardRef, Union, get_args, get_origin, get_type_hints

from attrs import frozen

from agentkit.protocols import Json


class JsonValue:
    """Stands for `Json` in annotations: a string alias that names itself cannot be evaluated to the end."""


_OF_JSON: dict[str, Any] = {"Sequence": Sequence, "Mapping": Mapping}
"""Names in the text that `Json` is: a module that uses `Json` need not have them."""


class Unresolved:
    """Stands for an annotation that cannot be evaluated; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


@frozen
class Parameter:
    """One argument that may be given by name. `hint` is `Any` where there is no annotation."""

    name: str
    hint: Any
    required: bool


@frozen
class Parameters:
    """What a callable takes by name; `rest` is the hint of `**kwargs`, where it has one."""

    named: Mapping[str, Parameter]
    rest: Parameter | None = None


def is_json(hint: object) -> bool:
    """Whether `hint` is `Json`, as a string, half evaluated, or as the union that it stands for."""
    if hint is JsonValue or (isinstance(hint, str) and hint == Json):
        return True
    if isinstance(hint, ForwardRef):
        return hint.__forward_arg__ in ("Json", Json)
    if get_origin(hint) in (Union, types.UnionType):
        return any(is_json(inner) for each in get_args(hint) for inner in get_args(each))
    return False


def parameters_of(target: Callable[..., object], *, skip: int = 0) -> Parameters | None:
    """The arguments of `target` that may be given by name, without the `skip` first; None where nobody can tell."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    hints = _hints(target)
    named: dict[str, Parameter] = {}
    rest: Parameter | None = None
    for index, each in enumerate(signature.parameters.values()):
        hint = Any if each.annotation is each.empty else hints.get(each.name, Any)
        if each.kind is each.VAR_KEYWORD:
            rest = Parameter(each.name, hint, required=False)
        elif each.kind is each.VAR_POSITIONAL or (index < skip and each.kind is not each.KEYWORD_ONLY):
            continue
        elif each.kind is each.POSITIONAL_ONLY:
            if each.default is each.empty:
                named[each.name] = Parameter(each.name, Unresolved("it can only be given by place"), required=True)
        else:
            named[each.name] = Parameter(each.name, hint, required=each.default is each.empty)
    return Parameters(named, rest)


def _hints(target: Callable[..., object]) -> Mapping[str, Any]:
    while isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target)
    if inspect.isclass(target):
        return _hints_of_class(target)
    function: object = target if inspect.isroutine(target) else type(target).__call__
    return _resolve(function, _namespace(getattr(function, "__module__", None)))


def _hints_of_class(target: type) -> Mapping[str, Any]:
    for name in ("__init__", "__new__"):
        for each in target.__mro__[:-1]:
            if name in vars(each):  # attrs writes it far from the names that its annotations use
                return _resolve(vars(each)[name], _namespace(each.__module__))
    return {}


def _namespace(module: str | None) -> dict[str, Any]:
    return dict(vars(sys.modules[module])) if module in sys.modules else {}


def _resolve(function: object, names: dict[str, Any]) -> Mapping[str, Any]:
    names = _OF_JSON | {name: JsonValue if value is Json else value for name, value in names.items()}
    local = {"Json": JsonValue}
    function = getattr(function, "__func__", function)
    try:
        return get_type_hints(function, names, local)
    except Exception:
        return {name: _resolve_one(hint, names, local) for name, hint in _annotations(function).items()}


def _annotations(function: object) -> Mapping[str, Any]:
    return getattr(function, "__annotations__", None) or {}


def _resolve_one(annotation: object, names: dict[str, Any], local: dict[str, Any]) -> Any:
    """One annotation on its own, so that one that cannot be resolved does not take the others along."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, names, local)["it"]
    except Exception as error:
        reason = f"its annotation {annotation!r:.80} cannot be resolved ({error})"
        return Unresolved(f"{reason}: import what it names outside of TYPE_CHECKING")
