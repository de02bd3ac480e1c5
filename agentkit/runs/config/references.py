"""From a name in a configuration to the Python object it stands for.

A short name is an entry point of one of the groups `agentkit.models`, `agentkit.tools` and so on, to which any
installed package may add. `package.module:Name` is an attribute of a module, installed or beside the
configuration file.
"""

import importlib
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path as FilePath

from attrs import field, frozen

from agentkit.errors import AgentkitError
from agentkit.runs.config.problems import Problems, nearest

GROUPS = ("models", "renderers", "parsers", "envs", "sandboxes", "tools", "rewards", "loops")

_REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)", re.ASCII)


def is_reference(name: str) -> bool:
    """Whether `name` is of the form `package.module:Name`."""
    return _REFERENCE.fullmatch(name) is not None


class ShortNames:
    """The short names of what is installed now, by group; read once, when the first of them is asked for."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, list[EntryPoint]]] | None = None

    def of(self, group: str | None) -> Mapping[str, list[EntryPoint]]:
        """The entry points of each name of a group: several, where packages disagree."""
        if self._groups is None:
            installed = entry_points()
            self._groups = {group: _by_name(installed.select(group=f"agentkit.{group}")) for group in GROUPS}
        return {} if group is None else self._groups[group]

    def check(self, name: str, group: str | None) -> None:
        """Check that `name` may stand for something, without importing anything.

        Raises:
            Problems: it is no reference and no short name of the group.
        """
        if ":" in name:
            if not is_reference(name):
                raise Problems.one(f"must be written package.module:Name, found {name!r:.80}")
            return
        known = self.of(group)
        points = known.get(name, ())
        if not points:
            hint = nearest(name, known, kind=f"short names of {group}") if group else "there are none here"
            dotted = _DOTTED.fullmatch(name)
            if dotted:
                hint = f"write {dotted[1]}:{dotted[2]}, with a colon before the last name"
            else:
                hint += "; one of your own is package.module:Name"
            raise Problems.one(f"is {name!r:.80}, which is no short name: {hint}")
        if len(points) > 1:
            values = " or ".join(sorted(point.value for point in points))
            raise Problems.one(f"is {name!r}, a short name of several packages: write {values}")


def _by_name(points: Iterable[EntryPoint]) -> dict[str, list[EntryPoint]]:
    names: dict[str, list[EntryPoint]] = {}
    for point in points:
        same = names.setdefault(point.name, [])
        if all(point.value != other.value for other in same):
            same.append(point)
    return names


@frozen
class Importer:
    """Imports what names stand for; modules beside the configuration come before installed ones.

    `only`, if given, are the modules whose names may be used, beside the short names: those that came with a row of a
    dataset must not name what the configuration does not.
    """

    folder: FilePath | None = None
    only: frozenset[str] | None = None
    names: ShortNames = field(factory=ShortNames)
    modules: set[str] = field(factory=set)
    """The modules that were named so far."""

    def find(self, name: str, group: str | None) -> object:
        """What `name` stands for.

        Raises:
            Problems: there is no such thing, or importing it failed; then with the line at fault.
        """
        self.names.check(name, group)
        if ":" in name:
            module, _, attribute = name.partition(":")
        else:
            (point,) = self.names.of(group)[name]
            module, _, attribute = point.value.partition(":")
        if ":" in name:
            if self.only is not None:
                self._check_allowed(name, module, attribute)
            self._look_in_folder(module)
        found = self._attribute(self._module(module), module, attribute)
        if ":" in name:
            if self.only is not None and _home(found, module) not in (module.partition(".")[0], "agentkit"):
                raise Problems.one(f"is {name!r}, which comes from another package: a row may not name it")
            self.modules.add(module)
        return found

    def _check_allowed(self, name: str, module: str, attribute: str) -> None:
        if module not in (self.only or ()) or "." in attribute:
            raise Problems.one(
                f"is {name!r}: a row of a dataset may name only what has a short name, or is in a module that the "
                f"configuration names ({', '.join(sorted(self.only or ())) or 'it names none'})"
            )

    def _module(self, name: str) -> object:
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            if _is_absent(error):
                folder = f" in {str(self.folder)!r} and" if self.folder is not None else ""
                raise Problems.one(f"is in the module {name!r}, which is not there: looked{folder} among what is "
                                   "installed") from None  # fmt: skip
            raise Problems.one(f"is in the module {name!r}, whose import failed: {what_failed(error)}") from None

    def _look_in_folder(self, name: str) -> None:
        """Have modules beside the configuration found first, as those beside a script are."""
        if self.folder is None:
            return
        top = name.partition(".")[0]
        files = [self.folder / f"{top}.py", self.folder / top / "__init__.py"]
        own = next((file for file in files if file.is_file()), None)
        if own is None and not (self.folder / top).is_dir():
            return
        loaded = getattr(sys.modules.get(top), "__file__", None)
        if own is not None and loaded is not None and FilePath(loaded).resolve() != own.resolve():
            raise Problems.one(
                f"is in the module {top!r}, which {str(own)!r} is, but {loaded!r} was imported already: "
                "give yours another name"
            )
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
            importlib.invalidate_caches()

    def _attribute(self, found: object, module: str, attribute: str) -> object:
        for name in attribute.split("."):
            try:
                found = getattr(found, name)
            except AttributeError:
                names = [known for known in dir(found) if not known.startswith("_")]
                close = nearest(name, names, kind="names in it")
                hint = f": {close}" if close.startswith("did") else ""
                raise Problems.one(f"is {name!r} of {module!r}, which has no such name{hint}") from None
        return found


def what_failed(error: BaseException) -> str:
    """An exception of user code in a line, with the place in the file that the user wrote.

    Errors of agentkit say what they have to say; what is not the user's own code is left out of the place.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(FilePath(__file__).parents[2])
    own = [frame for frame in frames if not frame.filename.startswith((ours, "<"))]
    kind = "" if isinstance(error, AgentkitError) else f"{type(error).__name__}: "
    place = f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own and kind else ""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno}: {(error.text or '').strip()})"
    return f"{kind}{error}{place}"


def _is_absent(error: BaseException) -> bool:
    """Whether the module itself is not there, and not something that its code imports."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ModuleNotFoundError) and all(
        "importlib" in frame.filename or frame.filename == __file__ for frame in frames
    )


def _home(found: object, module: str) -> str:
    return str(getattr(found, "__module__", None) or module).partition(".")[0]
