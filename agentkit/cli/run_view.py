"""A run as a table of its rollouts."""

from collections import Counter
from collections.abc import Sequence

from agentkit.cli.terminal import Style, columns, escape, fit, paint
from agentkit.journal import JournalReader, Summary, Unfinished

_HEAD = ("rollout", "exit reason", "blame", "score", "turns", "tokens", "sampled", "seconds", "outcome")
_RIGHT = frozenset({"score", "turns", "tokens", "sampled", "seconds"})
_MIN_NAME = 12


def render_run(reader: JournalReader, *, color: bool = False, width: int | None = None) -> str:
    """The rollouts of a run, sealed and unfinished, as a table with a summary below; `width` None is unlimited."""
    summaries, unfinished = list(reader.summaries()), reader.unfinished()
    rows = [*map(_sealed_row, summaries), *map(_unfinished_row, unfinished)]
    styles = [Style.PLAIN if each.exit_reason == "finished" else Style.FAULT for each in summaries]
    styles += [Style.DIM] * len(unfinished)
    sizes = [max(map(columns, cells)) for cells in zip(_HEAD, *rows, strict=True)]
    if width is not None:
        sizes[0] = max(_MIN_NAME, min(sizes[0], width - sum(sizes[1:]) - 2 * (len(sizes) - 1)))
    plain = [fit(_line(row, sizes), width) for row in (_HEAD, *rows)]
    lines = [paint(line, style, color=color) for line, style in zip(plain, (Style.TITLE, *styles), strict=True)]
    return "\n".join([*lines, "", *_totals(summaries, unfinished)])


def _sealed_row(each: Summary) -> tuple[str, ...]:
    score = f"{each.score:.4g}" if each.score is not None else each.grade or "-"
    counts = (str(each.turns), str(each.tokens), str(each.sampled), f"{each.seconds:.1f}")
    return escape(str(each.key)), each.exit_reason.value, each.blame or "-", score, *counts, each.outcome


def _unfinished_row(each: Unfinished) -> tuple[str, ...]:
    tokens, sampled = sum(map(len, each.chains)), sum(chain.mask_bytes.count(1) for chain in each.chains)
    return escape(str(each.key)), "(unfinished)", "-", "-", str(len(each.turns)), str(tokens), str(sampled), "-", "-"


def _line(cells: Sequence[str], sizes: Sequence[int]) -> str:
    padded = []
    for head, cell, size in zip(_HEAD, cells, sizes, strict=True):
        text = fit(cell, size)
        space = " " * (size - columns(text))
        padded.append(space + text if head in _RIGHT else text + space)
    return "  ".join(padded).rstrip()


def _totals(summaries: Sequence[Summary], unfinished: Sequence[Unfinished]) -> list[str]:
    reasons = Counter(each.exit_reason.value for each in summaries)
    parts = [f"{count} {reason}" for reason, count in reasons.most_common()]
    if unfinished:
        parts.append(f"{len(unfinished)} unfinished")
    keys = [*(each.key for each in summaries), *(each.key for each in unfinished)]
    rollouts = {(key.task_id, key.index) for key in keys}  # one that is run again is in both
    lines = [f"{len(rollouts)} rollouts" + (": " + ", ".join(parts) if parts else "")]
    scores = [each.score for each in summaries if each.score is not None]
    if scores:
        lines.append(f"mean score {sum(scores) / len(scores):.4g} of {len(scores)} graded")
    lines.append(f"{sum(each.tokens for each in summaries)} tokens, {sum(each.sampled for each in summaries)} sampled")
    return lines
