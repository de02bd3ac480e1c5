"""The ledger against lists: T1, T2, T6, T7, T8, and what a journal needs."""

import itertools
import math
import pickle
import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentkit.errors import InvariantError, ModelError
from agentkit.protocols import Chain, ChainDelta, Span, SpanKind
from agentkit.tokens import Ledger, Mark, TokenView, join

token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)
float32_logprobs = st.floats(-100.0, 0.0, width=32)


def spans_of(tokens: list[tuple[int, int, float, SpanKind, int, int | None]]) -> tuple[Span, ...]:
    spans, position = [], 0
    for (kind, turn, version), group in itertools.groupby(tokens, key=lambda token: token[3:]):
        size = len(list(group))
        spans.append(Span(position, position + size, kind, turn, version))
        position += size
    return tuple(spans)


class LedgerMachine(RuleBasedStateMachine):
    """Whatever is done to a ledger, it holds what plain lists of tokens hold."""

    @initialize()
    def start(self) -> None:
        self.ledger = Ledger()
        self.chains: list[list[tuple[int, int, float, SpanKind, int, int | None]]] = []
        self.parents: list[tuple[int, int] | None] = []
        self.serial = 0
        self.turn = 0
        self.views: list[tuple[TokenView, list[int]]] = []
        self.mark: Mark = self.ledger.mark()
        self.deltas: list[object] = []

    @rule(ids=token_ids)
    def open(self, ids: list[int]) -> None:
        assert self.ledger.open(ids) == len(self.chains)
        self.chains.append([(i, 0, 0.0, SpanKind.PROMPT, -1, None) for i in ids])
        self.parents.append(None)

    @precondition(lambda self: self.chains)
    @rule(data=st.data(), logprobs=st.lists(float32_logprobs, max_size=8), version=st.none() | st.integers(0, 2))
    def sample(self, data: st.DataObject, logprobs: list[float], version: int | None) -> None:
        chain = data.draw(st.integers(0, len(self.chains) - 1))
        self.turn += data.draw(st.integers(0, 1))
        ids = list(range(self.serial, self.serial + len(logprobs)))  # each sampled token is told from all others
        self.serial += len(ids)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
        make = data.draw(st.sampled_from([list, tuple, lambda part: array("i", part)]))
        for a, b in itertools.pairwise([0, *cuts, len(ids)]):
            self.ledger.sample(chain, make(ids[a:b]), logprobs[a:b], turn=self.turn, policy_version=version)
        self.chains[chain] += [
            (i, 1, p, SpanKind.SAMPLED, self.turn, version) for i, p in zip(ids, logprobs, strict=True)
        ]

    @precondition(lambda self: self.chains)
    @rule(data=st.data(), ids=token_ids, kind=st.sampled_from([SpanKind.OBSERVATION, SpanKind.CLOSE]))
    def append(self, data: st.DataObject, ids: list[int], kind: SpanKind) -> None:
        chain = data.draw(st.integers(0, len(self.chains) - 1))
        self.ledger.append(chain, ids, kind, turn=self.turn)
        self.chains[chain] += [(i, 0, 0.0, kind, self.turn, None) for i in ids]

    @precondition(lambda self: self.chains and len(self.chains) < 5)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        chain = data.draw(st.integers(0, len(self.chains) - 1))
        length = data.draw(st.integers(0, len(self.chains[chain])))
        assert self.ledger.fork(chain, length) == len(self.chains)
        inherited = [(i, 0, 0.0, SpanKind.INHERITED, -1, None) for i, *_ in self.chains[chain][:length]]
        self.chains.append(inherited)
        self.parents.append((chain, length))

    @precondition(lambda self: self.chains)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        chain = data.draw(st.integers(0, len(self.chains) - 1))
        ids, logprobs = data.draw(
            st.sampled_from(
                [
                    ([1], []),
                    ([], [0.0]),
                    ([-1], [0.0]),
                    ([2**31], [0.0]),
                    ([1], [math.nan]),
                    ([1], [0.5]),
                    ([1], [None]),
                ]
            )
        )
        with pytest.raises(ModelError):
            self.ledger.sample(chain, ids, logprobs, turn=self.turn)

    @precondition(lambda self: self.chains)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        chain = data.draw(st.integers(0, len(self.chains) - 1))
        self.views.append((self.ledger.view(chain), [token[0] for token in self.chains[chain]]))

    @rule()
    def journal(self) -> None:
        self.deltas += self.ledger.deltas(self.mark)
        self.mark = self.ledger.mark()

    @invariant()
    def holds_what_lists_hold(self) -> None:
        frozen = self.ledger.freeze()
        assert len(frozen) == len(self.chains)
        for index, (chain, tokens) in enumerate(zip(frozen, self.chains, strict=True)):
            assert list(chain.token_ids) == [token[0] for token in tokens]
            assert list(chain.response_mask) == [token[1] for token in tokens]
            assert list(chain.logprobs) == [token[2] for token in tokens]
            assert chain.spans == spans_of(tokens)
            assert chain.parent == self.parents[index]
            assert self.ledger.length(index) == len(tokens)
            assert self.ledger.sampled_count(index) == sum(token[1] for token in tokens)

    @invariant()
    def each_sampled_token_is_trained_once(self) -> None:
        trained = [i for c in self.ledger.freeze() for i, m in zip(c.token_ids, c.response_mask, strict=True) if m]
        assert sorted(trained) == list(range(self.serial))

    @invariant()
    def views_never_change(self) -> None:
        for view, ids in self.views:
            assert len(view) == len(ids)
            assert list(view) == ids == list(view[:])
            assert [view[i] for i in range(len(ids))] == ids == [view[i - len(ids)] for i in range(len(ids))]
            assert list(view.since(len(ids) // 2)) == ids[len(ids) // 2 :]
            assert list(view[1:-1]) == ids[1:-1]
            assert list(view[::-2]) == ids[::-2]
            assert view.tobytes() == array("i", ids).tobytes()

    @invariant()
    def deltas_add_up(self) -> None:
        assert join([*self.deltas, *self.ledger.deltas(self.mark)]) == self.ledger.freeze()  # type: ignore[list-item]


TestLedgerMachine = LedgerMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, 9), float32_logprobs), min_size=1, max_size=12), st.data())
def test_split_of_the_stream_makes_no_difference(tokens: list[tuple[int, float]], data: st.DataObject) -> None:
    ids, logprobs = [t[0] for t in tokens], [t[1] for t in tokens]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    whole, split = Ledger(), Ledger()
    whole.open([1, 2])
    split.open([1, 2])
    whole.sample(0, ids, logprobs, turn=0, policy_version=3)
    for a, b in itertools.pairwise([0, *cuts, len(ids)]):
        split.sample(0, ids[a:b], logprobs[a:b], turn=0, policy_version=3)
    assert split.freeze() == whole.freeze()
    assert len(split.freeze()[0].spans) == 2


