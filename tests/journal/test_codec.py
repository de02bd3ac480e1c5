"""Records come back as they were, whatever is in them."""

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.journal import Codec, JournalError, Opaque
from agentkit.journal.codec import decode_text, encode_text
from agentkit.journal.opaque import pack, unpack
from agentkit.protocols import (
    Chain,
    ExitReason,
    Grade,
    GradeStatus,
    RolloutKey,
    Score,
    Task,
    ToolCall,
    Trajectory,
    user,
)
from agentkit.testing.strategies import chains, json_values, messages, texts, trajectories

CODEC = Codec()
EMPTY = Trajectory(RolloutKey("t", 0), (), (), (), ExitReason.FINISHED)


@given(trajectories())
def test_trajectory_comes_back_equal(trajectory: Trajectory) -> None:
    encoded = CODEC.encode_trajectory(trajectory)
    decoded = CODEC.decode_trajectory(encoded.record, encoded.blobs)
    assert decoded == trajectory
    assert CODEC.encode_trajectory(decoded) == encoded
    for ours, theirs in zip(decoded.walk(), trajectory.walk(), strict=True):
        assert [type(a) for t in ours.turns for a in t.action.attempts] == [
            type(a) for t in theirs.turns for a in t.action.attempts
        ]
        assert [c.logprob_bytes for c in ours.chains] == [c.logprob_bytes for c in theirs.chains]


@given(chains())
def test_piece_of_a_chain_comes_back_equal(chain: Chain) -> None:
    turn_less = CODEC.encode_trajectory(evolve(EMPTY, chains=(chain,)))
    assert CODEC.decode_piece(CODEC.encode_piece(chain), turn_less.blobs[0]) == chain


@given(st.lists(messages(), max_size=3), st.dictionaries(texts(), json_values(), max_size=3))
def test_task_comes_back_equal(prompt: list[Any], data: dict[str, Any]) -> None:
    task = Task("id", tuple(prompt), data, {"trajectory_s": 3.0}, data)
    assert CODEC.decode_task(CODEC.encode_task(task)) == task


@given(texts(30))
@example("\ud83d\ude00")  # two lone surrogates are not the one character that JSON escapes would make of them
@example("\x00")
def test_text_comes_back_equal(text: str) -> None:
    assert decode_text(encode_text(text)) == text
    decoded = CODEC.decode_task(CODEC.encode_task(Task(text, (user(text),), {text: text})))
    assert decoded == Task(text, (user(text),), {text: text})


free_form = st.recursive(
    json_values() | st.binary(max_size=4) | st.integers(-(2**80), 2**80),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | texts(4) | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=6,
)


def same(left: object, right: object) -> bool:
    """Equal, and of equal types all the way down (1, 1.0 and True are equal to Python)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = zip(left.items(), right.items(), strict=False)
        return len(left) == len(right) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@given(free_form)
@example({"$tuple": [1]})
@example({"$opaque": ["a", "b", None]})
@example({1: "int", "1": "str"})
@example(10**5000)
def test_free_form_value_comes_back_with_its_types(value: object) -> None:
    task = CODEC.decode_task(CODEC.encode_task(Task("t", data={"value": value})))
    assert same(task.data["value"], value)


class Colour(StrEnum):
    RED = "red"


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class FrozenMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return {"a": 1}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1

    def __hash__(self) -> int:
        return 7


def test_what_json_cannot_hold_is_described() -> None:
    values = {"enum": Colour.RED, "object": Rude(), "set": {3}, "map": FrozenMapping(), "key": {FrozenMapping(): 2}}
    decoded = CODEC.decode_task(CODEC.encode_task(Task("t", data=values))).data
    name = f"{__name__}.Colour" if Colour.__module__ == __name__ else f"{Colour.__module__}.Colour"
    assert decoded["enum"] == Opaque(name, "<Colour.RED: 'red'>", "red")
    assert decoded["object"] == Opaque(f"{Rude.__module__}.Rude", "<repr failed: RuntimeError>")
    assert decoded["set"] == Opaque("builtins.set", "{3}")
    assert decoded["map"] == {"a": 1}
    (key,) = decoded["key"]  # type: ignore[attr-defined]  # it is a dict
    assert isinstance(key, Opaque)
    again = CODEC.decode_task(CODEC.encode_task(Task("t", data=decoded))).data
    assert again == decoded


def test_deep_and_cyclic_values_are_cut_not_fatal() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    cyclic: dict[str, Any] = {}
    cyclic["self"] = [cyclic, cyclic]
    decoded = CODEC.decode_task(CODEC.encode_task(Task("t", data={"deep": deep, "cyclic": cyclic}))).data
    assert decoded["cyclic"] == {"self": [Opaque("builtins.dict", repr(cyclic))] * 2}
    level: Any = decoded["deep"]
    while isinstance(level, list):
        (level,) = level
    assert isinstance(level, Opaque)


def test_not_a_number_and_infinity_survive() -> None:
    grade = Grade(GradeStatus.OK, Score(math.nan, (math.inf, -math.inf)))
    encoded = CODEC.encode_trajectory(evolve(EMPTY, grade=grade))
    decoded = CODEC.decode_trajectory(encoded.record, encoded.blobs)
    assert decoded.grade is not None
    assert decoded.grade.score is not None
    assert math.isnan(decoded.grade.score.value)
    assert decoded.grade.score.turns == (math.inf, -math.inf)


class Float32:  # what numpy's scalars look like
    def __float__(self) -> float:
        return 0.5


def test_number_of_another_library_is_a_number() -> None:
    number: Any = Float32()
    encoded = CODEC.encode_trajectory(evolve(EMPTY, grade=Grade(GradeStatus.OK, Score(number))))
    assert CODEC.decode_trajectory(encoded.record, encoded.blobs).score == 0.5


@pytest.mark.parametrize("record", ["{", "[]", "{}", b"\xff", '{"chains": 3}', "null"])
def test_damaged_record_is_one_clear_error(record: "str | bytes") -> None:
    with pytest.raises(JournalError):
        CODEC.decode_trajectory(record, ())
    with pytest.raises(JournalError):
        CODEC.decode_turn(record)


def test_blob_that_does_not_fit_is_one_clear_error() -> None:
    encoded = CODEC.encode_trajectory(evolve(EMPTY, chains=(Chain.of([1, 2], [0, 1], [0, -1]),)))
    for blobs in ((), encoded.blobs * 2, (encoded.blobs[0][:-3],), (b"",)):
        with pytest.raises(JournalError):
            CODEC.decode_trajectory(encoded.record, blobs)


def test_digest_sees_tokens_and_text() -> None:
    base = evolve(EMPTY, chains=(Chain.of([1, 2], [0, 1], [0, -1]),))
    others = [
        evolve(base, chains=(Chain.of([1, 2], [0, 1], [0, -2]),)),
        evolve(base, chains=(Chain.of([1, 3], [0, 1], [0, -1]),)),
        evolve(base, error="x"),
    ]
    digests = {CODEC.encode_trajectory(each).digest for each in (base, base, *others)}
    assert len(digests) == 4


def test_pack_does_not_alias_a_call_with_a_fault() -> None:
    call = ToolCall("", "f", {"status": "malformed", "reason": "r"})
    assert unpack(pack(call.arguments)) == call.arguments
