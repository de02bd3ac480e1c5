"""The documentation is true: its code runs, its tables are those of the code, and every page can be found."""

import ast
import re
from collections.abc import Coroutine
from pathlib import Path

import attrs
import pytest

from agentkit import Blame, Budget, ExitReason, OutcomePolicy
from agentkit.actors.outcomes import UNGRADED, blame_for

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def rows(page: str, first: str) -> dict[str, list[str]]:
    """The cells of a table by their first one, which is code; `first` heads it."""
    _, _, rest = (DOCS / page).read_text().partition(f"| {first} |")
    table = rest.partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {line[0].strip("`"): line[1:] for line in cells}


REAL_TIME = {"sandboxes.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in REAL_TIME else [])
        for page in PAGES
        if blocks(page)
    ],
)
async def test_the_code_of_a_page_runs_in_order(page: Path) -> None:
    scope: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        code = compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, scope)
        if isinstance(running, Coroutine):
            await running


def test_the_index_links_every_page() -> None:
    index = (DOCS / "index.md").read_text()
    assert [page.name for page in PAGES if f"({page.name})" not in index] == ["index.md"]


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


def test_a_table_of_invariants_is_the_same_everywhere() -> None:
    def names(path: Path) -> list[str]:
        return re.findall(r"^\| ([TBR]\d) \|", path.read_text(), re.MULTILINE)

    everywhere = names(DOCS / "invariants.md")
    assert everywhere == names(DOCS.parent / "README.md")
    assert [name for name in everywhere if name.startswith("T")] == names(DOCS / "tokens.md")
