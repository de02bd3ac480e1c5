"""The page stands alone, and nothing in a run can become part of its markup."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.protocols import ExitReason
from agentkit.runs.report import Facts, Histogram, Report, RolloutFacts, render_page, report, summarise
from agentkit.runs.report.escaping import markup, visible
from agentkit.runs.report.facts import ToolUse
from agentkit.runs.report.svg import Bar, Point, bars, columns, curve, short, split
from agentkit.testing.strategies import texts

Make = Callable[..., RolloutFacts]
ATTACKS = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='x", "&lt;b&gt;", "]]>", "</style>")
NAMES = texts() | st.sampled_from(ATTACKS) | st.tuples(st.sampled_from(ATTACKS), texts()).map("".join)


class Tags(HTMLParser):
    """Tags with their attributes' names, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text: list[str] = []
        self.values: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value for name, value in attrs if name not in ("d", "points", "class")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def named(facts: Make, name: str) -> Report:
    return summarise(
        Facts(
            path=Path(name.replace("\x00", "") or "."),
            info=None,
            rollouts=(facts(name, 0, 1.0), facts(name, 1, 0.0, exit_reason=ExitReason.TURN_LIMIT, blame="policy")),
            tools={name: ToolUse(3, 1, 1, 1)},
            faults={name: 2},
            given_up={name: 1},
            stuck={name: 1},
            errors={name: 1},
        )
    )


@given(NAMES)
def test_no_text_of_a_run_becomes_markup(facts: Make, name: str) -> None:
    page = render_page(named(facts, name))
    assert Tags(page).tags == Tags(render_page(named(facts, "plain"))).tags
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page) is None
    text = " ".join(Tags(page).text)
    assert visible(f"{name}#0")[:150] in text


def test_the_page_needs_nothing_else(real_run: Path) -> None:
    page = render_page(report(real_run))
    tags = Tags(page)
    assert {tag for tag, _ in tags.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form"})
    assert not [name for _, names in tags.tags for name in names if name.startswith("on") or name in ("src", "href")]
    outside = [word for word in re.findall(r"https?:[^\s\"'<]+", page) if word != "http://www.w3.org/2000/svg"]
    assert outside == []
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src &#x27;none&#x27;" in page
    assert "prefers-color-scheme: dark" in page
    assert "&lt;img src=x onerror=alert(1)&gt;\\u202e\\x1b]0;owned\\x07\\ud800" in page


def test_the_page_says_what_the_report_says(real_run: Path) -> None:
    found = report(real_run)
    text = " ".join(Tags(render_page(found)).text)
    assert found.success is not None
    assert f"{found.success.value:.1%}" in text
    assert f"{found.solved} of {found.coverage.expected}" in text
    assert f"{found.solved} of {found.graded} graded" in text
    for each in found.endings:
        assert f"{each.exit_reason}, blame {each.blame or 'nobody'}: {each.count}, {each.solved} solved" in text


def test_a_run_without_rollouts_is_a_page_too() -> None:
    assert "no rollouts" in render_page(summarise(Facts(path=Path("x"), info=None, rollouts=())))


LABELS = texts() | st.sampled_from(ATTACKS)
AMOUNTS = st.floats(0, 1e12) | st.integers(0, 5).map(float)


def drawn(svg: str) -> list[ET.Element]:
    """All elements of a plot, which must be well-formed XML with finite numbers."""
    elements = list(ET.fromstring(svg).iter())
    for element in elements:
        for name in ("x", "y", "width", "height", "cx", "cy", "x1", "x2", "y1", "y2"):
            if name in element.attrib:
                assert abs(float(element.attrib[name])) < 2000
                assert name not in ("width", "height") or float(element.attrib[name]) >= 0
    return elements


@given(st.lists(st.builds(Bar, LABELS, AMOUNTS, LABELS), max_size=5), LABELS)
def test_bars_are_well_formed(rows: list[Bar], label: str) -> None:
    for plot in (bars(rows, label=label), split(rows, label=label)):
        drawn(plot)
    assert sum(element.tag.endswith("rect") for element in drawn(bars(rows, label=label))) == len(rows)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.booleans())
def test_curves_are_well_formed(rates: list[float], known: bool) -> None:
    points = [
        Point(2**n, y, y * 0.9 if known else None, min(1.0, y * 1.1) if known else None) for n, y in enumerate(rates)
    ]
    elements = drawn(curve(points, label="x"))
    assert sum(element.tag.endswith("circle") for element in elements) == len(points)
    assert any(element.tag.endswith("polygon") for element in elements) == (known and len(points) > 1)


@pytest.mark.parametrize(
    "data",
    [
        Histogram(()),
        Histogram((3,), values=(1.0,)),
        Histogram((0, 4), edges=(0.0, 0.5, 1.0)),
        Histogram((1,) * 20, edges=tuple(map(float, range(21)))),
    ],
)
def test_columns_are_well_formed(data: Histogram) -> None:
    assert sum(element.tag.endswith("rect") for element in drawn(columns(data, label="x"))) == len(data.counts)


def test_short_numbers() -> None:
    assert [short(x) for x in (0, 0.12345, 999, 9999, 12345, 1_234_567, 5e9, -2e6)] == [
        "0",
        "0.1235",
        "999",
        "9999",
        "12.3k",
        "1.23M",
        "5G",
        "-2M",
    ]


def test_long_text_is_cut() -> None:
    assert markup("x" * 50, limit=10) == "x" * 9 + "…"
    assert markup("<" * 50, limit=3) == "&lt;&lt;…"
