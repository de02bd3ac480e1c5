"""Which kind of component an annotation asks for, and so what is made of the name in the configuration."""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, get_args, get_origin

from attrs import frozen

from agentkit.protocols import Env, MessageModel, Renderer, Reward, SandboxBackend, TokenModel, Tool, ToolParser


class Role(Enum):
    """What becomes of what a name stands for."""

    MADE = auto()
    """An object: a class or function is called with the arguments."""
    ENV = auto()
    """A factory without arguments, called for each rollout."""
    TOOL = auto()
    """A tool as it is, or a factory without arguments, called for each rollout."""
    REWARD = auto()
    """An async function of a trajectory and an env; of a class, a fresh object judges each trajectory."""
    LOOP = auto()
    """An async function of a rollout."""
    FUNCTION = auto()
    """A callable as it is; arguments are bound to it."""


@frozen
class Kind:
    """The group of short names, and the role. `protocol` is what a made object must satisfy."""

    group: str | None
    role: Role
    protocol: Any = None
    leading: int | None = None
    """How many arguments the caller gives by place; None where that is not known."""


MODEL = Kind("models", Role.MADE, TokenModel | MessageModel)
RENDERER = Kind("renderers", Role.MADE, Renderer)
PARSER = Kind("parsers", Role.MADE, ToolParser)
ENV = Kind("envs", Role.ENV, Env, 0)
TOOL = Kind("tools", Role.TOOL, Tool, 0)
REWARD = Kind("rewards", Role.REWARD, None, 2)
LOOP = Kind("loops", Role.LOOP, None, 1)

_OF_PROTOCOL: Mapping[object, Kind] = {
    TokenModel: MODEL,
    MessageModel: MODEL,
    Renderer: RENDERER,
    ToolParser: PARSER,
    SandboxBackend: Kind("sandboxes", Role.MADE, SandboxBackend),
    Env: Kind("envs", Role.MADE, Env),
    Tool: Kind("tools", Role.MADE, Tool),
    Reward: REWARD,
}
_OF_FACTORY: Mapping[object, Kind] = {Env: ENV, Tool: TOOL, Reward: REWARD}


def kind_of(hint: Any) -> Kind:
    """The kind of component that `hint` asks for; any class or callable may be named, if only as a reference."""
    origin = get_origin(hint) or hint
    if origin in _OF_PROTOCOL:
        return _OF_PROTOCOL[origin]
    if origin is Callable:
        arguments, result = (*get_args(hint), None, None)[:2]
        made = get_origin(result) or result
        if arguments == [] and made in _OF_FACTORY:
            return _OF_FACTORY[made]
        return Kind(None, Role.FUNCTION, None, len(arguments) if isinstance(arguments, list) else None)
    if origin is type:
        return Kind(None, Role.FUNCTION)
    return Kind(None, Role.MADE, origin if isinstance(origin, type) else None)


def without_doubles(hints: tuple[Any, ...]) -> tuple[Any, ...]:
    """The members of a union without those that stand for a component that another one says better.

    Of `TokenModel | MessageModel` one is enough, for both are models; of `Tool | Callable[[], Tool]` the factory.
    """
    kinds = {kind for hint in hints if (kind := kind_of(hint)).group is not None}
    made_by_factory = {kind.group for kind in kinds if kind.role in (Role.ENV, Role.TOOL)}
    kept: list[Any] = []
    seen: set[Kind] = set()
    for hint in hints:
        kind = kind_of(hint)
        is_component = kind.group is not None
        if is_component and (kind in seen or (kind.role is Role.MADE and kind.group in made_by_factory)):
            continue
        seen.add(kind)
        kept.append(hint)
    return tuple(kept)
