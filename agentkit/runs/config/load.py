"""From a YAML file to a `RunConfig`."""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import attrs

from agentkit.errors import ConfigError
from agentkit.protocols import Model
from agentkit.runs.config.changes import Changed, apply_changes
from agentkit.runs.config.classes import problems_of
from agentkit.runs.config.components import Components
from agentkit.runs.config.document import Document, read_document
from agentkit.runs.config.problems import Path, Problem, Problems, nearest, tell
from agentkit.runs.config.references import Importer
from agentkit.runs.config.sections import Sections
from agentkit.runs.config.settings import RunConfig
from agentkit.runs.config.source import Source
from agentkit.runs.config.variables import Expansion, expand
from agentkit.runs.dataset import Dataset

SECTIONS = ("name", "model", "agent", "dataset", "pool", "overridable", "logs")
TRAINERS = ("_target_", "verl")
"""What trainers read of a file: it stays, and means nothing here."""
_PLAIN = {each.name: each.type for each in attrs.fields(RunConfig) if each.name in SECTIONS and each.name != "agent"}


def load_config(
    path: "str | os.PathLike[str]",
    *,
    base: "str | os.PathLike[str] | None" = None,
    environ: Mapping[str, str] | None = None,
    changes: Mapping[str, object] | Iterable[str] = (),
    entry: str | None = None,
    model: Model | None = None,
    parts: Mapping[str, object] | None = None,
) -> RunConfig:
    """The run that the YAML file at `path` describes, its components imported and made, nothing started.

    `changes` are laid over the file: `{"agent.budget.max_turns": 5}`, or texts as a command line gives them,
    `["agent.budget.max_turns=5"]`, whose values are YAML. Relative paths are relative to the folder `base`, by default
    that of the file. It goes to the front of `sys.path`, as that of a script does, so that components may come from
    modules beside it. Nothing is imported before the whole file has been checked as far as that goes without.

    A trainer that has a model and tasks of its own gives the `model`: the file's sections `model` and `dataset` are
    then not looked at, and there are no tasks. `parts` are fields of the agent for where its section says nothing.
    `entry` is the name of one of several runs, where the file is a list of them.

    Raises:
        ConfigError: lists every problem with its path, its line, what was found, and the nearest name that would do.
        MissingExtraError: the extra `yaml` is not installed.
    """
    where = os.fspath(path)
    document = read_document(_read(where), where=where, entry=entry)
    if isinstance(run := document.tree.get("config"), str) and "_target_" in document.tree:
        raise ConfigError(f"{where}: the entry's run is in {run!r}, as config says: name that file")
    changed = apply_changes(document.tree, changes)
    unread = TRAINERS if model is None else (*TRAINERS, "model", "dataset")
    expansion = expand(
        {name: value for name, value in changed.tree.items() if name not in unread},
        os.environ if environ is None else environ,
    )
    folder = FilePath(base) if base is not None else FilePath(where).parent
    loading = _Loading(where, document, changed, expansion, folder.absolute(), model, parts or {})
    loading.check()
    return loading.make()


class _Loading:
    """One file on its way: first everything is checked, then everything is made; problems are told together."""

    def __init__(
        self,
        where: str,
        document: Document,
        changed: Changed,
        expansion: Expansion,
        folder: FilePath,
        model: Model | None,
        parts: Mapping[str, object],
    ) -> None:
        self._where = where
        self._lines = document.lines
        self._changed = changed
        self._expansion = expansion
        self._importer = Importer(folder)
        self._sections = Sections(Components(self._importer))
        self._model = model
        self._parts = parts
        self._tree = {name: value for name, value in expansion.tree.items() if value is not None}
        self._problems: list[Problem] = list(expansion.problems)
        self._plain: dict[str, Any] = {}

    def check(self) -> None:
        """Check all that can be checked without importing; raise what was found."""
        for name in self._tree:
            if name not in SECTIONS:
                self._problems.append(Problem((name,), f"is unknown: {nearest(name, SECTIONS, kind='sections')}"))
        for name in ("model", "dataset") if self._model is None else ():
            if name not in self._tree:
                self._problems.append(Problem((name,), "is missing: every run needs it"))
        if "model" in self._tree:
            self._collect(lambda: self._sections.check_model(self._tree["model"]), "model")
        self._collect(lambda: self._sections.check_agent(self._tree.get("agent", {})), "agent")
        for name, hint in _PLAIN.items():
            if name in self._tree:
                self._collect(partial(self._check_plain, name, hint), name)
        self._raise()

    def make(self) -> RunConfig:
        """Import and make all components; raise what went wrong."""
        model, parts = self._model, dict[str, Any](self._parts)

        def make_model() -> None:
            nonlocal model
            model = self._sections.make_model(self._tree["model"])

        if model is None:
            self._collect(make_model, "model")
        self._collect(lambda: parts.update(self._sections.make_parts(self._tree.get("agent", {}))), "agent")
        self._raise()
        self._collect(lambda: parts.update(agent=self._sections.make_agent(model, parts)), "agent")
        self._raise()
        source = Source(
            self._where,
            self._changed.tree,
            agent if isinstance(agent := self._tree.get("agent"), Mapping) else {},
            self._expansion.secrets,
            self._importer.folder,
            frozenset(self._importer.modules),
        )
        given: dict[str, Any] = {"name": FilePath(self._where).stem, **self._plain}
        if self._model is not None:
            given["dataset"] = ()
        try:
            return RunConfig(agent=parts["agent"], secrets=frozenset(self._expansion.secrets), source=source, **given)
        except ConfigError as error:
            self._problems += problems_of(error, of="run")
            raise self._error() from None

    def _check_plain(self, name: str, hint: Any) -> None:
        value = self._tree[name]
        if name == "dataset":
            value, hint = ({"path": value} if isinstance(value, str) else value), Dataset
        self._plain[name] = made = self._sections.check_plain(value, hint)
        if isinstance(made, Dataset) and not os.path.isfile(made.path):
            raise Problems.one(f"is {str(made.path)!r}, which is no file", "path")

    def _collect(self, act: Callable[[], object], name: str) -> None:
        try:
            act()
        except Problems as error:
            self._problems += error.under(name).problems

    def _raise(self) -> None:
        if self._problems:
            raise self._error()

    def _error(self) -> ConfigError:
        return tell(self._problems, where=self._where, place=self._place, hide=self._expansion.hide)

    def _place(self, path: Path) -> str | None:
        """The line of the longest beginning of `path` that is in the file, or that it was changed."""
        for changed in self._changed.paths:
            if path[: len(changed)] == changed:
                return "as changed"
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return f"line {self._lines[path[:length]]}"
        return None


def _read(where: str) -> str:
    try:
        raw = FilePath(where).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {where!r}: {error.strerror or error}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{where}, line {line}: the file must be UTF-8, found the byte {raw[error.start]:#04x}"
        ) from None
