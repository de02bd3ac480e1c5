"""What the documentation site shows of the rest of the repository: examples, README, changelog and the commands' help.

A hook of mkdocs (`hooks:` in mkdocs.yml). Pages link to files of the repository as they lie on disk, so that the links
work in an editor and in a browser of repositories too; on the site they lead to the page made of the file.
"""

import argparse
import ast
import importlib
import inspect
import os
import re
from pathlib import Path
from posixpath import dirname as parent
from posixpath import join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from agentkit.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "tests/mutants/README.md")
LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
PACKAGE = re.compile(r"^::: ([a-z_.]+)$", re.MULTILINE)  # a class stands for itself
TEXT = re.compile(r"^<!-- text: ([\w.]+) -->$", re.MULTILINE)
NAMES = re.compile(r"^<!-- names: (\w+) -->$", re.MULTILINE)
EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as \2$", re.MULTILINE)
HELP = re.compile(r"^<!-- help: ([\w-]+) -->$", re.MULTILINE)
SECTION = re.compile(r"^ *# --8<-- \[(?:start|end):[^\]]+\]\n(?:\n(?=\n))*", re.MULTILINE)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".jsonl": "json"}


def sources() -> dict[str, str]:
    """Files of the repository (from its root) that become pages, and where those pages are (from docs/)."""
    pages = {name: f"repository/{name.removesuffix('.md').replace('/', '-').lower()}.md" for name in PROSE}
    for path in sorted((ROOT / "examples").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in LANGUAGES and not name.startswith("examples/pages/") and "/runs/" not in name:
            pages[name] = f"{name.replace('.', '_')}.md"
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file of `sources`, and a list of the examples."""
    pages = sources()
    for name, page in pages.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if not name.endswith(".md"):
            text = f"# {name}\n\n``````{LANGUAGES[Path(name).suffix]}\n{SECTION.sub('', text).strip()}\n``````\n"
        elif name == "CHANGELOG.md":
            text += _to_come()
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "examples/index.md", content=_list_examples(pages)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads each relative link into the repository to the page made of its file, or shows it as text."""
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # it would hold this page alone
    pages = sources()
    here = next((name for name, made in pages.items() if made == page.file.src_uri), f"docs/{page.file.src_uri}")
    if page.file.src_uri == "examples/index.md":
        return markdown

    def lead(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = normpath(join(parent(here), path))
        if target in {"examples", "docs"}:
            to = "examples/index.md" if target == "examples" else "index.md"
        elif target in pages:
            to = pages[target]
        elif target.startswith("docs/"):
            to = target.removeprefix("docs/")
        elif (ROOT / target).exists():
            return text  # of a file that has no page: tests, say
        else:
            return match[0]  # leads nowhere: mkdocs says so
        return f"[{text}]({relpath(to, parent(page.file.src_uri) or '.')}{anchor})"

    markdown = LINK.sub(lead, markdown)
    helps = _helps() if HELP.search(markdown) else {}
    markdown = HELP.sub(lambda match: f"```text\n{helps[match[1]]}```", markdown)
    markdown = NAMES.sub(lambda match: _list_names(match[1]), markdown)
    markdown = TEXT.sub(lambda match: f"```text\n{inspect.getdoc(importlib.import_module(match[1]))}\n```", markdown)
    return PACKAGE.sub(lambda match: _with_members(match[1]), markdown)


def _list_examples(pages: dict[str, str]) -> str:
    lines = ["# Examples\n", "Complete programs; no network and no GPU, unless they say so. The tests run each.\n"]
    for heading, folder in (("Programs", "examples"), ("A run, in Python and in YAML", "examples/run")):
        lines += [f"## {heading}\n", "| file | what it shows |", "|---|---|"]
        for name, page in pages.items():
            if parent(name) == folder:
                lines.append(f"| [{Path(name).name}]({relpath(page, 'examples')}) | {_about(ROOT / name)} |")
        lines.append("")
    return "\n".join(lines)


def _about(path: Path) -> str:
    """The first sentence of a module, or the command in the first comment of a configuration."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if path.suffix == ".yaml":
        return f"`{text.partition(chr(10))[0].lstrip('# ')}`"
    return f"{text.count(chr(10))} tasks"


def _exports(package: str) -> list[tuple[str, str]]:
    """The public names of a package in order, each after the module that it comes from."""
    file = Path(str(importlib.import_module(package).__file__))
    return EXPORT.findall(file.read_text(encoding="utf-8")) if file.name == "__init__.py" else []


def _with_members(package: str) -> str:
    """Directives of mkdocstrings for all that a package's `__init__` exports, in its order: that is what is public."""
    if not _exports(package):
        return f"::: {package}\n    options:\n      show_root_heading: false"
    said = inspect.getdoc(importlib.import_module(package)) or ""
    return "\n\n".join([said, *(f"::: {_path(package, home, name)}" for home, name in _exports(package))])


def _path(package: str, home: str, name: str) -> str:
    """Where a name is found: in the module that defines it, if the package has a module of the same name."""
    folder = Path(str(importlib.import_module(package).__file__)).parent
    has_double = (folder / f"{name}.py").exists() or (folder / name).is_dir()
    return f"{home}.{name}" if has_double else f"{package}.{name}"


def _list_names(package: str) -> str:
    lines = ["| name | what it is |", "|---|---|"]
    for home, name in _exports(package):
        doc = inspect.getdoc(getattr(importlib.import_module(package), name)) or ""
        lines.append(f"| [`{name}`][{home}.{name}] | {doc.partition(chr(10))[0]} |")
    return "\n".join(lines)


def _to_come() -> str:
    """The fragments of the changelog that no release has taken up yet."""
    texts = [path.read_text(encoding="utf-8").strip() for path in sorted((ROOT / "changelog.d").glob("*.*.md"))]
    return "\n## To come\n\n" + "\n".join(f"- {text}" for text in texts) + "\n" if texts else ""


def _helps() -> dict[str, str]:
    os.environ["COLUMNS"] = "84"
    subparsers = argparse.ArgumentParser(prog="agentkit").add_subparsers()
    for command in COMMANDS:
        command.add_parser(subparsers)
    return {name: parser.format_help() for name, parser in subparsers.choices.items()}
