"""What the documentation site shows of the rest of the repository: examples, README, changelog and benchmarks as pages.

A hook of mkdocs (`hooks:` in mkdocs.yml). Pages link to files of the repository as they lie on disk, so that the links
work in an editor and in a browser of repositories too; on the site they lead to the page made of the file.
"""

import re
from pathlib import Path
from posixpath import dirname as parent
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "tests/mutants/README.md")
LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def sources() -> dict[str, str]:
    """Files of the repository (from its root) that become pages, and where those pages are (from docs/)."""
    pages = {name: f"repository/{name.removesuffix('.md').replace('/', '-').lower()}.md" for name in PROSE}
    for path in sorted((ROOT / "examples").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in {".py", ".yaml", ".jsonl"} and "__pycache__" not in name and "/runs/" not in name:
            pages[name] = f"{name.replace('.', '_')}.md"
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file of `sources`, and a list of the examples."""
    pages = sources()
    for name, page in pages.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if not name.endswith(".md"):
            text = f"# {name}\n\n``````{Path(name).suffix[1:]} linenums='1'\n{text}``````\n"
        files.append(File.generated(config, page, content=text))
    examples = [(name, page) for name, page in pages.items() if name.startswith("examples/")]
    listed = [f"- [{name}]({relpath(page, 'examples')})" for name, page in examples]
    files.append(File.generated(config, "examples/index.md", content="# Examples\n\n" + "\n".join(listed) + "\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads each relative link into the repository to the page made of its file, or shows it as text."""
    pages = sources()
    here = next((name for name, made in pages.items() if made == page.file.src_uri), f"docs/{page.file.src_uri}")
    if page.file.src_uri == "examples/index.md":
        return markdown

    def lead(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = normpath(f"{parent(here)}/{path}").removeprefix("./")
        if target in {"examples", "docs"}:
            to = "examples/index.md" if target == "examples" else "index.md"
        elif target in pages:
            to = pages[target]
        elif target.startswith("docs/"):
            to = target.removeprefix("docs/")
        else:
            return text  # of a file that has no page: tests, say
        return f"[{text}]({relpath(to, parent(page.file.src_uri) or '.')}{anchor})"

    return LINK.sub(lead, markdown)
