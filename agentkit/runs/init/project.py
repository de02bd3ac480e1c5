"""Writes the project; its files lie in `template/`."""

import os
import re
from importlib.resources import files
from pathlib import Path

from agentkit.errors import ConfigError

_TEMPLATES = {
    "README.md": "README.md.tmpl",
    "agent.py": "agent.py.tmpl",
    "pytest.ini": "pytest.ini.tmpl",
    "run.yaml": "run.yaml.tmpl",
    "tasks.jsonl": "tasks.jsonl.tmpl",
    "test_agent.py": "agent_test.py.tmpl",  # no name that is taken for a test of agentkit's own
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def write_project(folder: "str | os.PathLike[str]", *, name: str | None = None) -> tuple[Path, ...]:
    """The files of a new project named `name`, by default as its folder, which is made if need be.

    Raises:
        ConfigError: one of the files is there already, the name does not do, or the folder cannot be written.
    """
    path = Path(folder)
    chosen = _name(path) if name is None else name
    if not _NAME.fullmatch(chosen):
        raise ConfigError(f"the name of a project has letters, digits and `._-`, found {chosen!r}: give another --name")
    try:
        there = [file for file in _TEMPLATES if os.path.lexists(path / file)]
        if there:
            raise ConfigError(f"{', '.join(there)} would be overwritten in {str(path)!r}: name a new folder")
        path.mkdir(parents=True, exist_ok=True)
        return tuple(_write(path / file, _text(file, chosen)) for file in _TEMPLATES)
    except OSError as error:
        raise ConfigError(f"cannot write a project to {str(path)!r}: {error.strerror or error}") from error


def _name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.absolute().name).strip("-._") or "agent"


def _text(file: str, name: str) -> str:
    template = files("agentkit.runs.init") / "template"
    tasks = (template / "tasks.jsonl.tmpl").read_text(encoding="utf-8").count("\n")
    text = (template / _TEMPLATES[file]).read_text(encoding="utf-8")
    if file == "run.yaml" and (name[0].isdigit() or name.lower() in ("true", "false", "null")):
        name = f'"{name}"'  # else YAML takes it for something else than text
    return text.replace("__NAME__", name).replace("__TASKS__", str(tasks))


def _write(path: Path, text: str) -> Path:
    with path.open("x", encoding="utf-8") as file:  # never over a file that has come meanwhile
        file.write(text)
    return path
