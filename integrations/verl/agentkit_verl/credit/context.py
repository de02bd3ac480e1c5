"""The rows of the batch whose advantages are being computed, for estimators to ask for.

verl hands a registered estimator rewards, masks and group ids, and nothing that says which rows are of one session or
where its turns are. A trainer that has it sets it here around the computation.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from attrs import field, frozen

from agentkit.errors import ConfigError, InvariantError
from agentkit_verl.rows import RowInfo


def _as_keys(keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(str, keys))


def _as_infos(infos: Sequence[RowInfo | None]) -> tuple[RowInfo | None, ...]:
    return tuple(infos)


@frozen
class BatchRows:
    """The rows of one batch, in the order of its tensors.

    `keys[i]` is verl's `{uid}_{session}_{chain}` of row i; `infos[i]` is None for padding.
    """

    keys: tuple[str, ...] = field(converter=_as_keys)
    infos: tuple[RowInfo | None, ...] = field(converter=_as_infos)

    def __attrs_post_init__(self) -> None:
        if len(self.keys) != len(self.infos):
            raise InvariantError(f"{len(self.keys)} keys for {len(self.infos)} rows")
        for key in self.keys:
            if len(key.rsplit("_", 2)) != 3:
                raise ConfigError(f"the key of a row must be '<uid>_<session>_<chain>', found {key!r}")

    def sessions(self) -> tuple[str, ...]:
        """The session of each row: its key without the chain."""
        return tuple(key.rsplit("_", 1)[0] for key in self.keys)

    def chains(self) -> tuple[int, ...]:
        """The place of each row in its session."""
        return tuple(int(key.rsplit("_", 1)[1]) for key in self.keys)


_ROWS: ContextVar[BatchRows | None] = ContextVar("agentkit_verl_batch_rows", default=None)


@contextmanager
def batch_rows(keys: Sequence[str], infos: Sequence[RowInfo | None]) -> Iterator[BatchRows]:
    """Within it, `current_rows()` are these.

    Raises:
        ConfigError: a key is not one of verl's.
        InvariantError: there are more keys than rows, or fewer.
    """
    rows = BatchRows(keys, infos)
    token = _ROWS.set(rows)
    try:
        yield rows
    finally:
        _ROWS.reset(token)


def current_rows() -> BatchRows | None:
    """The rows of the batch being worked on; None under a trainer that does not say."""
    return _ROWS.get()
