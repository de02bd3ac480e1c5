"""What a training row says about itself beside its tokens, as plain values that travel with it through verl.

A row is one chain of one rollout. Positions count tokens of its response. Everything here is made of texts, numbers and
lists once it is `fields`, so that it passes Ray and TransferQueue whatever versions are at either end.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import cattrs
from attrs import field, frozen

FIELD: Final = "agentkit"
"""The key in verl's `extra_fields` under which a row's `RowInfo.fields()` stand."""


@frozen
class ActionSpan:
    """One action: the tokens `start <= t < stop` of the response were sampled in turn `turn` of the rollout.

    `reward` is what the reward said about this turn. `anchor` names the state in which the policy acted: equal for
    actions that answered the same observation. `has_call` says whether the action called a tool.
    """

    turn: int
    start: int
    stop: int
    reward: float = 0.0
    anchor: str = ""
    has_call: bool = False


@frozen
class KindSpan:
    """Sampled tokens `start <= t < stop` of one kind: `reasoning`, `text`, `call` or `arguments`."""

    start: int
    stop: int
    kind: str


@frozen
class VersionSpan:
    """Sampled tokens `start <= t < stop` came from weights `version` (verl's `global_steps`)."""

    start: int
    stop: int
    version: int


@frozen(kw_only=True)
class RowInfo:
    """One row: whose it is, how its rollout ended, what that cost, and where its tokens came from.

    A session is one rollout with its sub-agents; it has `chains` rows, of which this is number `chain`. `weight` is
    that of each trained token (see `agentkit.tokens.chain_weights`). `seconds` and `counts` are of the whole session
    and stand in each of its rows.
    """

    task_id: str
    session: int
    chain: int = 0
    chains: int = 1
    agent: str = "agent"
    data_source: str = "unknown"
    exit_reason: str = "finished"
    blame: str | None = None
    outcome: str = "train"
    score: float | None = None
    grade: str | None = None
    weight: float = 1.0
    actions: tuple[ActionSpan, ...] = ()
    kinds: tuple[KindSpan, ...] = ()
    versions: tuple[VersionSpan, ...] = ()
    seconds: Mapping[str, float] = field(factory=dict)
    """queued, setup, generation, tool, reward, total, synced (weights were exchanged meanwhile)."""
    counts: Mapping[str, int] = field(factory=dict)
    """turns, tool_calls, tool_errors, tool_timeouts, format_errors, attempts, replaced, sampled, trained, cut (tokens
    that no limit of verl left room for)."""

    def fields(self) -> dict[str, Any]:
        """This as plain values."""
        return _CONVERTER.unstructure(self)  # type: ignore[no-any-return]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "RowInfo":
        """The value of `fields()`."""
        return _CONVERTER.structure(dict(fields), cls)

    @classmethod
    def of_extra_fields(cls, extra_fields: Mapping[str, Any] | None) -> "RowInfo | None":
        """What verl's `extra_fields` of a row hold of it; None for rows that are not ours, padding for one."""
        found = extra_fields.get(FIELD) if isinstance(extra_fields, Mapping) else None
        return None if found is None else cls.of(found)


def infos_of(extra_fields: Sequence[Mapping[str, Any] | None]) -> tuple[RowInfo | None, ...]:
    """`RowInfo.of_extra_fields` of each."""
    return tuple(map(RowInfo.of_extra_fields, extra_fields))


_CONVERTER = cattrs.Converter()
