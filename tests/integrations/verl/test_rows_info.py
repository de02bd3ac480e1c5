"""What a row says about itself, through everything that carries it."""

import json
import pickle
from typing import Any

from agentkit_verl.rows import FIELD, ActionSpan, KindSpan, RowInfo, VersionSpan, infos_of
from hypothesis import given
from hypothesis import strategies as st

from agentkit.testing.strategies import texts

POSITIONS = st.integers(0, 2**31)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INFOS = st.builds(
    RowInfo,
    task_id=texts(),
    session=st.integers(0, 99),
    chain=st.integers(0, 9),
    chains=st.integers(1, 9),
    agent=texts(),
    data_source=texts(),
    exit_reason=texts(),
    blame=st.none() | texts(),
    outcome=texts(),
    score=st.none() | NUMBERS,
    grade=st.none() | texts(),
    weight=NUMBERS,
    actions=st.lists(
        st.builds(ActionSpan, POSITIONS, POSITIONS, POSITIONS, NUMBERS, texts(), st.booleans()), max_size=3
    ).map(tuple),
    kinds=st.lists(st.builds(KindSpan, POSITIONS, POSITIONS, texts()), max_size=3).map(tuple),
    versions=st.lists(st.builds(VersionSpan, POSITIONS, POSITIONS, st.integers(0, 9)), max_size=3).map(tuple),
    seconds=st.dictionaries(texts(6), NUMBERS, max_size=3),
    counts=st.dictionaries(texts(6), st.integers(0, 2**40), max_size=3),
)


def is_plain(value: Any) -> bool:
    """Made of texts, numbers, lists and mappings, and of nothing that has to be imported to be read."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


@given(INFOS)
def test_fields_are_plain_and_come_back_as_they_were(info: RowInfo) -> None:
    fields = info.fields()
    assert is_plain(fields)
    assert RowInfo.of(fields) == info
    halves = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
    whole = halves.decode("utf-8", "replace")  # JSON would join two halves of a character
    assert json.loads(json.dumps(json.loads(whole))) == json.loads(whole)
    again = RowInfo.of(json.loads(whole))
    assert RowInfo.of(json.loads(json.dumps(again.fields()))) == again
    assert RowInfo.of(pickle.loads(pickle.dumps(fields))) == info


def test_rows_that_are_not_ours_have_none() -> None:
    info = RowInfo(task_id="t", session=1)
    assert infos_of([{FIELD: info.fields(), "other": 1}, {}, None, {"other": 1}]) == (info, None, None, None)
