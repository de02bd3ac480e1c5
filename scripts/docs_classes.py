"""What the reference shows of classes that griffe does not know: signatures of attrs classes, and values of enums."""

from typing import Any

import griffe

MAKERS = {f"{module}.{name}" for module in ("attr", "attrs") for name in ("define", "frozen", "mutable")}
ENUMS = {"enum.Enum", "enum.IntEnum", "enum.StrEnum"}
FIELDS = {"attr.field", "attrs.field", "attr.ib"}


class ClassesExtension(griffe.Extension):
    """Gives each class that attrs makes the `__init__` that attrs would give it, and lists the values of enums."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called once the members of a class are known."""
        if any(isinstance(base, griffe.Expr) and base.canonical_path in ENUMS for base in cls.bases):
            _list_values(cls)
        maker = next((made for made in map(_maker, cls.decorators) if made is not None), None)
        if maker is None or "__init__" in cls.members:
            return
        parameters = [each for each in (_parameter(member, maker) for member in cls.members.values()) if each]
        parameters.sort(key=lambda each: each.kind is griffe.ParameterKind.keyword_only)
        own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        init = griffe.Function("__init__", parameters=griffe.Parameters(own, *parameters), parent=cls)
        cls.set_member("__init__", init)


def _list_values(cls: griffe.Class) -> None:
    values = [str(each.value).strip("'\"") for each in cls.members.values() if isinstance(each, griffe.Attribute)]
    if cls.docstring is not None:
        cls.docstring.value += "\n\nOne of " + ", ".join(f"`{value}`" for value in values) + "."


def _maker(decorator: griffe.Decorator) -> dict[str, str] | None:
    """The arguments of a decorator, if it is one of attrs."""
    value = decorator.value
    return _arguments(value) if isinstance(value, griffe.Expr) and value.canonical_path in MAKERS else None


def _arguments(value: object) -> dict[str, Any]:
    if not isinstance(value, griffe.ExprCall):
        return {}
    return {each.name: each.value for each in value.arguments if isinstance(each, griffe.ExprKeyword)}


def _parameter(member: object, maker: dict[str, str]) -> griffe.Parameter | None:
    """The parameter for a field; None for what is none."""
    if not isinstance(member, griffe.Attribute) or member.annotation is None or "property" in member.labels:
        return None
    if "class-attribute" in member.labels and "instance-attribute" not in member.labels:
        return None  # a ClassVar
    given = _arguments(member.value) if _is_field(member.value) else {}
    if str(given.get("init")) == "False":
        return None
    default = given.get("default") if _is_field(member.value) else member.value
    if "factory" in given:
        default = f"{given['factory']}()"
    is_keyword = "True" in (str(given.get("kw_only")), str(maker.get("kw_only")))
    kind = griffe.ParameterKind.keyword_only if is_keyword else griffe.ParameterKind.positional_or_keyword
    name = str(given["alias"]).strip("'\"") if "alias" in given else member.name.lstrip("_")
    return griffe.Parameter(name, annotation=member.annotation, kind=kind, default=default)


def _is_field(value: object) -> bool:
    return isinstance(value, griffe.ExprCall) and value.canonical_path in FIELDS
