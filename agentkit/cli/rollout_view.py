"""One rollout, turn by turn, with every token under its mask."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from agentkit.cli.terminal import Style, columns, escape, fit, paint, wrap
from agentkit.journal import Unfinished
from agentkit.protocols import (
    CallFault,
    Chain,
    Json,
    Message,
    ObservationStatus,
    Span,
    SpanKind,
    ToolCall,
    Trajectory,
    Turn,
)

Decode: TypeAlias = Callable[[Sequence[int]], str]

_GUTTER = 13
_IDS_SHOWN = 6  # of each end of a span, where nothing decodes them


class _Page:
    """Lines, labelled in a gutter, wrapped and painted; all text passes through `escape` here."""

    def __init__(self, *, color: bool, width: int | None) -> None:
        self._color = color
        self._width = width
        self._lines: list[str] = []

    def title(self, text: str) -> None:
        if self._lines:
            self._lines.append("")
        self._lines.append(paint(fit(escape(text), self._width), Style.TITLE, color=self._color))

    def say(self, label: str, text: str, style: Style = Style.PLAIN) -> None:
        room = None if self._width is None else self._width - _GUTTER - 2
        head = fit(escape(label), _GUTTER - 2)
        for line in wrap(escape(text, lines=True), room):
            gutter = "  " + head + " " * (_GUTTER - 2 - columns(head))
            self._lines.append(f"{gutter}| {paint(line, style, color=self._color)}".rstrip())
            head = ""

    def text(self) -> str:
        return "\n".join(self._lines)


def render_trajectory(
    trajectory: Trajectory, *, color: bool = False, width: int | None = None, decode: Decode | None = None
) -> str:
    """A sealed rollout: how it ended, its turns, its chains. `decode` makes text of token ids, where it is known.

    What the policy sampled is labelled so, and green where there is colour; `width` None is unlimited.
    """
    page = _Page(color=color, width=width)
    for number, each in enumerate(trajectory.walk()):
        page.title(f"{'sub-agent' if number else 'rollout'} {each.key}  attempt {each.key.attempt}")
        for label, text, style in _facts(each):
            page.say(label, text, style)
        _body(page, each.prompt, each.turns, each.chains, decode)
    return page.text()


def render_unfinished(
    unfinished: Unfinished, *, color: bool = False, width: int | None = None, decode: Decode | None = None
) -> str:
    """A rollout that has not been sealed, as far as it got."""
    page = _Page(color=color, width=width)
    page.title(f"rollout {unfinished.key}  attempt {unfinished.key.attempt}  (unfinished)")
    _body(page, (), unfinished.turns, unfinished.chains, decode)
    return page.text()


def _facts(trajectory: Trajectory) -> Iterator[tuple[str, str, Style]]:
    blame = "" if trajectory.blame is None else f", blame {trajectory.blame.value}"
    good = trajectory.exit_reason == "finished"
    yield "exit reason", f"{trajectory.exit_reason.value}{blame}", Style.PLAIN if good else Style.FAULT
    grade = trajectory.grade
    if grade is not None:
        said = [grade.status.value]
        if grade.score is not None:
            said.append(f"{grade.score.value:.6g}")
            said += [f"{name} {value:.6g}" for name, value in grade.score.metrics.items()]
        if grade.blame is not None:
            said.append(f"blame {grade.blame.value}")
        yield "grade", ", ".join(said), Style.PLAIN if grade.status == "ok" else Style.FAULT
        if grade.error:
            yield "grade error", grade.error, Style.FAULT
    yield "outcome", trajectory.outcome.value, Style.PLAIN
    tokens, sampled = _counts(trajectory.chains)
    versions = trajectory.policy_versions()
    policy = "" if versions is None else f", policy versions {versions[0]} to {versions[1]}"
    yield "tokens", f"{tokens} in {len(trajectory.chains)} chains, {sampled} sampled{policy}", Style.PLAIN
    t = trajectory.timings
    stages = f"queued {t.queued_s:.2f}, setup {t.setup_s:.2f}, generation {t.generation_s:.2f}, tool {t.tool_s:.2f}"
    yield "seconds", f"{t.total_s:.2f}: {stages}, reward {t.reward_s:.2f}", Style.PLAIN
    for attempt in trajectory.attempts:
        error = f": {attempt.error}" if attempt.error else ""
        yield "attempt", f"{attempt.number} {attempt.exit_reason.value} after {attempt.seconds:.2f} s{error}", Style.DIM
    for name in trajectory.stuck:
        yield "stuck", name, Style.FAULT
    if trajectory.replaces is not None:
        yield "replaces", f"index {trajectory.replaces}", Style.PLAIN
    if trajectory.metadata:
        yield "metadata", ", ".join(f"{key}={value!r}" for key, value in trajectory.metadata.items()), Style.DIM
    if trajectory.error:
        yield "error", trajectory.error, Style.FAULT


def _body(
    page: _Page,
    prompt: Sequence[Message],
    turns: Sequence[Turn],
    chains: Sequence[Chain],
    decode: Decode | None,
) -> None:
    if prompt:
        page.title("prompt")
    for message in prompt:
        page.say(message.role, message.content, Style.DIM)
    for turn in turns:
        if turn.heard:
            page.title("history rewritten" if turn.is_rewrite else "said")
        for message in turn.heard:
            page.say(message.role, message.content, Style.DIM)
        _turn(page, turn)
    for number, chain in enumerate(chains):
        parent = "" if chain.parent is None else f", forked from chain {chain.parent[0]} at {chain.parent[1]}"
        page.title(f"chain {number}  {len(chain)} tokens, {chain.mask_bytes.count(1)} sampled{parent}")
        for span in chain.spans or (Span(0, len(chain), SpanKind.OBSERVATION),):
            _span(page, chain, span, decode)


def _turn(page: _Page, turn: Turn) -> None:
    where = f"chain {turn.chain} tokens {turn.start}-{turn.stop}  " if turn.chain >= 0 else ""
    waited = f"queued {turn.queued_s:.2f} s, " if turn.queued_s else ""
    times = f"{waited}generation {turn.generation_s:.2f} s, tool {turn.tool_s:.2f} s"
    page.title(f"turn {turn.index}{_followed(turn)}  {where}{turn.finish.value}  {times}")
    page.say("sampled", turn.action.text, Style.SAMPLED)
    for attempt in turn.action.attempts:
        match attempt:
            case ToolCall():
                page.say("call", f"{attempt.name}({_json(attempt.arguments)})")
            case CallFault():
                page.say("fault", f"{attempt.status.value}: {attempt.reason}", Style.FAULT)
    for observation in turn.observations:
        label = observation.name or ("user" if observation.call_id is None else "tool")
        good = observation.status is ObservationStatus.OK
        page.say(label, observation.content, Style.DIM if good else Style.FAULT)
        if not good or observation.done:
            page.say("", f"[{observation.status.value}{', done' if observation.done else ''}]", Style.DIM)


def _followed(turn: Turn) -> str:
    """Which turn it went on from, where that is not the one before."""
    if turn.follows is None:
        return ""
    return " from the start" if turn.follows < 0 else f" after turn {turn.follows}"


def _span(page: _Page, chain: Chain, span: Span, decode: Decode | None) -> None:
    """The tokens of a span; the response mask, not the span's kind, says which were sampled."""
    for mask, places in groupby(range(span.start, span.stop), key=lambda t: chain.mask_bytes[t]):
        tokens = list(places)
        ids = chain.token_ids[tokens[0] : tokens[-1] + 1].tolist()
        label = SpanKind.SAMPLED.value if mask else span.kind.value
        text = _ids(ids) if decode is None else decode(ids)
        if span.policy_version is not None and decode is None:
            text += f"  policy version {span.policy_version}"
        page.say(label, text, Style.SAMPLED if mask else Style.DIM)


def _json(arguments: Mapping[str, Json]) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # arguments that did not come from JSON
        return repr(arguments)


def _ids(ids: Sequence[int]) -> str:
    if len(ids) <= 2 * _IDS_SHOWN:
        shown = " ".join(map(str, ids))
    else:
        shown = f"{' '.join(map(str, ids[:_IDS_SHOWN]))} ... {' '.join(map(str, ids[-_IDS_SHOWN:]))}"
    return f"{len(ids)} tokens: {shown}"


def _counts(chains: Sequence[Chain]) -> tuple[int, int]:
    return sum(map(len, chains)), sum(chain.mask_bytes.count(1) for chain in chains)
