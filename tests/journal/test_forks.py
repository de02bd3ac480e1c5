"""A tree of chains in the journal: what forks share is written once, and comes back whole."""

import json
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import InvariantError
from agentkit.journal import SCHEMA_VERSION, Codec, Journal, JournalError, JournalReader
from agentkit.journal.blobs import pack_tokens
from agentkit.protocols import Action, Chain, ChainDelta, ExitReason, RolloutKey, Span, SpanKind, Trajectory, Turn
from agentkit.tokens import Ledger, Mark

KEY = RolloutKey("task", 0)
TURNS = tuple(Turn(index, Action(str(index))) for index in range(3))
CODEC = Codec()


def forked() -> tuple[Ledger, list[tuple[ChainDelta, ...]]]:
    """A chain of 1,000 tokens, two forks of it, and a fork of a fork; and what three appends are told of them."""
    ledger, appends, mark = Ledger(), list[tuple[ChainDelta, ...]](), Mark()
    chain = ledger.open(range(990))
    ledger.sample(chain, range(10), [-1.0] * 10, turn=0)
    appends.append(ledger.deltas(mark))
    mark = ledger.mark()
    ledger.sample(ledger.fork(chain, 990), [5], [-2.0], turn=1)
    late = ledger.fork(chain, 1000)
    ledger.append(late, [6], SpanKind.OBSERVATION, turn=0)
    appends.append(ledger.deltas(mark))
    mark = ledger.mark()
    ledger.sample(ledger.fork(late, 995), [7], [-3.0], turn=2)
    appends.append(ledger.deltas(mark))
    return ledger, appends


