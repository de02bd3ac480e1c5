"""Whether an env has what the tools need, checked before any rollout starts."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, get_origin, get_type_hints

from agentkit.errors import ConfigError
from agentkit.protocols.env import Env
from agentkit.protocols.tool import Tool


def check_needs(tools: Sequence[Tool], env: object | None) -> None:
    """Nothing, if `env` has what every tool needs.

    `env` is an instance, a class, a factory with a return annotation, or None. Where a factory does not say what it
    makes, or a class answers through `__getattr__`, nothing is known and nothing is said: check the instance again.

    Raises:
        ConfigError: names every tool with an unmet need, the Protocol, its members, and those that are missing.
    """
    known = _known(env)
    if known is None:
        return
    subject, name = known
    unmet = [
        f"tool {tool.spec.name!r} needs {need.__name__} ({', '.join(members)}) of the env, "
        f"but {name} has no {', '.join(missing)}"
        for tool in tools
        for need in tool.spec.needs
        if (missing := _missing(subject, members := protocol_members(need)))
    ]
    if unmet:
        raise ConfigError("; ".join(unmet))


def protocol_members(protocol: type) -> tuple[str, ...]:
    """The names a Protocol class asks for, those it inherits included, in the order declared."""
    names: dict[str, None] = {}
    for each in reversed(protocol.__mro__):
        if each not in (object, Protocol, Generic) and getattr(each, "_is_protocol", False):
            names |= dict.fromkeys(inspect.get_annotations(each))
            names |= dict.fromkeys(vars(each))
    return tuple(name for name in names if not name.startswith("_"))


def _known(env: object | None) -> tuple[object, str] | None:
    """What can be asked for the members of the env, with its name; None where nothing is known before it is made."""
    if env is None:
        return None, "the agent without an env"
    while isinstance(env, functools.partial):
        env = env.func
    if isinstance(env, type):
        return None if _answers_anything(env) else (env, env.__name__)
    if isinstance(env, Env) or not callable(env):
        return env, type(env).__name__
    made = _return_annotation(env)
    return None if made is None else _known(made)


def _return_annotation(factory: Callable[..., object]) -> type | None:
    """The class a factory says it makes; a Protocol says too little to prove that something is missing."""
    described = factory if inspect.isroutine(factory) else type(factory).__call__
    try:
        made = get_type_hints(described).get("return")
    except (NameError, TypeError):  # names that exist for type checkers only
        return None
    made = get_origin(made) or made
    return made if isinstance(made, type) and made is not object and not getattr(made, "_is_protocol", False) else None


def _answers_anything(env: type) -> bool:
    return any("__getattr__" in vars(each) or "__getattribute__" in vars(each) for each in env.__mro__[:-1])


def _missing(subject: object, members: Sequence[str]) -> list[str]:
    declared: set[str] = set()
    if isinstance(subject, type):  # set in __init__ or start: an annotation in the class body promises it
        declared = {name for each in subject.__mro__ for name in inspect.get_annotations(each)}
    return [name for name in members if name not in declared and getattr(subject, name, None) is None]