@pytest.mark.parametrize(
    ("ids", "logprobs", "says"),
    [
        ([1, 2], [-1.0], "2 token ids with 1 logprobs"),
        ([], [-1.0], "0 token ids with 1 logprobs"),
        ([1], [0.0011], "0.00109"),
        ([1], [math.nan], "nan"),
        ([1], [-math.inf], "-inf"),
        ([1], [-1e39], "-inf"),
        ([1], [None], "must be numbers"),
        ([-5], [-1.0], "-5"),
        ([2**31], [-1.0], "32 bits"),
        ([1.5], [-1.0], "32 bits"),
    ],
)
def test_bad_sample_is_one_typed_error_and_changes_nothing(ids: list[int], logprobs: list[float], says: str) -> None:
    ledger = Ledger()
    chain = ledger.open([1, 2, 3])
    ledger.sample(chain, [4], [-0.5], turn=0)
    before = ledger.freeze()
    with pytest.raises(ModelError, match=says):
        ledger.sample(chain, ids, logprobs, turn=0)
    assert ledger.freeze() == before


@pytest.mark.parametrize("value", [0.0, -0.0, 0.0004, 0.00099, -1e-30, -100.0, -1e38, -3e38])
def test_plausible_logprobs_are_kept(value: float) -> None:
    ledger = Ledger()
    ledger.sample(ledger.open([]), [1], [value], turn=0)
    assert list(ledger.freeze()[0].logprobs) == list(array("f", [value]))


