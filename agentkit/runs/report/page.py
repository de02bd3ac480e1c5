"""A report as one HTML page that stands alone: no script, no network, light and dark, readable as plain text too."""

import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files

from agentkit.runs.report.escaping import markup, visible
from agentkit.runs.report.stats import Estimate
from agentkit.runs.report.svg import Bar, Point, bars, columns, curve, short, split
from agentkit.runs.report.values import Notable, Report, Spread

_BLAME_STYLES = {None: "c1", "policy": "c0", "environment": "c2", "infrastructure": "c3", "grader": "c4"}
_STAGE_STYLES = {"queued": "c5", "setup": "c2", "generation": "c0", "tools": "c1", "reward": "c4", "other": "c3"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # were anything to slip through, it could not run or load


def render_page(report: Report) -> str:
    """The page. Every text that comes from the run is escaped, and its invisible characters are made visible."""
    css = files("agentkit.runs.report").joinpath("page.css").read_text(encoding="utf-8")
    title = markup(report.name or report.path)
    body = "".join(
        (
            f'<header><h1>{title}</h1><p class="path">{markup(report.path)}</p></header>',
            _grid("kpis", *_key_numbers(report)),
            *(f'<div class="grid"><div class="card note-box">{markup(note)}</div></div>' for note in report.notes),
            _grid("pair", _passes(report), _scores(report)),
            _grid("pair", _endings(report), _grades(report)),
            _grid("pair", _time(report), _groups(report)),
            _grid("pair", _spread("Turns a rollout", report.turns), _spread("Tokens a rollout", report.tokens)),
            _grid("pair", _tools(report), _faults(report)),
            _grid("pair", _notable("Slowest", report, report.slowest), _notable("Longest", report, report.longest)),
            _footer(report),
        )
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: agentkit report</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{markup(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{css}</style></head><body>{body}</body></html>\n"
    )


def inspect_command(path: str, rollout: Notable) -> str:
    """What to type to see a rollout."""
    return f"agentkit inspect {shlex.quote(visible(path))} {shlex.quote(visible(f'{rollout.task_id}#{rollout.index}'))}"


def between(estimate: Estimate | None, *, percent: bool = True) -> str:
    """An interval as text, empty where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    if percent:
        return f"{estimate.low:.1%} to {estimate.high:.1%}"
    return f"{estimate.low:.4g} to {estimate.high:.4g}"


def _key_numbers(report: Report) -> Sequence[str]:
    cover, level = report.coverage, f"{report.level:.0%} interval"

    def rate(title: str, estimate: Estimate | None, below: str) -> str:
        span = between(estimate)
        return _number(
            title,
            "none" if estimate is None else f"{estimate.value:.1%}",
            f"{span} ({level}, {estimate.method})" if span and estimate else estimate.method if estimate else "",
            below,
        )

    score = report.score
    wall = (
        ""
        if report.wall_s is None
        else f"{short(report.sampled_per_wall_s or 0)} a second over {time_text(report.wall_s)}"
    )
    stream = report.sampled_per_generation_s
    return (
        rate(
            "Solved, of all rollouts",
            report.success,
            f"{report.solved} of {cover.expected}, score >= {report.threshold:g}",
        ),
        rate("Solved, of the graded", report.graded_success, f"{report.solved} of {report.graded} graded"),
        _number(
            "Mean score of the graded",
            "none" if score is None else f"{score.value:.4g}",
            between(score, percent=False) or ("" if score is None else score.method),
            f"{report.graded} graded",
        ),
        _number(
            "Rollouts sealed",
            f"{cover.sealed} <span class='quiet'>of {cover.expected}</span>",
            f"{cover.tasks} tasks, groups of {cover.group_size}",
            ", ".join(
                f"{count} {name}"
                for name, count in (
                    ("unfinished", cover.unfinished),
                    ("never begun", cover.missing),
                    ("replaced", cover.replaced),
                    ("retried", report.retried),
                )
                if count
            ),
        ),
        _number(
            "Sampled tokens",
            short(report.sampled),
            "" if stream is None else f"{short(stream)} a second in one stream",
            wall,
        ),
    )


def _number(title: str, value: str, *below: str) -> str:
    lines = "".join(f'<p class="sub">{markup(line)}</p>' for line in below if line)
    return f'<div class="sub">{markup(title)}</div><div class="big">{value}</div>{lines}'


def _passes(report: Report) -> str:
    points = [Point(p.k, p.estimate.value, p.estimate.low, p.estimate.high) for p in report.pass_at]
    rows = [
        (f"{p.k}", f"{p.estimate.value:.1%}", between(p.estimate), f"{p.tasks}", p.estimate.method)
        for p in report.pass_at
    ]
    table = _table(("k", "pass@k", f"{report.level:.0%} interval", "tasks", "interval by"), rows, numeric=(0, 1, 2, 3))
    plot = curve(points, label="pass@k over k with its interval") if len(points) > 1 else ""
    return f"<h2>pass@k</h2>{plot}{table}" if points else "<h2>pass@k</h2><p class='quiet'>no rollouts</p>"


def _scores(report: Report) -> str:
    plot = (
        "<p class='quiet'>nothing was graded</p>" if report.scores is None else columns(report.scores, label="scores")
    )
    return f"<h2>Scores of the graded</h2>{plot}"


def _endings(report: Report) -> str:
    total = sum(each.count for each in report.endings) or 1
    rows = [
        Bar(
            each.exit_reason,
            each.count,
            f"{each.count} ({_share(each.count / total)})",
            _BLAME_STYLES.get(each.blame, "c5"),
            f"{each.exit_reason}, blame {each.blame or 'nobody'}: {each.count}, {each.solved} solved",
        )
        for each in report.endings
    ]
    blames = {each.blame: _BLAME_STYLES.get(each.blame, "c5") for each in report.endings}
    legend = " ".join(
        f'<svg viewBox="0 0 12 12" style="display:inline;width:.75em;vertical-align:-.05em"><rect class="{style}" '
        f'width="12" height="12" rx="3"/></svg> {markup(blame or "nobody")}&nbsp;&nbsp;'
        for blame, style in blames.items()
    )
    table = _table(
        ("exit reason", "blame", "rollouts", "solved"),
        [(each.exit_reason, each.blame or "-", str(each.count), str(each.solved)) for each in report.endings],
        numeric=(2, 3),
    )
    plot = bars(rows, label="rollouts by exit reason") if rows else ""
    return f"<h2>Why rollouts ended</h2><p class='sub'>blame: {legend}</p>{plot}<p></p>{table}"


def _grades(report: Report) -> str:
    return (
        "<h2>Grades and outcomes</h2>"
        + _table(("grade", "rollouts"), _pairs(report.grades), numeric=(1,))
        + "<p></p>"
        + _table(("outcome", "rollouts"), _pairs(report.outcomes), numeric=(1,))
    )


def _time(report: Report) -> str:
    rows = [
        Bar(stage.name, stage.total_s, _share(stage.share), _STAGE_STYLES.get(stage.name, "c5"))
        for stage in report.stages
    ]
    table = _table(
        ("stage", "median", "p90", "all rollouts", "share"),
        [
            (s.name, time_text(s.median_s), time_text(s.p90_s), time_text(s.total_s), f"{s.share:.1%}")
            for s in report.stages
        ],
        numeric=(1, 2, 3, 4),
    )
    whole = report.seconds
    said = (
        ""
        if whole is None
        else f"<p class='sub'>a rollout: median {time_text(whole.median)}, p90 {time_text(whole.p90)}</p>"
    )
    return f"<h2>Where the time went</h2>{split(rows, label='time by stage')}{said}{table}"


def _share(part: float) -> str:
    return "< 1%" if 0 < part < 0.01 else f"{part:.0%}"


def _groups(report: Report) -> str:
    groups = report.groups
    rows = [
        ("with at least two scores to train on", str(groups.counted)),
        ("of these, all scores alike (no advantage under GRPO)", str(groups.same_score)),
        ("because all are solved", str(groups.solved)),
        ("because none is solved", str(groups.unsolved)),
    ]
    return f"<h2>Groups</h2>{_table(('groups', ''), rows, numeric=(1,))}"


def _spread(title: str, spread: Spread | None) -> str:
    if spread is None:
        return f"<h2>{title}</h2><p class='quiet'>no rollouts</p>"
    said = f"median {short(spread.median)}, p90 {short(spread.p90)}, {short(spread.total)} in all"
    return f"<h2>{title}</h2><p class='sub'>{said}</p>{columns(spread.histogram, label=title)}"


def _tools(report: Report) -> str:
    rows = [
        (tool.name, str(tool.calls), str(tool.errors), str(tool.timeouts), str(tool.skipped)) for tool in report.tools
    ]
    table = _table(("tool", "calls", "errors", "timeouts", "skipped"), rows, numeric=(1, 2, 3, 4))
    return f"<h2>Tools</h2>{table if rows else '<p class=quiet>no tool was called</p>'}"


def _faults(report: Report) -> str:
    turns = int(report.turns.total) if report.turns else 0
    share = f" ({report.format_error_turns / turns:.1%})" if turns else ""
    said = f"<p>{report.format_error_turns} of {turns} turns{share} with a call that could not run</p>"
    cut = f" ({report.cut_turns / turns:.1%})" if turns else ""
    said += f"<p>{report.cut_turns} of {turns} turns{cut} that a limit of tokens cut</p>"
    parts = [f"<h2>What went wrong</h2>{said}"]
    for title, counts in (
        ("errors", report.errors),
        ("malformed calls", report.faults),
        ("attempts given up and retried", report.given_up),
        ("stuck code, abandoned", report.stuck),
    ):
        if counts:
            parts.append(f"<p></p>{_table((title, ''), _pairs(counts), numeric=(1,))}")
    return "".join(parts)


def _notable(title: str, report: Report, rollouts: Sequence[Notable]) -> str:
    rows = "".join(
        f"<tr><td>{markup(f'{each.task_id}#{each.index}', limit=200)}<br>"
        f"<code>{markup(inspect_command(report.path, each), limit=2000)}</code></td>"
        f'<td>{markup(each.exit_reason)}</td><td class="num">{time_text(each.seconds)}</td>'
        f'<td class="num">{each.turns}</td><td class="num">{short(each.tokens)}</td></tr>'
        for each in rollouts
    )
    head = "<tr><th>rollout</th><th>exit reason</th>" + "".join(
        f'<th class="num">{name}</th>' for name in ("time", "turns", "tokens")
    )
    return f'<h2>{title} rollouts</h2><div class="scroll"><table>{head}</tr>{rows}</table></div>'


def _footer(report: Report) -> str:
    return (
        '<p class="sub" style="margin-top:1.5rem">A rollout is solved if its score is at least '
        f"{report.threshold:g}. Failed, ungraded, cancelled, unfinished and missing rollouts are not solved and stay "
        "in the denominator; a replaced one is stood for by its replacement, and retried attempts do not count apart. "
        "pass@k is the unbiased estimator (Chen et al. 2021, arXiv 2107.03374). Intervals draw whole tasks, because "
        f"the rollouts of one task are alike (bootstrap seed {report.seed}).</p>"
    )


def _grid(kind: str, *cards: str) -> str:
    return f'<div class="grid {kind}">{"".join(f"<section class=card>{card}</section>" for card in cards)}</div>'


def _pairs(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(name, str(count)) for name, count in counts.items()]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int]) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=num' if place in numeric else ''}>{markup(cell, limit=200)}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells(head, "th")}</tr>{body}</table></div>'


def time_text(seconds: float) -> str:
    """A duration in a few characters."""
    if seconds < 0.001:
        return "< 1 ms" if seconds else "0"
    if seconds < 0.0995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
