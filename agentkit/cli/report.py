"""`agentkit report RUN`: how a run went, in numbers: on the terminal, as one HTML page, or as JSON."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentkit.cli.terminal import Style, columns, escape, fit, paint
from agentkit.errors import ConfigError
from agentkit.journal.export import appearing, to_json
from agentkit.runs.report import (
    Notable,
    Report,
    Spread,
    between,
    inspect_command,
    render_page,
    report,
    short,
    time_text,
)

JSON_VERSION = 1

_INDENT = "  "
_BAR = 24
_NUMBER = re.compile(r"(< |-)?[0-9.,]+(%|[kMG]|e[+-]?[0-9]+| ms| s| min| h)?")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `report`."""
    parser = subparsers.add_parser(
        "report",
        help="a run in numbers: success, pass@k, why rollouts ended, where the time went",
        description="Puts a run into numbers. Rates are over all rollouts that the run is to have: what failed, could "
        "not be graded, was cancelled or never begun is not solved and stays in the denominator. Intervals respect "
        "that the rollouts of one task are alike. Works while the run is going on, too.",
    )
    parser.add_argument("journal", metavar="RUN", help="the folder of the run, or its journal.sqlite")
    parser.add_argument("--success", type=float, default=1.0, metavar="X", help="the score that solves a task (1.0)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default 0)")
    parser.add_argument("--html", metavar="FILE", help="write one HTML page that needs nothing else")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the report, and writes the page.

    Raises:
        ConfigError: the page exists or cannot be written.
        JournalError: the journal cannot be read.
    """
    if args.success != args.success:
        raise ConfigError("--success must be a number, found nan")
    found = report(args.journal, success=args.success, seed=args.seed)
    if args.html is not None:
        with appearing(args.html, force=args.force) as path:
            path.write_text(render_page(found), encoding="utf-8", errors="replace")
    if args.json:
        text = to_json({"version": JSON_VERSION, **attrs.asdict(found)})
    else:
        terminal = sys.stdout.isatty()
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size((100, 24)).columns if terminal else None
        text = render_report(found, color=color, width=width)
        if args.html is not None:
            text += f"\n\nThe page is {escape(str(Path(args.html)))}"
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0


def render_report(found: Report, *, color: bool = False, width: int | None = None) -> str:
    """The report as text; `width` None is unlimited. Every text of the run is escaped."""
    page = _Page(color=color, width=width)
    page.title(f"{found.name or 'run'}  {found.path}")
    for note in found.notes:
        page.line(f"note: {note}", Style.FAULT)
    _success(page, found)
    page.table(
        "why rollouts ended",
        ("exit reason", "blame", "rollouts", "solved"),
        [(each.exit_reason, each.blame or "-", str(each.count), str(each.solved)) for each in found.endings],
    )
    page.counts("errors", found.errors)
    page.counts("grades", found.grades)
    page.counts("outcomes", found.outcomes)
    page.table(
        "time",
        ("stage", "median", "p90", "all", "share", ""),
        [
            (s.name, time_text(s.median_s), time_text(s.p90_s), time_text(s.total_s), f"{s.share:.1%}", _bar(s.share))
            for s in found.stages
        ],
    )
    _amounts(page, found)
    page.table(
        "tools",
        ("tool", "calls", "errors", "timeouts", "skipped"),
        [(t.name, str(t.calls), str(t.errors), str(t.timeouts), str(t.skipped)) for t in found.tools],
    )
    page.counts("malformed calls", found.faults)
    page.counts("attempts given up and retried", found.given_up)
    page.counts("stuck code, abandoned", found.stuck)
    _groups(page, found)
    _notable(page, "slowest", found, found.slowest)
    _notable(page, "longest", found, found.longest)
    return page.text()


class _Page:
    """Lines, escaped, fitted and painted."""

    def __init__(self, *, color: bool, width: int | None) -> None:
        self._color = color
        self._width = width
        self._lines: list[str] = []

    def title(self, text: str) -> None:
        if self._lines:
            self._lines.append("")
        self._add(escape(text), Style.TITLE)

    def line(self, text: str, style: Style = Style.PLAIN) -> None:
        self._add(_INDENT + escape(text), style)

    def whole(self, text: str) -> None:
        """A line that is there to be copied: never cut."""
        self._lines.append(paint(_INDENT + escape(text), Style.DIM, color=self._color))

    def counts(self, title: str, counts: Mapping[str, int]) -> None:
        if counts:
            self.table(title, ("", ""), [(name, str(count)) for name, count in counts.items()])

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """The first column and words to the left, numbers to the right; a wide first column is cut."""
        if not rows:
            return
        self.title(title)
        cells = [[escape(cell) for cell in row] for row in ([head, *rows] if any(head) else rows)]
        sizes = [max(map(columns, column)) for column in zip(*cells, strict=True)]
        if self._width is not None:
            room = self._width - len(_INDENT) - sum(sizes[1:]) - 2 * (len(sizes) - 1)
            sizes[0] = min(sizes[0], max(room, 8))
        body = cells[1:] if any(head) else cells
        left = [not all(map(_NUMBER.fullmatch, column)) for column in zip(*body, strict=True)]
        for number, row in enumerate(cells):
            padded = [
                text + space if place == 0 or left[place] else space + text
                for place, (cell, size) in enumerate(zip(row, sizes, strict=True))
                for text in [fit(cell, size)]
                for space in [" " * (size - columns(text))]
            ]
            is_head = number == 0 and any(head)
            self._add((_INDENT + "  ".join(padded)).rstrip(), Style.DIM if is_head else Style.PLAIN)

    def text(self) -> str:
        return "\n".join(self._lines)

    def _add(self, text: str, style: Style) -> None:
        self._lines.append(paint(fit(text, self._width), style, color=self._color))


def _success(page: _Page, found: Report) -> None:
    cover = found.coverage
    parts = [f"{cover.sealed} sealed of {cover.expected}", f"{cover.tasks} tasks, groups of {cover.group_size}"]
    parts += [
        f"{count} {name}"
        for name, count in (
            ("unfinished", cover.unfinished),
            ("never begun", cover.missing),
            ("replaced", cover.replaced),
            ("retried", found.retried),
        )
        if count
    ]
    page.line("rollouts: " + ", ".join(parts))
    rows = [
        (label, f"{estimate.value:.1%}", count, _interval(found, between(estimate), estimate.method))
        for label, estimate, count in (
            ("of all rollouts", found.success, f"{found.solved} of {cover.expected}"),
            ("of the graded alone", found.graded_success, f"{found.solved} of {found.graded}"),
        )
        if estimate is not None
    ]
    if found.score is not None:
        span = between(found.score, percent=False)
        rows.append(("mean score, graded", f"{found.score.value:.4g}", "", _interval(found, span, found.score.method)))
    page.table(f"success  (score >= {found.threshold:g})", ("", "", "", ""), rows)
    page.table(
        "pass@k",
        ("k", "pass@k", f"{found.level:.0%} interval", "tasks", "interval by"),
        [
            (str(p.k), f"{p.estimate.value:.1%}", between(p.estimate), str(p.tasks), p.estimate.method)
            for p in found.pass_at
        ],
    )


def _interval(found: Report, span: str, method: str) -> str:
    return f"{found.level:.0%}: {span}  ({method})" if span else f"no interval ({method.removeprefix('none: ')})"


def _amounts(page: _Page, found: Report) -> None:
    page.title("turns and tokens")
    for name, spread in (("turns", found.turns), ("tokens", found.tokens)):
        if spread is not None:
            page.line(_spread(name, spread))
    rates = [f"sampled {short(found.sampled)} tokens"]
    if found.sampled_per_generation_s is not None:
        rates.append(f"{short(found.sampled_per_generation_s)} a second in one stream")
    if found.sampled_per_wall_s is not None and found.wall_s is not None:
        rates.append(f"{short(found.sampled_per_wall_s)} a second over {time_text(found.wall_s)} of running")
    page.line(", ".join(rates))
    if found.turns is not None and found.turns.total:
        share = found.format_error_turns / found.turns.total
        page.line(f"{found.format_error_turns} turns ({share:.1%}) with a call that could not run")
        cut = found.cut_turns / found.turns.total
        page.line(f"{found.cut_turns} turns ({cut:.1%}) that a limit of tokens cut")


def _spread(name: str, spread: Spread) -> str:
    return f"{name} a rollout: median {short(spread.median)}, p90 {short(spread.p90)}, {short(spread.total)} in all"


def _groups(page: _Page, found: Report) -> None:
    groups = found.groups
    if groups.counted:
        page.title("groups")
        page.line(
            f"{groups.counted} with at least two scores to train on; {groups.same_score} with all scores alike, which "
            f"give no advantage under GRPO: {groups.solved} solved, {groups.unsolved} unsolved"
        )


def _notable(page: _Page, title: str, found: Report, rollouts: Sequence[Notable]) -> None:
    if not rollouts:
        return
    page.title(title)
    for each in rollouts:
        score = "no score" if each.score is None else f"score {each.score:.4g}"
        page.line(
            f"{time_text(each.seconds)}, {each.turns} turns, {short(each.tokens)} tokens, {each.exit_reason}, {score}"
        )
        page.whole(f"{_INDENT}{inspect_command(found.path, each)}")


def _bar(share: float) -> str:
    return "#" * round(share * _BAR)