def stored_tokens(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        blobs = connection.execute(f"SELECT tokens FROM {table}").fetchall()
    return sum(len(zlib.decompress(blob)) for (blob,) in blobs) // 9


async def test_a_shared_prefix_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    ledger, appends = forked()
    async with Journal.open(path, writer="inline") as journal:
        await journal.begin(KEY)
        for turn, deltas in zip(TURNS, appends, strict=True):
            await journal.append(KEY, turn, deltas)
        assert journal.reader.unfinished()[0].chains == ledger.freeze()
        assert stored_tokens(path, "deltas") == 1000 + 1 + 1 + 1
        trajectory = Trajectory(KEY, (), ledger.freeze(), TURNS, ExitReason.FINISHED)
        nested = evolve(trajectory, children=(trajectory,))
        await journal.seal(nested)
        await journal.seal(nested)  # the same again
        assert journal.reader.trajectory("task", 0) == nested
        assert stored_tokens(path, "chains") == 2 * (1000 + 1 + 1 + 1)
        (summary,) = journal.reader.summaries()
        assert (summary.tokens, summary.sampled) == (1000 + 991 + 1001 + 996, 12)
        without = journal.reader.trajectory("task", 0, tokens=False)
        assert without is not None
        assert [(len(c), c.parent, c.spans) for c in without.chains] == [(0, c.parent, c.spans) for c in nested.chains]


@st.composite
def trees(draw: st.DrawFn) -> tuple[Chain, ...]:
    """Chains that grew, forked, and say of each other what may not even be true."""
    ledger = Ledger()
    ledger.open([1, 2])
    for turn in range(draw(st.integers(0, 6))):
        chain = draw(st.integers(0, len(ledger) - 1))
        if draw(st.booleans()):
            chain = ledger.fork(chain, draw(st.integers(0, ledger.length(chain))))
        ids = draw(st.lists(st.integers(0, 3), max_size=3))
        ledger.sample(chain, ids, [-1.0] * len(ids), turn=turn)
    chains = list(ledger.freeze())
    for number in draw(st.lists(st.integers(0, len(chains) - 1), max_size=2)):
        parent = draw(st.tuples(st.integers(-1, len(chains)), st.integers(-1, 8)))
        chains[number] = evolve(chains[number], parent=parent)
    return tuple(chains)


@given(trees(), trees())
def test_any_tree_comes_back_equal(chains: tuple[Chain, ...], others: tuple[Chain, ...]) -> None:
    child = Trajectory(KEY, (), others, (), ExitReason.FINISHED)
    trajectory = evolve(child, chains=chains, children=(child,))
    encoded = CODEC.encode_trajectory(trajectory)
    assert CODEC.decode_trajectory(encoded.record, encoded.blobs) == trajectory


@pytest.mark.parametrize("length", [-1, 3, "2", None])
def test_a_fork_whose_prefix_is_not_there_is_a_damaged_record(length: object) -> None:
    ledger = Ledger()
    ledger.open([1, 2])
    ledger.sample(ledger.fork(0, 2), [4], [-1.0], turn=0)
    encoded = CODEC.encode_trajectory(Trajectory(KEY, (), ledger.freeze(), (), ExitReason.FINISHED))
    assert isinstance(encoded.record, str)
    assert encoded.record.count('"shared":2') == 1
    record = encoded.record.replace('"shared":2', f'"shared":{json.dumps(length)}')
    with pytest.raises(JournalError):
        CODEC.decode_trajectory(record, encoded.blobs)


def test_a_chain_without_a_fork_is_written_as_ever() -> None:
    chain = Chain.of([1, 2], [0, 1], [0.0, -1.0], (Span(0, 1, SpanKind.PROMPT), Span(1, 2, SpanKind.SAMPLED, 0)))
    encoded = CODEC.encode_trajectory(Trajectory(KEY, (), (chain,), (), ExitReason.FINISHED))
    assert "shared" not in str(encoded.record)
    assert encoded.blobs == (pack_tokens(chain.id_bytes, chain.mask_bytes, chain.logprob_bytes),)


async def test_a_journal_of_before_is_read_and_continued(tmp_path: Path) -> None:
    """Its forks hold what they share: in turns from token 0 on, in trajectories as whole blobs."""
    path = tmp_path / "journal.sqlite"
    ledger, appends = forked()
    chains = ledger.freeze()
    sealed = Trajectory(KEY, (), chains, TURNS, ExitReason.FINISHED)
    other = RolloutKey("task", 1)
    async with Journal.open(path, writer="inline") as journal:
        await journal.begin(KEY)
        await journal.seal(sealed)
        await journal.begin(other)
        await journal.append(other, TURNS[0], [ChainDelta(n, 0, chain) for n, chain in enumerate(chains)])
    with closing(sqlite3.connect(path)) as connection, connection:
        ((record,),) = connection.execute("SELECT record FROM trajectories").fetchall()
        tree = json.loads(record)
        assert [chain.pop("shared", 0) for chain in tree["chains"]] == [0, 990, 1000, 995]
        connection.execute("UPDATE trajectories SET record=?", [json.dumps(tree)])
        for n, chain in enumerate(chains):
            blob = pack_tokens(chain.id_bytes, chain.mask_bytes, chain.logprob_bytes)
            connection.execute("UPDATE chains SET tokens=? WHERE ordinal=?", [blob, n])
        connection.execute("PRAGMA user_version = 1")
    with JournalReader.open(path) as reader:
        assert reader.trajectory("task", 0) == sealed
        assert reader.unfinished()[0].chains == chains
    async with Journal.open(path, writer="inline") as journal:
        assert journal.reader.trajectory("task", 0) == sealed
        third = RolloutKey("task", 2)
        await journal.begin(third)
        for turn, deltas in zip(TURNS, appends, strict=True):
            await journal.append(third, turn, deltas)
        assert [each.chains for each in journal.reader.unfinished()] == [chains, chains]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)  # older readers refuse it


@pytest.mark.parametrize("parent", [(0, 11), (1, 10), (-1, 10), (7, 10)])
async def test_a_fork_of_tokens_that_are_not_there_is_refused(tmp_path: Path, parent: tuple[int, int]) -> None:
    root = Chain.of(range(10), [0] * 10, [0.0] * 10, (Span(0, 10, SpanKind.PROMPT),))
    fork = Chain.of([7], [1], [-1.0], (Span(0, 1, SpanKind.SAMPLED, 0),), parent=parent)
    deltas: Sequence[ChainDelta] = [ChainDelta(0, 0, root), ChainDelta(1, parent[1], fork)]
    async with Journal.open(tmp_path / "journal.sqlite", writer="inline") as journal:
        await journal.begin(KEY)
        with pytest.raises(InvariantError, match="appends tokens from"):
            await journal.append(KEY, TURNS[0], deltas)
        assert journal.reader.unfinished()[0].turns == ()