@pytest.mark.parametrize(
    "make", [list, tuple, bytes, bytearray, lambda ids: array("i", ids), lambda ids: array("q", ids)]
)
@pytest.mark.parametrize("wrap", [lambda ids: ids, memoryview], ids=["itself", "memoryview"])
def test_takes_any_sequence_of_ids(make: type, wrap: type) -> None:
    ids = make([7, 0, 255])
    if wrap is memoryview and isinstance(ids, list | tuple):
        ids = array("i", ids)
    ledger = Ledger()
    chain = ledger.open(wrap(ids))
    ledger.append(chain, wrap(ids), SpanKind.OBSERVATION, turn=0)
    assert list(ledger.view(chain)) == [7, 0, 255] * 2


@pytest.mark.parametrize("kind", [SpanKind.SAMPLED, SpanKind.PROMPT, SpanKind.INHERITED])
def test_append_refuses_what_it_cannot_vouch_for(kind: SpanKind) -> None:
    ledger = Ledger()
    chain = ledger.open([1])
    with pytest.raises(InvariantError, match=str(kind)):
        ledger.append(chain, [2], kind, turn=0)
    assert ledger.length(chain) == 1


def test_view_never_blocks_growth() -> None:
    ledger = Ledger()
    chain = ledger.open([1, 2])
    view = ledger.view(chain)
    for i in range(1000):
        ledger.append(chain, [i], SpanKind.OBSERVATION, turn=0)
    assert view == [1, 2]
    assert view[-1] == 2
    assert list(view) == list(view[:]) == [1, 2]
    assert list(view[::-1]) == [2, 1]
    with pytest.raises(IndexError):
        view[2]


def test_view_is_not_a_copy() -> None:
    ledger = Ledger()
    chain = ledger.open(range(200_000))
    tracemalloc.start()
    try:
        view = ledger.view(chain)
        assert (view[0], view[-1]) == (0, 199_999)
        assert tracemalloc.get_traced_memory()[1] < 2_000
        assert len(view.since(199_990)) == 10
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_append_touches_only_new_tokens() -> None:
    ledger = Ledger()
    chain = ledger.open(range(300_000))
    peaks = []
    tracemalloc.start()
    try:
        for turn in range(40):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            ledger.sample(chain, [1] * 10, [-1.0] * 10, turn=turn)
            ledger.append(chain, [2] * 10, SpanKind.OBSERVATION, turn=turn)
            ledger.deltas(Mark((ledger.length(chain) - 20,)))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert sorted(peaks)[-4] < 10_000  # a buffer that has to grow may move, rarely


def test_ten_bytes_a_token() -> None:
    ledger = Ledger()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        chain = ledger.open(range(1000))
        for turn in range(100):
            ledger.sample(chain, [1] * 400, [-1.0] * 400, turn=turn)
            ledger.append(chain, [2] * 800, SpanKind.OBSERVATION, turn=turn)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held / ledger.length(chain) <= 10.0


def test_fork_beyond_the_end_is_refused() -> None:
    ledger = Ledger()
    ledger.open([1])
    with pytest.raises(InvariantError, match="fork at 2"):
        ledger.fork(0, 2)
    assert len(ledger) == 1


