"""Hypothesis strategies for the values of `agentkit.protocols`, hostile text included.

Import this module by name; it needs the extra `testing`.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from agentkit.extras import require
from agentkit.protocols import (
    Action,
    Attempt,
    Blame,
    CallFault,
    Chain,
    ExitReason,
    FaultStatus,
    FinishReason,
    Grade,
    GradeStatus,
    Message,
    Observation,
    ObservationStatus,
    Outcome,
    RolloutKey,
    Score,
    Span,
    SpanKind,
    Task,
    Timings,
    ToolCall,
    Trajectory,
    Turn,
)
from agentkit.testing.alignment.strategies import chunkings as chunkings
from agentkit.testing.alignment.strategies import control_texts as control_texts
from agentkit.testing.alignment.strategies import conversations as conversations
from agentkit.testing.alignment.strategies import prefixes as prefixes
from agentkit.testing.alignment.strategies import sampled_ids as sampled_ids
from agentkit.testing.alignment.strategies import samplings as samplings
from agentkit.testing.alignment.strategies import tool_outputs as tool_outputs
from agentkit.testing.plan import FaultPlan, faults

require("hypothesis", extra="testing", purpose="agentkit.testing.strategies")

from hypothesis import strategies as st  # noqa: E402  # after the error that names the extra

_HOSTILE = "a {}$\\\"'\n\r\t\x00\x1b\x7f\x9b\u202e\u2028\ud83d\ude00\U0001f600\ue000<|im_end|>"


def texts(max_size: int = 12) -> st.SearchStrategy[str]:
    """Any text: control characters, NUL, lone surrogates and things that look like tags, too."""
    return st.text(_HOSTILE, max_size=max_size) | st.text(max_size=max_size)


def fault_plans(rate: float = 0.1, *, deaths: int = 0) -> st.SearchStrategy[FaultPlan]:
    """Plans with some of the faults, each at up to `rate`, and up to `deaths` of the host. They shrink to no fault."""
    rates = {fault: st.just(0.0) | st.floats(0, rate) for fault in faults()}
    return st.builds(FaultPlan, seed=st.integers(0, 2**16), deaths=st.integers(0, deaths), **rates)


def json_values() -> st.SearchStrategy[Any]:
    """JSON values with finite numbers and lists, small."""
    plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts()
    keys = texts(6) | st.sampled_from(["$tuple", "$map", "$opaque", "$bytes", "$int"])
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
    )


def messages() -> st.SearchStrategy[Message]:
    """Messages of every role."""
    optional = st.none() | texts()
    calls = st.lists(_calls(), max_size=2).map(tuple)
    roles = st.sampled_from(["system", "user", "assistant", "tool"])
    return st.builds(Message, roles, texts(), calls, tool_call_id=optional, name=optional, reasoning=optional)


def actions() -> st.SearchStrategy[Action]:
    """Actions with calls and faults in any order."""
    faults = st.builds(CallFault, st.sampled_from(FaultStatus), texts(), texts(), st.none() | texts(), texts())
    attempts = st.lists(_calls() | faults, max_size=3).map(tuple)
    return st.builds(Action, texts(30), texts(), st.none() | texts(), attempts, st.sampled_from(FinishReason))


def _calls() -> st.SearchStrategy[ToolCall]:
    return st.builds(ToolCall, texts(), texts(), st.dictionaries(texts(6), json_values(), max_size=3))


def _seconds() -> st.SearchStrategy[float]:
    return st.floats(0, 1e6)


@st.composite
def chains(draw: st.DrawFn, *, turns: Sequence[int] | None = None) -> Chain:
    """Well-formed chains: spans tile the tokens, the response mask is 1 in sampled spans and only there.

    `turns` are the turns sampled in the chain, by default a few from 0 on.
    """
    if turns is None:
        turns = range(draw(st.integers(0, 3)))
    kinds: list[tuple[SpanKind, int]] = [(SpanKind.PROMPT, -1)]
    for turn in turns:
        kinds += [(SpanKind.SAMPLED, turn), (SpanKind.OBSERVATION, turn)]
    token_ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    spans: list[Span] = []
    for kind, turn in kinds:
        ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6))
        sampled = kind is SpanKind.SAMPLED
        version = draw(st.none() | st.integers(0, 9)) if sampled else None
        spans.append(Span(len(token_ids), len(token_ids) + len(ids), kind, turn, version))
        token_ids += ids
        mask += [int(sampled)] * len(ids)
        logprobs += [draw(st.floats(-50, 0, width=32)) if sampled else 0.0 for _ in ids]
    return Chain.of(token_ids, mask, logprobs, tuple(spans))


def _observations() -> st.SearchStrategy[Observation]:
    optional = st.none() | texts()
    metadata = st.dictionaries(texts(6), json_values(), max_size=2)
    return st.builds(
        Observation, texts(30), st.booleans(), st.sampled_from(ObservationStatus), optional, optional, metadata
    )


def _grades() -> st.SearchStrategy[Grade]:
    numbers = st.floats(allow_nan=False)
    rows = st.lists(numbers, max_size=3).map(tuple)
    tokens = st.none() | st.dictionaries(st.integers(0, 3), rows, max_size=2)
    scores = st.builds(Score, numbers, st.none() | rows, tokens, st.dictionaries(texts(6), numbers, max_size=2))
    return st.builds(
        Grade, st.sampled_from(GradeStatus), st.none() | scores, st.none() | st.sampled_from(Blame), st.none() | texts()
    )


@st.composite
def trajectories(
    draw: st.DrawFn, *, keys: st.SearchStrategy[RolloutKey] | None = None, children: int = 1
) -> Trajectory:
    """Trajectories whose turns are the sampled spans of their chains, in order; sometimes at message level.

    `keys` gives their keys; `children` is how deep sub-agents may be nested.
    """
    if keys is None:
        keys = st.builds(RolloutKey, texts(), st.integers(0, 99), st.integers(0, 3))
    cuts = draw(st.lists(st.integers(0, 2), max_size=2))  # turns per chain
    owners = [chain for chain, count in enumerate(cuts) for _ in range(count)]
    made = tuple(
        draw(chains(turns=[turn for turn, owner in enumerate(owners) if owner == chain])) for chain in range(len(cuts))
    )
    sampled = [
        (number, span) for number, chain in enumerate(made) for span in chain.spans if span.kind is SpanKind.SAMPLED
    ]
    turns = [
        Turn(
            index,
            draw(actions()),
            draw(st.lists(_observations(), max_size=2).map(tuple)),
            number,
            span.start,
            span.stop,
            *draw(st.tuples(_seconds(), _seconds(), _seconds())),
            heard=draw(st.lists(messages(), max_size=1).map(tuple)),
            is_rewrite=draw(st.booleans()),
        )
        for index, (number, span) in enumerate(sampled)
    ]
    if not made:  # message level
        turns = [Turn(index, action) for index, action in enumerate(draw(st.lists(actions(), max_size=2)))]
    optional = st.none() | texts()
    attempts = st.builds(Attempt, st.integers(0, 9), st.sampled_from(ExitReason), optional, _seconds())
    values = st.dictionaries(texts(6), json_values(), max_size=2)
    return Trajectory(
        key=draw(keys),
        prompt=draw(st.lists(messages(), max_size=2).map(tuple)),
        chains=made,
        turns=tuple(turns),
        exit_reason=draw(st.sampled_from(ExitReason)),
        blame=draw(st.none() | st.sampled_from(Blame)),
        grade=draw(st.none() | _grades()),
        outcome=draw(st.sampled_from(Outcome)),
        timings=draw(st.builds(Timings, *[_seconds()] * len(attrs.fields(Timings)))),
        attempts=draw(st.lists(attempts, max_size=2).map(tuple)),
        children=draw(st.lists(trajectories(children=children - 1), max_size=1).map(tuple)) if children else (),
        stuck=draw(st.lists(texts(), max_size=2).map(tuple)),
        error=draw(optional),
        replaces=draw(st.none() | st.integers(0, 99)),
        task=draw(st.builds(Task, texts(), st.lists(messages(), max_size=1), values, metadata=values)),
    )
