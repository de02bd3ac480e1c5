"""Kept caches: never believed, only used as far as they agree; the least used dropped first."""

from array import array

import pytest
from agentkit_hf.caches import Kept, KeptCaches, shared_start
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentkit.errors import ConfigError

few_ids = st.lists(st.integers(0, 2), max_size=12)


def cut(cache: list[int], surplus: int) -> bool:
    """A cache that is the very ids it was computed for."""
    del cache[len(cache) - surplus :]
    return True


def kept(ids: list[int], weights: object = 0) -> Kept[list[int]]:
    return Kept(array("i", ids), list(ids), weights)  # type: ignore[arg-type]


@settings(max_examples=200)
@given(few_ids, few_ids, few_ids)
def test_shared_start_is_the_longest_common_one(start: list[int], one: list[int], other: list[int]):
    left, right = [*start, *one], [*start, *other]
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert shared_start(array("i", left), array("i", right)) == expected


@settings(max_examples=200)
@given(few_ids, few_ids.filter(bool))
def test_what_is_taken_starts_the_prompt_and_leaves_something_to_run(ids: list[int], prompt: list[int]):
    caches: KeptCaches[list[int]] = KeptCaches(1, cut)
    caches.put("r", kept(ids))
    taken = caches.take("r", array("i", prompt), 0)
    longest = min(shared_start(array("i", ids), array("i", prompt)), len(prompt) - 1)
    if longest == 0:
        assert taken is None
    else:
        assert taken is not None
        assert taken.ids.tolist() == taken.cache == prompt[:longest]
    assert len(caches) == 0


def test_a_cache_of_other_weights_is_dropped():
    caches: KeptCaches[list[int]] = KeptCaches(2, cut)
    caches.put("r", kept([1, 2], weights=1))
    assert caches.take("r", array("i", [1, 2, 3]), 2) is None
    assert caches.take("r", array("i", [1, 2, 3]), 1) is None


def test_a_cache_that_cannot_be_cut_is_used_whole_or_not_at_all():
    caches: KeptCaches[list[int]] = KeptCaches(2, lambda cache, surplus: False)
    caches.put("r", kept([1, 2]))
    assert caches.take("r", array("i", [1, 2]), 0) is None
    caches.put("r", kept([1, 2]))
    taken = caches.take("r", array("i", [1, 2, 3]), 0)
    assert taken is not None
    assert taken.cache == [1, 2]


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigError, match="kept_caches"):
        KeptCaches(-1, cut)


class CachesMachine(RuleBasedStateMachine):
    """Against a list of (request id, ids), the most lately used last."""

    @initialize(limit=st.integers(0, 3))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.caches: KeptCaches[list[int]] = KeptCaches(limit, cut)
        self.oracle: list[tuple[str, list[int]]] = []

    @rule(name=st.sampled_from("abcd"), ids=few_ids)
    def put(self, name: str, ids: list[int]) -> None:
        self.caches.put(name, kept(ids))
        self.oracle = [each for each in self.oracle if each[0] != name] + [(name, ids)]
        self.oracle = self.oracle[max(0, len(self.oracle) - self.limit) :]

    @rule(name=st.sampled_from("abcd"), more=few_ids.filter(bool))
    def take(self, name: str, more: list[int]) -> None:
        held = dict(self.oracle).get(name)
        taken = self.caches.take(name, array("i", [*(held or []), *more]), 0)
        assert (None if taken is None else taken.cache) == (held or None)
        self.oracle = [each for each in self.oracle if each[0] != name]

    @rule()
    def clear(self) -> None:
        self.caches.clear()
        self.oracle = []

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.caches) == len(self.oracle) <= self.limit


TestCachesMachine = CachesMachine.TestCase