def test_a_fork_shares_its_prefix() -> None:
    ledger = Ledger()
    chain = ledger.open(range(100_000))
    ledger.sample(chain, [7] * 100_000, [-1.0] * 100_000, turn=0)
    tracemalloc.start()
    try:
        forks = [ledger.fork(chain, 200_000 - n) for n in range(100)]
        forks += [ledger.fork(forks[-1], 150_000) for _ in range(100)]
        views = [ledger.view(fork) for fork in forks]
        assert all(view[-1] == 7 and view[99_999] == 99_999 for view in views)
        assert tracemalloc.get_traced_memory()[1] < 200 * 1_000  # bytes; a copied prefix takes 9 * 150,000 at least
    finally:
        tracemalloc.stop()
    assert bytes(views[0].since(0)) == bytes(ledger.view(chain).since(0))


def test_a_fork_of_a_fork_of_a_fork_is_no_recursion() -> None:
    ledger = Ledger()
    chain = ledger.open([0])
    for n in range(5_000):
        chain = ledger.fork(chain, n + 1)
        ledger.sample(chain, [n + 1], [-1.0], turn=n)
    assert list(ledger.view(chain)) == list(range(5_001))
    assert ledger.view(chain)[0] == 0
    assert ledger.sampled_count(chain) == 1


def test_a_shared_prefix_is_in_one_delta_only() -> None:
    ledger = Ledger()
    chain, mark = ledger.open([1, 2, 3]), Mark()
    ledger.sample(chain, [4], [-1.0], turn=0)
    deltas = [*ledger.deltas(mark)]
    mark = ledger.mark()
    fork = ledger.fork(chain, 3)
    ledger.sample(fork, [5], [-1.0], turn=1)
    empty = ledger.fork(fork, 2)
    deltas += ledger.deltas(mark)
    assert [(delta.chain, delta.start, list(delta.piece.token_ids)) for delta in deltas] == [
        (0, 0, [1, 2, 3, 4]),
        (fork, 3, [5]),
        (empty, 2, []),
    ]
    assert join(deltas) == ledger.freeze()


def test_deltas_that_hold_what_a_fork_inherits_are_joined_as_well() -> None:
    """Journals used to be written so."""
    ledger = Ledger()
    ledger.sample(ledger.open([1, 2]), [3], [-1.0], turn=0)
    ledger.sample(ledger.fork(0, 2), [4], [-1.0], turn=1)
    chains = ledger.freeze()
    assert join([ChainDelta(index, 0, chain) for index, chain in enumerate(chains)]) == chains


@pytest.mark.parametrize("parent", [(0, 3), (1, 2), (2, 2), (0, 1)])
def test_join_refuses_a_fork_of_what_is_not_there(parent: tuple[int, int]) -> None:
    ledger = Ledger()
    ledger.open([1, 2])
    fork = ChainDelta(1, 2 if parent[1] == 1 else parent[1], Chain.of([9], [0], [0.0], parent=parent))
    with pytest.raises(InvariantError, match="delta of chain 1 starts at"):
        join([*ledger.deltas(Mark()), fork])


def test_reopened_chain_says_where_it_came_from() -> None:
    ledger = Ledger()
    ledger.open([1, 2])
    chain = ledger.open([3], parent=(0, 2))
    assert ledger.freeze()[chain].parent == (0, 2)


@pytest.mark.parametrize("spoil", [lambda d: d[1:], lambda d: [*d, d[-1]], lambda d: d[::-1]])
def test_join_refuses_a_hole(spoil: object) -> None:
    ledger = Ledger()
    mark, deltas = ledger.mark(), []
    ledger.open([1, 2])
    for turn in range(2):
        ledger.sample(0, [turn], [-1.0], turn=turn)
        deltas += ledger.deltas(mark)
        mark = ledger.mark()
    assert join(deltas) == ledger.freeze()
    with pytest.raises(InvariantError, match="delta of chain 0"):
        join(spoil(deltas))  # type: ignore[operator]


def test_frozen_chains_pickle() -> None:
    ledger = Ledger()
    ledger.sample(ledger.open([1]), [2], [-1.0], turn=0)
    chains: tuple[Chain, ...] = pickle.loads(pickle.dumps(ledger.freeze()))
    assert chains == ledger.freeze()
