"""A sandbox as a mapping: `{type: podman, image: ..., limits: {...}}` becomes a back end and a spec.

`type` is a short name of the entry-point group `agentkit.sandboxes`, to which any installed package may add, or
`package.module:Class`. All other keys are fields of the spec and keyword arguments of that back end, side by side;
which there are is read from the class itself, so a new back end has nothing to declare beside its name.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen

from agentkit.errors import AgentkitError, ConfigError
from agentkit.protocols.sandbox import Capable, SandboxBackend
from agentkit.protocols.sandbox_spec import Allow, Network, SandboxSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from cattrs import Converter

GROUP = "agentkit.sandboxes"
_SECRET = ("token", "secret", "password", "key")
_PLAIN = (str, int, float, bool, Path, type(None))


@frozen
class SandboxConfig:
    """What a mapping stood for."""

    type: str
    backend: SandboxBackend
    spec: SandboxSpec


def _points() -> "EntryPoints":
    from importlib.metadata import entry_points  # this and cattrs cost 30 ms, which `import agentkit` must not

    return entry_points(group=GROUP)


def backend_types() -> tuple[str, ...]:
    """The short names of the back ends that are installed."""
    return tuple(sorted({point.name for point in _points()}))


def backend_class(name: str, *, path: str = "type") -> type[Any]:
    """The class behind a short name or a `package.module:Class`.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    points = {point.value: point for point in _points() if point.name == name}
    if len(points) > 1:
        raise ConfigError(f"{path} is {name!r}, which several packages define: write {' or '.join(sorted(points))}")
    reference = next(iter(points), name)
    module, colon, attribute = reference.partition(":")
    if not colon:
        near = get_close_matches(name, backend_types(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(backend_types())}"
        raise ConfigError(f"{path} is {name!r}, which is no type of sandbox: {hint}, or package.module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AgentkitError:
        raise
    except Exception as error:  # whatever a module raises
        raise ConfigError(f"{path} is {name!r}, and {reference} cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{path} is {name!r}, and {reference} is no class but {type(found).__name__}")
    return found


def sandbox_from(config: Mapping[str, object], *, path: str = "sandbox") -> SandboxConfig:
    """The back end and the spec that `config` describes; nothing is started.

    Raises:
        ConfigError: a key is unknown, has a wrong value, or the back end cannot do what is asked; all of them are
            named with their paths below `path`.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"{path} must be a mapping with a type, found {config!r:.80}")
    kind = config.get("type")
    if not isinstance(kind, str):
        missing = "has no type" if kind is None else f"has the type {kind!r:.80}"
        raise ConfigError(f"{path} {missing}: it must be one of {', '.join(backend_types())}")
    cls = backend_class(kind, path=f"{path}.type")
    if not hasattr(cls, "start"):
        raise ConfigError(f"{path}.type is {kind!r}, which is no back end: it cannot start a sandbox")
    spec_hints = get_type_hints(SandboxSpec)
    del spec_hints["snapshot"]  # a live object
    options = _options_of(cls)
    problems: list[str] = []
    spec: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for key, value in config.items():
        if key == "type":
            continue
        hint = spec_hints.get(key) or options.get(key)
        if hint is None:
            problems.append(_unknown(path, key, [*spec_hints, *options]))
            continue
        try:
            made = _converter().structure(value, hint)
        except Exception as error:  # cattrs raises what the values raise
            problems.extend(_explain(error, f"{path}.{key}", value))
            continue
        (spec if key in spec_hints else given)[key] = made
    required = [name for name in options if name not in given and name in _required(cls)]
    problems.extend(f"{path}.{name} is missing: {kind} sandboxes need it" for name in required)
    if problems:
        raise ConfigError("\n".join(problems) if len(problems) > 1 else problems[0])
    try:
        backend: SandboxBackend = cls(**given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        made_spec = SandboxSpec(**spec)
        if isinstance(backend, Capable):
            backend.capabilities.check(made_spec, kind)
    except ConfigError as error:
        raise ConfigError(f"{path}.{error}") from error
    return SandboxConfig(kind, backend, made_spec)


def _parameters(cls: type[Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one for one in inspect.signature(cls).parameters.values() if one.kind in kinds]


def _required(cls: type[Any]) -> set[str]:
    return {one.name for one in _parameters(cls) if one.default is inspect.Parameter.empty}


def _options_of(cls: type[Any]) -> dict[str, Any]:
    """The arguments of a back end that plain values can stand for, with their types."""
    hints = get_type_hints(cls.__init__)
    return {one.name: hints[one.name] for one in _parameters(cls) if one.name in hints and _is_plain(hints[one.name])}


def _is_plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return True
    if origin in (Union, types.UnionType):
        return all(_is_plain(one) for one in get_args(hint))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping | Sequence | frozenset):
        return all(_is_plain(one) for one in get_args(hint) if one is not Ellipsis)
    return hint in _PLAIN or (isinstance(hint, type) and attrs.has(hint))


def _unknown(path: str, key: object, known: list[str]) -> str:
    near = get_close_matches(str(key), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(known))}"
    return f"{path}.{key} is no key of a sandbox of this type: {hint}"


def _explain(error: BaseException, path: str, value: object) -> list[str]:
    """One line for each thing that is wrong, with its path."""
    import cattrs
    from cattrs.errors import AttributeValidationNote, IterableValidationNote

    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [one.name for one in attrs.fields(error.cl)]
        return [_unknown(path, key, known) for key in sorted(error.extra_fields)]
    if isinstance(error, cattrs.BaseValidationError):
        found: list[str] = []
        for inner in error.exceptions:
            step, at = "", value
            for note in getattr(inner, "__notes__", ()):
                if isinstance(note, AttributeValidationNote):
                    step, at = f".{note.name}", _item(value, note.name)
                elif isinstance(note, IterableValidationNote):
                    step = f".{note.index}" if isinstance(note.index, str) else f"[{note.index}]"
                    at = _item(value, note.index)
            found.extend(_explain(inner, path + step, at))
        return found
    if isinstance(error, ConfigError):
        above, _, last = path.rpartition(".")
        return [f"{above}.{error}" if str(error).startswith(f"{last}.") else f"{path}: {error}"]
    text = str(error) if isinstance(error, _WrongValue) else f"cannot be read: {error}"
    shown = type(value).__name__ if any(word in path.lower() for word in _SECRET) else f"{value!r:.80}"
    return [f"{path} {text}, found {shown}"]


def _item(value: object, index: Any) -> object:
    try:
        return value[index]  # type: ignore[index]  # whatever it was
    except (TypeError, KeyError, IndexError):
        return value


class _WrongValue(ValueError):
    """A value of the wrong kind; the message says what it must be."""


def _exactly(kind: type[Any], what: str) -> Callable[[Any, Any], Any]:
    def take(value: Any, _: Any) -> Any:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _WrongValue(f"must be {what}")
        return value

    return take


def _take_path(value: Any, _: Any) -> Path:
    if not isinstance(value, str | Path):
        raise _WrongValue("must be a path")
    return Path(value)


def _take_network(value: Any, _: Any) -> Network:
    if value in ("none", "host"):
        return "host" if value == "host" else "none"
    if isinstance(value, Mapping) and set(value) == {"allow"} and isinstance(value["allow"], list | tuple):
        return Allow(tuple(_exactly(str, "a name of a host")(host, None) for host in value["allow"]))
    raise _WrongValue("must be none, host or {allow: [names of hosts]}")


def _take_union(value: Any, hint: Any) -> Any:
    members = get_args(hint)
    if value is None and type(None) in members:
        return None
    kept = [one for one in members if one is not type(None)]
    failures: list[Exception] = []
    for one in kept:
        try:
            return _converter().structure(value, one)
        except Exception as error:  # the next member may take it
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    raise _WrongValue("must be " + " or ".join(getattr(one, "__name__", str(one)) for one in kept))


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


@cache
def _converter() -> "Converter":
    import cattrs

    made = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    made.register_structure_hook_func(_is_union, _take_union)
    made.register_structure_hook_func(lambda hint: hint == Network, _take_network)
    for kind, what in ((str, "a string"), (int, "a whole number"), (float, "a number"), (bool, "true or false")):
        made.register_structure_hook(kind, _exactly(kind, what))
    made.register_structure_hook(Path, _take_path)
    return made
