"""The JSON of a prompt is always that of the prompt, whatever was asked for before."""

import json
from array import array
from typing import Any

import pytest
from agentkit_openai.wire import PromptWire
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentkit.errors import ConfigError, ModelError
from agentkit.protocols import SpanKind
from agentkit.tokens import Ledger

KEYS = st.sampled_from(["a", "b", "c"])
IDS = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 3), max_size=12)
LONG = st.integers(500, 1100).map(lambda count: [count % 7] * count)
"""More than a piece, and other ids each time."""


def written(ids: list[int]) -> bytes:
    return json.dumps(ids, separators=(",", ":")).encode()[1:-1]


def size_of(line: Any) -> int:
    """What a line takes, counted anew: its ids, its JSON, and the objects around them."""
    return 400 + 4 * len(line.ids) + sum(120 + len(piece) for piece in line.pieces)


class Prompts(RuleBasedStateMachine):
    """Chains of a few trajectories that grow, fork, are cut, replaced and asked for again."""

    @initialize(limit=st.sampled_from([0, 500, 700, 1500, 20_000, 1 << 20]))
    def start(self, limit: int) -> None:
        self.limit = limit
        self.wire = PromptWire(limit_bytes=limit)
        self.chains: dict[str, list[int]] = {"a": [1], "b": [1, 2], "c": [0]}
        self.asked: dict[str, list[list[int]]] = {"a": [], "b": [], "c": []}

    def ask(self, key: str) -> None:
        ids = self.chains[key]
        self.asked[key].append(list(ids))
        assert b"".join(self.wire.pieces(key, list(ids))) == written(ids)

    @rule(key=KEYS, new=IDS | LONG)
    def grow(self, key: str, new: list[int]) -> None:
        self.chains[key] += new
        self.ask(key)

    @rule(key=KEYS)
    def again(self, key: str) -> None:
        self.ask(key)

    @rule(key=KEYS, which=st.integers(0, 30), new=IDS)
    def turn_back(self, key: str, which: int, new: list[int]) -> None:
        """To a chain from before, as those do that go on with several by turns."""
        if self.asked[key]:
            self.chains[key] = self.asked[key][which % len(self.asked[key])] + new
            self.ask(key)

    @rule(key=KEYS, cut=st.integers(0, 20) | st.integers(0, 2000), new=IDS)
    def fork(self, key: str, cut: int, new: list[int]) -> None:
        self.chains[key] = self.chains[key][:cut] + new
        self.ask(key)

    @rule(key=KEYS, at=st.integers(0, 30), token_id=st.integers(0, 9))
    def rewrite(self, key: str, at: int, token_id: int) -> None:
        ids = self.chains[key]
        if ids:
            ids[at % len(ids)] = token_id
        self.ask(key)

    @rule(key=KEYS, ids=IDS)
    def replace(self, key: str, ids: list[int]) -> None:
        self.chains[key] = ids
        self.ask(key)

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "wire"):
            lines = [line for kept in self.wire._lines.values() for line in kept]
            assert self.wire.held_bytes == sum(size_of(line) for line in lines) <= self.limit
            assert set(lines) == set(self.wire._kept)
            assert all(0 < len(kept) <= 16 for kept in self.wire._lines.values())


TestPrompts = Prompts.TestCase
TestPrompts.settings = settings(stateful_step_count=25, deadline=None)


@given(st.lists(IDS, min_size=1, max_size=8))
def test_a_growing_prompt_costs_its_new_ids_only(turns: list[list[int]]) -> None:
    wire = PromptWire()
    prompt: list[int] = []
    for new in turns:
        before = wire.encoded_bytes
        prompt += new
        wire.pieces("a", prompt)
        comma = 1 if new and len(prompt) > len(new) else 0
        assert wire.encoded_bytes - before == len(written(new)) + comma


def test_a_retry_costs_nothing() -> None:
    wire = PromptWire()
    wire.pieces("a", [1, 2, 3])
    before = wire.encoded_bytes
    wire.pieces("a", [1, 2, 3])
    assert wire.encoded_bytes == before


def test_a_fork_costs_from_the_turn_where_it_leaves() -> None:
    wire = PromptWire()
    wire.pieces("a", [1, 2, 3])
    wire.pieces("a", [1, 2, 3, 4, 5])
    before = wire.encoded_bytes
    wire.pieces("a", [1, 2, 3, 9])
    assert wire.encoded_bytes - before == len(b",9")


