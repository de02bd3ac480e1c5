"""The documentation is true: what it shows is run, its commands exist, its tables are those of the code."""

import argparse
import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from agentkit import Agent, Blame, Budget, ExitReason, OutcomePolicy
from agentkit.actors.outcomes import UNGRADED, blame_for
from agentkit.cli.main import COMMANDS
from agentkit.runs import Dataset, PoolLimits, RunConfig
from agentkit.runs.config import LogSettings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SNIPPET = re.compile(r'^\s*--8<-- "([^":]+)(?::([a-z][a-z0-9_-]*))?"$', re.MULTILINE)
FENCE = re.compile(r"^( *)(`{3,})(\w+)[^\n]*\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?: {4}|\t)\S.*$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def rows(page: str, first: str) -> dict[str, list[str]]:
    """The cells of a table by their first one, which is code; `first` heads it."""
    _, _, rest = (DOCS / page).read_text().partition(f"| {first} |")
    table = rest.partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {line[0].strip("`"): line[1:] for line in cells}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_of_a_page_is_cut_out_of_files_that_are_tested(page: Path) -> None:
    blocks = FENCE.findall(page.read_text())
    for _, _, language, block in blocks:
        lines = [line for line in block.splitlines() if line.strip()]
        assert lines, f"an empty block of {language}"
        assert all(SNIPPET.fullmatch(line) for line in lines), f"{language} that no test sees: {block}"
    assert len(blocks) * 2 == len(re.findall(r"^ *`{3,}", page.read_text(), re.MULTILINE)), "each block is one of these"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_shows_exists(page: Path) -> None:
    for path, section in SNIPPET.findall(page.read_text()):
        text = (ROOT / path).read_text()
        assert path.startswith("examples/"), path
        if section:
            assert re.search(rf"--8<-- \[start:{section}\].*\S.*--8<-- \[end:{section}\]", text, re.DOTALL), section


def test_every_section_of_an_example_is_shown() -> None:
    shown = {(path, section) for page in PAGES for path, section in SNIPPET.findall(page.read_text())}
    cut = {
        (path.relative_to(ROOT).as_posix(), section)
        for path in (ROOT / "examples").rglob("*.*")
        if path.suffix in {".py", ".yaml"}
        for section in re.findall(r"--8<-- \[start:([^\]]+)\]", path.read_text())
    }
    assert cut
    assert sorted(cut - shown) == []


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each line that runs `agentkit`, in pages and in the README, with the page it is on."""
    for page in (*PAGES, ROOT / "README.md", *sorted((ROOT / "examples" / "run").glob("*.yaml"))):
        text = page.read_text()
        lines = [line.strip() for line in INDENTED.findall(text)] + re.findall(r"`(agentkit [^`\n]+)`", text)
        lines += re.findall(r"^# (.*agentkit .*)$", text, re.MULTILINE) if page.suffix == ".yaml" else []
        for line in lines:
            if not re.match(r"(?:[A-Z_]+=\S* )*agentkit ", line):
                continue
            words = shlex.split(line, comments=" #" in line)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            yield page.relative_to(ROOT).as_posix(), words[1:]


def test_the_commands_of_the_pages_exist() -> None:
    parser = argparse.ArgumentParser(prog="agentkit", exit_on_error=False)
    subparsers = parser.add_subparsers(required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    seen = set()
    for page, words in commands():
        if len(words) == 1 or "..." in words:  # a mention of the command, not a use of it
            assert words[0] in subparsers.choices, f"{page}: agentkit {words[0]}"
            continue
        try:
            parser.parse_args(words)
        except (argparse.ArgumentError, SystemExit) as error:
            raise AssertionError(f"{page}: agentkit {shlex.join(words)}: {error}") from error
        seen.add(words[0])
    assert seen >= {"init", "run", "resume", "report", "export", "inspect"}, "each command is shown in use"


def test_the_targets_of_make_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"(?:`|^    )make ([a-z0-9.-]*[a-z0-9])", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"


def test_the_extras_that_pages_name_exist() -> None:
    declared = set(re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    for page in (*PAGES, ROOT / "README.md"):
        for extras in re.findall(r"(?:agentkit-rl|'\.)\[([a-z,]+)\]", page.read_text()):
            assert set(extras.split(",")) <= declared, f"{page.name}: [{extras}]"


def nav() -> list[str]:
    """The pages that the navigation of the site lists."""
    return re.findall(r"^ *- (?:[^:\n]+: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_the_navigation_lists_every_page() -> None:
    listed = nav()
    assert sorted(set(map(name_of, PAGES)) - set(listed)) == []
    assert len(set(listed)) == len(listed)


def test_the_index_links_every_page_on_a_concept() -> None:
    index = (DOCS / "index.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"({page.name})" not in index] == ["index.md"]


PACKAGES = [
    "agentkit",
    *(f"agentkit.{path.parent.name}" for path in sorted((ROOT / "agentkit").glob("*/__init__.py"))),
    *sorted(path.parent.name for path in (ROOT / "integrations").glob("*/*/__init__.py")),
]


def test_every_public_package_has_a_page_of_reference() -> None:
    shown = {
        name
        for page in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^(?:::: |<!-- names: )([\w.]+)", page.read_text(), re.MULTILINE)
    }
    assert sorted(set(PACKAGES) - shown - {"agentkit.cli", "agentkit_verl"}) == []


def test_the_reference_of_the_command_line_has_every_command() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text()
    names = [command.__name__.rpartition(".")[2].replace("_", "-") for command in COMMANDS]  # type: ignore[attr-defined]
    assert re.findall(r"^## agentkit ([\w-]+)\n\n<!-- help: ([\w-]+) -->$", page, re.MULTILINE) == [
        (name, name) for name in names
    ]


def test_the_table_of_ends_is_that_of_the_code() -> None:
    told = rows("failures.md", "exit reason")
    assert list(map(str, ExitReason)) == sorted(told, key=list(map(str, ExitReason)).index)
    for name, (blame, asked, outcome) in told.items():
        reason = ExitReason(name)
        assert blame.strip("`") == (blame_for(reason) or "nobody")
        assert asked == ("no" if reason in UNGRADED else "yes")
        assert outcome.strip("`") == OutcomePolicy().exits[reason]
    assert set(Blame) >= {blame.strip("`") for blame, _, _ in told.values()} - {"nobody"}


def test_the_table_of_limits_is_that_of_the_code() -> None:
    told = {name: default for name, (default, *_) in rows("budgets.md", "field").items()}
    assert told == {
        field.name: str(field.default).removesuffix(".0") if field.default is not True else "True"
        for field in attrs.fields(Budget)
    }


def test_the_table_of_sections_is_that_of_configurations() -> None:
    told = rows("howto/yaml-runs.md", "section")
    sections = [each.alias for each in attrs.fields(RunConfig) if each.init and each.alias not in {"secrets", "source"}]
    assert sorted(told) == sorted([*sections, "model"])
    for name, made in {"dataset": Dataset, "pool": PoolLimits, "logs": LogSettings}.items():
        assert set(re.findall(r"`([a-z_]+)`", told[name][0])) == {each.alias for each in attrs.fields(made)}, name
    fields = {each.alias for each in attrs.fields(Agent)} - {"model"}
    assert set(re.findall(r"`([a-z_]+)`", told["agent"][0])) == fields


def test_a_table_of_invariants_is_the_same_everywhere() -> None:
    def names(path: Path) -> list[str]:
        return re.findall(r"^\| ([TBR]\d) \|", path.read_text(), re.MULTILINE)

    everywhere = names(DOCS / "invariants.md")
    assert everywhere == names(ROOT / "README.md")
    assert [name for name in everywhere if name.startswith("T")] == names(DOCS / "tokens.md")


def test_what_the_readme_shows_is_a_file_that_is_tested() -> None:
    files = {
        path.read_text(): path.name
        for pattern in ("*.py", "run/*.py", "run/*.yaml")
        for path in (ROOT / "examples").glob(pattern)
    }
    shown = {files.get(block) for _, _, _, block in FENCE.findall((ROOT / "README.md").read_text())}
    assert shown == {"first_agent.py", "vllm.yaml", "vllm_server.py"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr  # with --quiet, warnings would not count
    assert "WARNING" not in done.stderr
    for page in nav():
        text = (tmp_path / "site" / page).with_suffix(".html").read_text()
        assert "--8&lt;--" not in text
        assert "--8<--" not in text
        assert "<!-- help" not in text
        assert re.findall(r'(?:src|href)="https?:[^"]*\.(?:js|css|woff2?|svg|png)"', text) == [], "nothing is fetched"
    assert "--dry-run" in (tmp_path / "site" / "reference" / "command-line.html").read_text()
    text = (tmp_path / "site" / "reference" / "actors.html").read_text()
    for anchor in ("agentkit.actors.Agent", "agentkit.actors.Pool.run", "agentkit.actors.Rollout.sample"):
        assert f'id="{anchor}"' in text, f"{anchor} is not on its page"


def test_the_examples_that_pages_cut_up_parse_as_they_are_cut() -> None:
    """A section that ends in the middle of a block would show code that nobody can paste."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        for section in re.findall(r"--8<-- \[start:([^\]]+)\]", path.read_text()):
            body = re.split(rf"^ *# --8<-- \[(?:start|end):{section}\]\n", path.read_text(), flags=re.MULTILINE)[1]
            lines = [line for line in body.splitlines() if "--8<--" not in line]
            indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
            code = "\n".join(line[indent:] for line in lines)
            compile(code, f"{path.name}:{section}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
