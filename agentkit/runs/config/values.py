"""Plain values into what annotations ask for, by cattrs, without coercing anything.

Text is text: "3" is no number, and 3 no text. A whole number will do for a float; true is no number, and 1.0 no whole
one. A list is not a text, nor the other way round. null is None where that is allowed, and else as if nothing stood
there. Classes of attrs and dataclasses are made from mappings of their fields, by their own checks; all problems are
told. A `Path` is relative to the folder of the configuration.
"""

import types
from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, NewType, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin

from attrs import resolve_types
from cattrs import Converter

from agentkit.runs.config.classes import field_names, is_class_of_fields, structure_class
from agentkit.runs.config.hints import JsonValue, Unresolved, is_json
from agentkit.runs.config.problems import Problems, collect, nearest, shown
from agentkit.runs.config.roles import without_doubles
from agentkit.runs.config.variables import Expanded, plain

Hook: TypeAlias = Callable[[object], object]
MakeComponent: TypeAlias = Callable[[object, Any], object]

_NUMBERS = "write it without a point"
_ANYTHING = frozenset({type(None), bool, int, float, str, list, dict})


class StrictValues:
    """Makes values of annotations. What no plain value is, `make_component(value, hint)` makes of a name."""

    def __init__(self, make_component: MakeComponent, *, folder: FilePath | None = None) -> None:
        self._make_component = make_component
        self._folder = folder
        self._own: dict[object, Hook] = {}
        self.converter = Converter(detailed_validation=True, forbid_extra_keys=True)
        self.converter.register_structure_hook_factory(lambda _: True, self._cattrs_hook)
        for scalar in (str, bytes, int, float, FilePath):  # these cattrs asks about before all else
            self.converter.register_structure_hook(scalar, lambda value, hint: self._hook(hint)(value))

    def register(self, hint: object, hook: Hook) -> None:
        """Have `hook` make values of exactly `hint`."""
        self._own[hint] = hook

    def structure(self, value: object, hint: Any) -> object:
        """`value` as `hint` asks for it.

        Raises:
            Problems: it does not fit; all there are, with their paths below this value.
        """
        return self.converter.structure(value, hint)

    def accepts_none(self, hint: Any) -> bool:
        """Whether null is a value of `hint`, rather than the absence of one."""
        return type(None) in self._kinds(hint)

    def _cattrs_hook(self, hint: Any) -> Callable[[object, Any], object]:
        hook = self._hook(hint)
        return lambda value, _: hook(value)

    def _hook(self, hint: Any) -> Hook:
        if hint in self._own:
            return self._own[hint]
        if hint in (Any, object, None) or hint is JsonValue or is_json(hint):
            return plain
        if isinstance(hint, Unresolved):
            return lambda _: _refuse(f"cannot be given: {hint.reason}")
        if isinstance(hint, TypeVar):
            return self._hook(hint.__bound__ or Any)
        if isinstance(hint, NewType):
            return self._hook(hint.__supertype__)
        origin, arguments = get_origin(hint) or hint, get_args(hint)
        if origin is Annotated:
            return self._hook(arguments[0])
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin is Literal:
            return _literal(arguments)
        return self._scalar(hint) or self._container(origin, arguments) or self._class(hint)

    def _scalar(self, hint: Any) -> Hook | None:
        if hint is type(None):
            return lambda value: None if value is None else _refuse(f"must be null, found {shown(value)}")
        if hint is bool:
            return _truth
        if hint is int:
            return _whole
        if hint is float:
            return _number
        if hint is str:
            return _text
        if hint is FilePath:
            return self._path
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _enum(hint)
        return None

    def _container(self, origin: Any, arguments: tuple[Any, ...]) -> Hook | None:
        if not isinstance(origin, type):
            return None
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            return lambda value: self._fixed(value, arguments)
        item = arguments[0] if arguments else Any
        if origin is tuple:
            return lambda value: tuple(self._items(value, item))
        if issubclass(origin, AbstractSet):
            kind = set if origin is set else frozenset
            return lambda value: self._set(value, item, kind)
        if issubclass(origin, Mapping):
            key, inner = arguments if len(arguments) == 2 else (str, Any)
            return lambda value: self._mapping(value, key, inner)
        if origin in _LISTS:
            return lambda value: self._items(value, item)
        return None

    def _class(self, hint: Any) -> Hook:
        if not is_class_of_fields(hint):
            return lambda value: self._make_component(value, hint)
        if any(isinstance(each.type, str) for each in getattr(hint, "__attrs_attrs__", ())):
            resolve_types(hint)
        from_fields = structure_class(self.converter, hint, self.accepts_none)
        has_use = "use" in field_names(hint)

        def structure(value: object) -> object:
            if isinstance(value, Mapping) and "use" in value and not has_use:
                return self._make_component(value, hint)
            return from_fields(value)

        return structure

    def _path(self, value: object) -> FilePath:
        path = FilePath(_text(value)).expanduser()
        return path if self._folder is None else self._folder / path

    def _items(self, value: object, item: Any) -> list[object]:
        return collect(enumerate(_list(value)), lambda each: self.structure(each, item))

    def _fixed(self, value: object, hints: tuple[Any, ...]) -> tuple[object, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(hints):
            raise Problems.one(f"must be a list of {len(hints)}, found {shown(value)}")

        def item(index: int) -> object:
            return self.structure(value[index], hints[index])

        return tuple(collect(((index, index) for index in range(len(hints))), item))

    def _set(self, value: object, item: Any, kind: type) -> object:
        items = self._items(value, item)
        try:
            made = set(items)
        except TypeError as error:
            raise Problems.one(f"must be a list of distinct plain values: {error}") from None
        if len(made) != len(items):
            raise Problems.one(f"has some value twice: {len(items)} are given, {len(made)} are distinct")
        return kind(made)

    def _mapping(self, value: object, key: Any, inner: Any) -> dict[object, object]:
        if not isinstance(value, Mapping):
            raise Problems.one(f"must be a mapping, found {shown(value)}")

        def item(name: str) -> tuple[object, object]:
            return self.structure(name, key), self.structure(value[name], inner)

        return dict(collect(((name, name) for name in value), item))

    def _union(self, alternatives: tuple[Any, ...]) -> Hook:
        hints = without_doubles(alternatives)

        def structure(value: object) -> object:
            kind = _kind(value)
            ranked = sorted((hint for hint in hints if kind in self._kinds(hint)), key=self._rank)
            if not ranked:
                _refuse(f"must be {' or '.join(dict.fromkeys(map(self._say, hints)))}, found {_found(value)}")
            problems: list[Problems] = []
            for hint in ranked:
                try:
                    return self.structure(value, hint)
                except Problems as error:
                    problems.append(error)
            if len(problems) == 1 or self._rank(ranked[-1]) == _COMPONENT:
                raise problems[-1]
            texts = [
                f"{self._say(hint)}: {error.problems[0].text}" for hint, error in zip(ranked, problems, strict=True)
            ]
            raise Problems.one(f"fits none of what it may be ({'; '.join(texts)})")

        return structure

    def _rank(self, hint: Any) -> int:
        """Plain values before names of components: only those may make something on the way. Factories come last."""
        if hint in (str, int, float, bool, type(None)):
            return 0
        if self._kinds(hint) == frozenset({str, dict}):
            return _COMPONENT
        return 1

    def _kinds(self, hint: Any) -> frozenset[type]:
        """The kinds of plain values that `hint` may be made of."""
        if hint in (Any, object, None) or hint is JsonValue or is_json(hint) or isinstance(hint, Unresolved | TypeVar):
            return _ANYTHING
        if isinstance(hint, NewType):
            return self._kinds(hint.__supertype__)
        origin, arguments = get_origin(hint) or hint, get_args(hint)
        if origin is Annotated:
            return self._kinds(arguments[0])
        if origin in (Union, types.UnionType):
            return frozenset[type]().union(*map(self._kinds, arguments))
        if origin is Literal:
            return frozenset(map(type, arguments))
        if hint in _KINDS:
            return _KINDS[hint]
        if isinstance(hint, type) and issubclass(hint, Enum):
            return frozenset(type(member.value) for member in hint)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return frozenset({dict})
        if self._container(origin, arguments) is not None:
            return frozenset({list})
        return frozenset({dict}) if is_class_of_fields(hint) and hint not in self._own else frozenset({str, dict})

    def _say(self, hint: Any) -> str:
        """What `hint` asks for, in the words of YAML."""
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
        if hint in words:
            return words[hint]
        if get_origin(hint) is Literal:
            return "one of " + ", ".join(map(repr, get_args(hint)))
        kinds = self._kinds(hint)
        if kinds == frozenset({list}):
            return "a list"
        if kinds == frozenset({dict}):
            return "a mapping"
        return "a name or {use: name, ...}" if kinds == frozenset({str, dict}) else f"{getattr(hint, '__name__', hint)}"


_COMPONENT = 2
_LISTS = (list, Sequence, MutableSequence, Collection, Iterable)
_KINDS: Mapping[Any, frozenset[type]] = {
    type(None): frozenset({type(None)}),
    bool: frozenset({bool}),
    int: frozenset({int}),
    float: frozenset({int, float}),
    str: frozenset({str}),
    FilePath: frozenset({str}),
}


def _kind(value: object) -> type:
    if isinstance(value, tuple):
        return list
    return next((kind for kind in (bool, int, float, str, list, dict) if isinstance(value, kind)), type(value))


def _refuse(text: str) -> NoReturn:
    raise Problems.one(text)


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else _refuse(f"must be a list, found {shown(value)}")


def _truth(value: object) -> bool:
    return value if isinstance(value, bool) else _refuse(f"must be true or false, found {_found(value)}")


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    hint = f": {_NUMBERS}" if isinstance(value, float) and value.is_integer() else ""
    _refuse(f"must be a whole number, found {_found(value)}{hint}")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(f"must be a number, found {_found(value)}")
    try:
        return float(value)
    except OverflowError:
        _refuse(f"must be a number that a float can hold, found {shown(value)}")


def _found(value: object) -> str:
    """What stands where no text may: a variable holds nothing else, whatever its value looks like."""
    return shown(value) + (": variables are text, --set takes numbers" if isinstance(value, Expanded) else "")


def _text(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    plain_scalar = isinstance(value, bool | int | float)
    _refuse(f"must be text, found {shown(value)}{': quote it' if plain_scalar else ''}")


def _literal(allowed: tuple[object, ...]) -> Hook:
    def structure(value: object) -> object:
        for each in allowed:
            if value == each and _kind(value) is _kind(each):
                return each
        texts = [each for each in allowed if isinstance(each, str)]
        if isinstance(value, str) and len(texts) == len(allowed):
            _refuse(f"is {value!r:.80}, which it cannot be: {nearest(value, texts, kind='choices')}")
        _refuse(f"must be one of {', '.join(map(repr, allowed))}, found {shown(value)}")

    return structure


def _enum(cls: type[Enum]) -> Hook:
    choose = _literal(tuple(member.value for member in cls))
    return lambda value: cls(choose(value))
