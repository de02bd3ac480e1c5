"""YAML 1.2 as plain values with line numbers, and back.

Only what JSON has: text, numbers, true, false, null, lists, and mappings with text as keys. Tags would build objects,
and are refused; dates and times are text; an alias is a copy. Nothing is imported and nothing is made but plain values.
"""

import io
import re
from collections.abc import Mapping
from typing import Any, cast

from attrs import frozen

from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.runs.config.problems import Path, spell

_TAG = "tag:yaml.org,2002:"
_TEXTS = frozenset({f"{_TAG}str", f"{_TAG}timestamp"})
_SCALARS = frozenset({f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null"})
_LINE_ENDS = re.compile("[\x85\u2028\u2029\ufeff]")
_MOST_VALUES = 100_000
_PURPOSE = "reading or writing a YAML file"


@frozen
class Document:
    """What a file says: a mapping of plain values, and the line (from 1) of each path in it."""

    tree: Mapping[str, object]
    lines: Mapping[Path, int]


def read_document(text: str, *, where: str, entry: str | None = None) -> Document:
    """The mapping that `text` is; or, as trainers keep their agents, the entry of a list that has this name.

    Of a list with a single entry the name need not be given.

    Raises:
        ConfigError: it is no YAML, no mapping, or holds what a configuration cannot; with the line.
        MissingExtraError: the extra `yaml` is not installed.
    """
    reader = _Reader(where)
    tree = reader.read(text)
    if isinstance(tree, list):
        number = _entry(tree, where, entry)
        lines = {path[1:]: line for path, line in reader.lines.items() if len(path) > 1 and path[0] == number}
        return Document(tree[number], lines)
    if tree is None:
        raise ConfigError(f"{where}: the file is empty: a run needs at least model and dataset")
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: the file must be a mapping (name: value), found {type(tree).__name__}")
    return Document(tree, reader.lines)


def entry_names(text: str, *, where: str) -> tuple[str, ...]:
    """The names in a list of runs.

    Raises:
        ConfigError: it is no YAML, or no list of mappings.
        MissingExtraError: the extra `yaml` is not installed.
    """
    tree = _Reader(where).read(text)
    entries = tree if isinstance(tree, list) else []
    names = tuple(str(entry.get("name")) for entry in entries if isinstance(entry, Mapping))
    if not names or len(names) != len(entries):
        raise ConfigError(f"{where}: must be a list of mappings, each with a name")
    return names


def _entry(tree: list[object], where: str, name: str | None) -> int:
    """The number of the entry with this name, or of the only one."""
    names = [str(entry.get("name")) for entry in tree if isinstance(entry, Mapping)]
    if len(names) != len(tree) or not tree:
        raise ConfigError(f"{where}: a list must have mappings as entries, each with a name")
    if name is None:
        if len(tree) > 1:
            raise ConfigError(f"{where}: the file has {len(tree)} entries, {', '.join(names)}: name one of them")
        return 0
    if name not in names:
        raise ConfigError(f"{where}: no entry has the name {name!r}, found {', '.join(names)}")
    return names.index(name)


def read_value(text: str, *, where: str) -> object:
    """The plain value that a piece of YAML is, such as `5`, `[a, b]` or `{use: host}`.

    Raises:
        ConfigError: it is no YAML.
        MissingExtraError: the extra `yaml` is not installed.
    """
    return _Reader(where).read(text)


def write_document(tree: Mapping[str, object]) -> str:
    """`tree` as YAML that reads back equal, in block style, in its own order.

    Raises:
        MissingExtraError: the extra `yaml` is not installed.
    """
    yaml = _yaml()
    yaml.Representer = _quoting(yaml.Representer)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 100
    out = io.StringIO()
    yaml.dump(_plain(tree), out)
    return out.getvalue()


def _yaml() -> Any:
    return require("ruamel.yaml", extra="yaml", purpose=_PURPOSE).YAML(typ="safe", pure=True)


def _quoting(representer: Any) -> Any:
    """The representer, but with the line ends of other scripts quoted: as plain text they would read back as blanks."""
    quoting: Any = type("QuotingRepresenter", (representer,), {})

    def represent(self: Any, text: str) -> Any:
        return self.represent_scalar(f"{_TAG}str", text, style='"' if _LINE_ENDS.search(text) else None)

    quoting.add_representer(str, represent)
    return quoting


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


class _Reader:
    """Walks the nodes that ruamel.yaml composes, so that lines are known and nothing but plain values is made."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._yaml = _yaml()
        self._open: set[int] = set()
        self._count = 0
        self.lines: dict[Path, int] = {}

    def read(self, text: str) -> object:
        errors = require("ruamel.yaml", extra="yaml", purpose=_PURPOSE).error
        try:
            node = self._yaml.compose(text)
        except errors.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f", line {mark.line + 1}" if mark is not None else ""
            words = ", ".join(part for part in (error.context, error.problem) if part)
            raise ConfigError(f"{self._where}{line}: this is no YAML: {words}") from None
        except errors.YAMLError as error:
            raise ConfigError(f"{self._where}: this is no YAML: {_first_line(error)}") from None
        except RecursionError:
            raise ConfigError(f"{self._where}: lists and mappings are nested too deeply") from None
        return None if node is None else self._value(node, ())

    def _value(self, node: Any, path: Path) -> object:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        if self._count > _MOST_VALUES:
            raise self._error(node, path, f"makes more than {_MOST_VALUES:,} values: aliases (*) multiply")
        if id(node) in self._open:
            raise self._error(node, path, "contains itself, by an alias (*)")
        if len(path) > 64:
            raise self._error(node, path, "is nested too deeply")
        self._open.add(id(node))
        try:
            return self._plain_value(node, path)
        finally:
            self._open.discard(id(node))

    def _plain_value(self, node: Any, path: Path) -> object:
        tag = str(node.tag)
        if tag in _TEXTS and isinstance(node.value, str):
            return node.value
        if tag in _SCALARS and isinstance(node.value, str):
            try:
                return cast("object", self._yaml.constructor.construct_object(node))
            except ValueError as error:
                raise self._error(node, path, f"is no number: {_first_line(error)}") from None
        if tag == f"{_TAG}seq" and isinstance(node.value, list):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        if tag == f"{_TAG}map" and isinstance(node.value, list):
            return self._mapping(node, path)
        raise self._error(node, path, f"has the tag {tag.replace(_TAG, '!!')}: only plain values are read")

    def _mapping(self, node: Any, path: Path) -> dict[str, object]:
        tree: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            below = (*path, key)
            if key in tree:
                raise self._error(key_node, below, f"is given twice, first in line {self.lines[below]}")
            self.lines[below] = key_node.start_mark.line + 1
            tree[key] = self._value(value_node, below)
        return tree

    def _key(self, node: Any, path: Path) -> str:
        if str(node.tag) == f"{_TAG}merge":
            raise self._error(node, path, "has a merge key (<<), which YAML 1.2 does not know: write the fields out")
        if str(node.tag) not in _TEXTS or not isinstance(node.value, str):
            value = f" {node.value!r:.40}: quote it" if isinstance(node.value, str) else ""
            raise self._error(node, path, f"has a key that is no text, found{value or ' a list or mapping'}")
        return node.value

    def _error(self, node: Any, path: Path, text: str) -> ConfigError:
        return ConfigError(f"{self._where}, line {node.start_mark.line + 1}: {spell(path) or 'the file'} {text}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
