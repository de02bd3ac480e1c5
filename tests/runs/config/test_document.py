"""YAML as plain values: nothing but these, with lines, and back again."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit import ConfigError
from agentkit.runs.config.document import read_document, read_value, write_document

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "no",
        "1e3",
        "0x1F",
        "~",
        "2024-01-01",
        "true",
        "${X}",
        "a: b",
        "- a",
        "#x",
        "<<",
        "&a",
        "*a",
        "!x",
        "1_0",
        "",
        " ",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(texts, values, min_size=1, max_size=4))
@example({"a": "é\u2028\x85b", "<<": {"x": 1}, "b": float("inf")})
@example({"": "\x85"})
@example({"a": "\x07\x00\x7f\U0001f600", "b": -0.0, "c": 10**400})
def test_what_is_written_reads_back_equal(tree) -> None:
    again = read_document(write_document(tree), where="x").tree
    assert again == tree
    assert repr(again) == repr(tree)  # 1 and true, and 1 and 1.0, are told apart


@given(st.text(max_size=60) | st.text("{}[],:&*!|>-?#'\"%@` \n\tab01<", max_size=40))
@example("a: &x [*x]")
@example("? [a]\n: b")
@example("a: !!python/object/apply:os.system [x]")
@example("- " * 100)
@example("[" * 1200)
@example("a: " + "9" * 5000)
@example("%YAML 1.1\n---\na: yes")
@example("a: !!int x")
@example("a: !!timestamp x")
@example("--- a\n--- b")
@example("a: !!binary YQ==")
@example("a: !!set {b}")
@example("a: 0o9")
def test_any_text_is_a_value_or_one_config_error(text: str) -> None:
    value: object = None
    with suppress(ConfigError):
        value = read_value(text, where="x")
    assert all(type(each) in (str, int, float, bool, type(None), list, dict) for each in _all(value))


def _all(value):
    yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _all(each)


def test_every_path_has_its_line() -> None:
    document = read_document("a: 1\nb:\n  c:\n  - x\n  - {d: 2,\n     e: 3}\n", where="x")
    assert document.lines == {
        (): 1, ("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 4, ("b", "c", 1): 5,
        ("b", "c", 1, "d"): 5, ("b", "c", 1, "e"): 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3", r"x, line 3: a is given twice, first in line 1"),
        ("a:\n  b: 1\n  'b': 2", r"line 3: a\.b is given twice, first in line 2"),
        ("a: !!python/object/apply:os.system [echo]", r"line 1: a has the tag !!python/object/apply:os\.system"),
        ("a: !mine {}", r"line 1: a has the tag !mine: only plain values are read"),
        ("a: &x [1, *x]", r"line 1: a\[1\] contains itself"),
        ("1: a", r"line 1: the file has a key that is no text, found '1': quote it"),
        ("a: {true: 1}", r"a has a key that is no text, found 'true': quote it"),
        ("? [a]\n: 1", r"a key that is no text, found a list or mapping"),
        ("a: &b {c: 1}\nd:\n  <<: *b", r"line 3: d has a merge key \(<<\), which YAML 1\.2 does not know"),
        ("a: b: c", r"line 1: this is no YAML: mapping values are not allowed"),
        ("a: [1", r"line 1: this is no YAML"),
        ("a: 1\n---\nb: 2", r"this is no YAML"),
        ("- a", r"a list must have mappings as entries, each with a name"),
        ("- name: a\n- name: b", r"the file has 2 entries, a, b: name one of them"),
        ("", r"the file is empty"),
        ("# only this\n", r"the file is empty"),
    ],
)
def test_what_a_configuration_cannot_hold_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_document(text, where="x")


def test_aliases_are_copies_and_cannot_multiply_without_end() -> None:
    tree = read_document("a: &x [1]\nb: *x\nc: *x", where="x").tree
    assert tree == {"a": [1], "b": [1], "c": [1]}
    assert tree["b"] is not tree["c"]
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    with pytest.raises(ConfigError, match=r"makes more than 100,000 values: aliases \(\*\) multiply"):
        read_document(bomb, where="x")


def test_errors_show_nothing_of_the_file_but_what_is_at_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        read_document("api_key: sk-written-here\nb: c: d", where="x")
    assert "sk-written" not in str(caught.value)