@pytest.mark.parametrize("at", [0, 1, 511, 512, 513, 49_999, 99_999])
def test_a_fork_anywhere_in_a_long_prompt_costs_a_piece_at_most(at: int) -> None:
    wire, prompt = PromptWire(), [5] * 100_000
    wire.pieces("a", prompt)
    before = wire.encoded_bytes
    assert b"".join(wire.pieces("a", [*prompt[:at], 9])) == written([*prompt[:at], 9])
    assert wire.encoded_bytes - before <= 2 * 513


def test_several_chains_that_go_on_by_turns_cost_their_new_ids_only() -> None:
    wire, trunk = PromptWire(), [5] * 50_000
    chains = [[*trunk, 7 + number] for number in range(8)]
    for chain in chains:
        wire.pieces("a", chain)
    before = wire.encoded_bytes
    for _ in range(10):
        for chain in chains:
            chain += [3] * 10
            assert b"".join(wire.pieces("a", chain)) == written(chain)
    assert wire.encoded_bytes - before == 10 * 8 * len(b",3" * 10)


def test_a_turn_that_is_rolled_back_and_sampled_again_costs_its_new_ids_only() -> None:
    wire, prompt = PromptWire(), [5] * 50_000
    wire.pieces("a", prompt)
    wire.pieces("a", [*prompt, *[6] * 2000])
    before = wire.encoded_bytes
    wire.pieces("a", prompt)
    wire.pieces("a", [*prompt, 8])
    wire.pieces("a", [*prompt, *[6] * 2000, 4])  # and back to the turn that was given up
    assert wire.encoded_bytes - before <= 2 * 512 + len(b",8,4")


def test_a_fork_shares_with_the_chain_that_it_has_most_in_common_with() -> None:
    wire = PromptWire()
    chains = [[5] * 40_000, [5] * 20_000 + [6] * 20_000, [5] * 20_000 + [7] * 20_000]
    for chain in chains:
        wire.pieces("a", chain)
    for chain in reversed(chains):
        before = wire.encoded_bytes
        fork = [*chain[:39_000], 8]
        assert b"".join(wire.pieces("a", fork)) == written(fork)
        assert wire.encoded_bytes - before <= 2 * 513
        wire.pieces("a", chain)


def test_pieces_are_shared_between_a_chain_and_its_fork() -> None:
    wire, prompt = PromptWire(), [5] * 5000
    first = wire.pieces("a", [*prompt, 6])
    second = wire.pieces("a", [*prompt[:3000], 7])
    shared = [one is other for one, other in zip(first, second, strict=False)]
    assert shared == [True] * (3000 // 512) + [False] * (len(shared) - 3000 // 512)


def test_a_history_that_is_compacted_again_and_again_takes_no_more_memory() -> None:
    wire = PromptWire()
    held = []
    for number in range(50):
        wire.pieces("a", [number] * 1000)
        held.append(wire.held_bytes)
    assert max(held[16:]) <= held[15] * 1.1


def test_a_chain_that_was_left_goes_before_those_that_are_gone_on_with() -> None:
    wire = PromptWire(limit_bytes=40_000)  # of some ten prompts
    for number in range(50):
        wire.pieces("compacts", [number] * 1000)
        before = wire.encoded_bytes
        wire.pieces("goes on", [3] * (1000 + number))
        assert wire.encoded_bytes - before <= len(b",3") or not number


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    wire = PromptWire(limit_bytes=2000)
    for key in ("a", "b", "a", "c"):  # each takes some 900 bytes
        wire.pieces(key, list(range(70)))
    before = wire.encoded_bytes
    wire.pieces("a", list(range(70)))
    assert wire.encoded_bytes == before
    wire.pieces("b", list(range(70)))
    assert wire.encoded_bytes > before


def test_pieces_that_were_handed_out_do_not_change() -> None:
    wire = PromptWire()
    first = wire.pieces("a", [1, 2])
    wire.pieces("a", [1, 2, 3])
    wire.pieces("a", [7])
    assert b"".join(first) == b"1,2"


def test_a_view_of_a_ledger_is_read_as_it_stands() -> None:
    ledger = Ledger()
    chain = ledger.open([5, 6])
    view = ledger.view(chain)
    ledger.append(chain, [7], SpanKind.OBSERVATION, turn=0)
    assert b"".join(PromptWire().pieces("a", view)) == b"5,6"
    assert b"".join(PromptWire().pieces("a", array("i", [5, 6]))) == b"5,6"


@pytest.mark.parametrize("bad", [-1, 2**31, True, 1.0, "1", None])
def test_what_is_no_id_is_named(bad: object) -> None:
    with pytest.raises(ModelError, match=r"prompt_ids\[1\]"):
        PromptWire().pieces("a", [1, bad])  # type: ignore[list-item]


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="wire_cache_bytes"):
        PromptWire(limit_bytes=-1)
