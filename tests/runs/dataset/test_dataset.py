"""Tasks from files: every row once, in the order that was asked for, and what is wrong with a row told by its place."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit import ConfigError, Message, Task, ToolCall
from agentkit.runs import Dataset
from agentkit.runs.dataset import jsonl, parquet

ROWS = [
    {"id": "a", "prompt": "Go."},
    {"id": 7, "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Go."}]},
    {"messages": "Go.", "data": {"answer": 3, "deep": [{"x": None}]}, "budget": {"max_turns": 3, "tool_s": 1.5}},
    {"id": "o", "prompt": "Go.", "metadata": {"source": "hand"}, "overrides": {"env": {"seed": None}}},
]


def write(folder: Path, *lines: object, name: str = "tasks.jsonl") -> Path:
    path = folder / name
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    path.write_bytes(b"".join(raw))
    return path


def as_parquet(folder: Path, rows: list[dict], **options: object) -> Path:
    path = folder / "tasks.parquet"
    pq.write_table(pa.Table.from_pylist(rows, **options), path, row_group_size=3)
    return path


def fault(path: Path, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        list(Dataset(path, **options))
    return str(caught.value).replace(str(path), path.name)


def test_rows_become_tasks(tmp_path: Path) -> None:
    tasks = list(Dataset(write(tmp_path, *ROWS)))
    assert tasks[0] == Task("a", "Go.")
    assert tasks[1] == Task("7", [Message("system", "Be kind."), Message("user", "Go.")])
    assert tasks[2].id.startswith("row2-")
    assert tasks[2].data == {"answer": 3, "deep": [{"x": None}]}
    assert tasks[2].budget == {"max_turns": 3, "tool_s": 1.5}
    assert tasks[3].metadata == {"source": "hand", "overrides": {"env": {"seed": None}}}


def test_an_id_that_is_not_given_depends_on_place_and_content_alone(tmp_path: Path) -> None:
    first = [
        task.id for task in Dataset(write(tmp_path, {"prompt": "a"}, b"\n", {"prompt": "b", "data": {"x": 1, "y": 2}}))
    ]
    again = [task.id for task in Dataset(write(tmp_path, {"prompt": "a"}, {"data": {"y": 2, "x": 1}, "prompt": "b"}))]
    other = [task.id for task in Dataset(write(tmp_path, {"prompt": "a"}, {"prompt": "c", "data": {"x": 1, "y": 2}}))]
    assert first == again
    assert first[0] == other[0]
    assert first[1] != other[1]
    same = [task.id for task in Dataset(write(tmp_path, {"prompt": "a"}, {"prompt": "a"}))]
    assert len(set(same)) == 2


def test_messages_may_hold_calls_in_either_form_and_reasoning(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    row = {
        "messages": [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call, {"id": "c2", "name": "g", "arguments": {}}],
                "reasoning": "hm",
            },
            {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "f"},
        ]
    }
    (task,) = Dataset(write(tmp_path, row))
    first, second = task.messages
    assert first == Message("assistant", "", (ToolCall("c1", "f", {"x": 1}), ToolCall("c2", "g")), reasoning="hm")
    assert second == Message("tool", "1", tool_call_id="c1", name="f")


def test_fields_of_other_names_and_fields_for_the_data(tmp_path: Path) -> None:
    path = write(tmp_path, {"key": "a", "question": "How many?", "answer": 4, "level": "easy", "data": {"x": 1}})
    (task,) = Dataset(path, id_field="key", prompt_field="question", extra="data")
    assert task == Task("a", "How many?", {"answer": 4, "level": "easy", "x": 1})
    assert "has the unknown fields 'answer', 'level'" in fault(path, id_field="key", prompt_field="question")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"[1]\n", "must be an object, found a list of 1"),
        (b"3\n", "must be an object, found 3"),
        (b"{\n", "is no JSON: Expecting property name"),
        (b'{"prompt": NaN}\n', "is no JSON: it holds NaN, which JSON does not have"),
        (b'{"data": {"x": -Infinity}}\n', "it holds -Infinity"),
        (b'{"data": {"x": 1e999}}\n', "holds 1e999, which no float can hold"),
        (b'{"data": {"x": ' + b"9" * 5000 + b"}}\n", "is no JSON that can be read: Exceeds the limit"),
        (b"[" * 100_000 + b"\n", "is nested too deeply"),
        (b'{"prompt": "a", "prompt": "b"}\n', "has the key 'prompt' twice"),
        (b'{"data": {"x": 1, "x": 2}}\n', "has the key 'x' twice"),
        (b'{"prompt": "\xff"}\n', "must be UTF-8, found the byte 0xff at 12"),
        (b'{"prompt": "\\ud83d"}\n', "prompt holds half a character (U+D83D), which no tokenizer can encode"),
        (b'{"data": {"x": ["\\udc00"]}}\n', "data.x[0] holds half a character (U+DC00)"),
        (b'{"data": {"\\udc00": 1}}\n', "a key of data holds half a character"),
        (b'{"promt": "a"}\n', "has the unknown fields 'promt' (did you mean 'prompt'?): the fields are id, messages,"),
        (b'{"prompt": "a", "messages": []}\n', "messages and prompt are both given: give one"),
        (b'{"prompt": 3}\n', "prompt must be a text or a list of messages, found 3"),
        (b'{"prompt": null}\n', "prompt must be a text or a list of messages, found null"),
        (b'{"messages": ["a"]}\n', "messages[0] must be an object with role and content, found 'a'"),
        (b'{"messages": [{"role": "usr", "content": "a"}]}\n', "messages[0]: a message has a role (system, user,"),
        (b'{"messages": [{"role": "user"}]}\n', "messages[0].content is missing"),
        (b'{"messages": [{"role": "user", "content": [1]}]}\n', "messages[0].content must be text, found a list of 1"),
        (b'{"messages": [{"content": "a"}]}\n', "messages[0].role must be text, found null"),
        (
            b'{"messages": [{"role": "user", "content": "a", "imags": 1}]}\n',
            "messages[0] has the unknown fields 'imags'",
        ),
        (
            b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}\n',
            "messages[0].tool_calls[0] must have an id, a name",
        ),
        (
            b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "name": "f", "arguments": "{"}]}]}\n',
            "its arguments is no JSON",
        ),
        (b'{"id": true, "prompt": "a"}\n', "id must be a text that is not empty, or a whole number, found true"),
        (b'{"id": "", "prompt": "a"}\n', "id must be a text that is not empty"),
        (b'{"id": 1.5, "prompt": "a"}\n', "id must be a text that is not empty, or a whole number, found 1.5"),
        (b'{"data": [1]}\n', "data must be an object, found a list of 1"),
        (b'{"overrides": "x"}\n', "overrides must be an object, found 'x'"),
        (b'{"budget": {"max_turn": 3}}\n', "budget has no field 'max_turn': did you mean 'max_turns'?"),
        (b'{"budget": {"max_turns": 0}}\n', "budget.max_turns must be a number >= 1, found 0"),
        (b'{"budget": {"max_turns": 2.5}}\n', "budget.max_turns must be a whole number, found 2.5"),
        (b'{"budget": {"tool_s": "3"}}\n', "budget.tool_s must be a number >= 0.0, found '3'"),
        (
            b'{"metadata": {"overrides": {}}, "overrides": {"env": 1}}\n',
            "metadata.overrides and overrides are both given",
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_told_by_line_and_field(tmp_path: Path, line: bytes, told: str) -> None:
    text = fault(write(tmp_path, {"id": "first", "prompt": "a"}, b"\r\n", line))
    assert text.startswith("tasks.jsonl, line 3: ")
    assert told in text
    assert len(text) < 600


def test_two_rows_of_one_id_are_told_with_both_places(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a"}, {"id": "b"}, b"\n", {"id": "a"})
    assert fault(path) == "tasks.jsonl, line 4: id 'a' is that of line 1 too: ids name groups"
    assert "line 2: id '7' is that of line 1 too" in fault(write(tmp_path, {"id": 7}, {"id": "7"}))
    assert list(Dataset(write(tmp_path, {"id": "a"}, {"id": "a"}), limit=1)) == [Task("a")]


def test_a_byte_order_mark_blank_lines_and_windows_lines_are_nothing_special(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + b'{"id": "a"}\r\n', b"  \t\r\n", b"\n", b'{"id": "b"}')
    assert [task.id for task in Dataset(path)] == ["a", "b"]
    assert sorted(task.id for task in Dataset(path, shuffle=1)) == ["a", "b"]


def test_text_is_cut_at_line_feeds_and_nowhere_else(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\x0bd"
    (task,) = Dataset(write(tmp_path, json.dumps({"prompt": text}, ensure_ascii=False).encode()))
    assert task.messages[0].content == text


def test_a_line_longer_than_any_task_is_an_error_and_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 100)
    path = write(tmp_path, {"id": "a"}, {"id": "b", "prompt": "x" * 1000})
    assert fault(path) == "tasks.jsonl, line 2: is longer than 100 bytes: no row is that large"
    packed = tmp_path / "bomb.jsonl.gz"
    packed.write_bytes(gzip.compress(b"0" * 10_000_000))
    assert "line 1: is longer than 100 bytes" in fault(packed)


rows = st.lists(
    st.fixed_dictionaries(
        {"prompt": st.text(st.characters(codec="utf-8"), max_size=5)},
        optional={
            "data": st.dictionaries(st.sampled_from(["x", "y"]), st.integers() | st.text("ab", max_size=2), max_size=2)
        },
    ),
    max_size=12,
)
seeds = st.none() | st.integers(0, 3)


@given(rows, seeds, st.none() | st.integers(1, 14), st.booleans())
@example([{"prompt": "a"}] * 5, 1, 3, True)
def test_every_row_comes_once_whatever_the_order_and_the_packing(
    tmp_path_factory, rows, shuffle, limit, packed
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    path = write(folder, *[{"id": f"r{n}", **row} for n, row in enumerate(rows)])
    if packed:
        raw = path.read_bytes()
        path = folder / "tasks.gz"
        path.write_bytes(gzip.compress(raw))
    whole = [Task(f"r{n}", row["prompt"], row.get("data", {})) for n, row in enumerate(rows)]
    tasks = list(Dataset(path, shuffle=shuffle, limit=limit))
    assert len(tasks) == min(len(rows), limit if limit is not None else len(rows))
    assert Counter(map(repr, tasks)) <= Counter(map(repr, whole))
    if shuffle is None:
        assert tasks == whole[:limit]
    assert list(Dataset(path, shuffle=shuffle, limit=limit)) == tasks  # the same again
    assert list(Dataset(path, shuffle=shuffle))[:limit] == tasks  # a limit takes from the same order


def test_seeds_give_different_orders_and_ids_do_not_depend_on_them(tmp_path: Path) -> None:
    path = write(tmp_path, *[{"prompt": f"{n}"} for n in range(50)])
    orders = {seed: [task.id for task in Dataset(path, shuffle=seed)] for seed in (None, 1, 2)}
    assert orders[None] != orders[1] != orders[2]
    assert sorted(orders[None]) == sorted(orders[1]) == sorted(orders[2])


def test_jsonl_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a"}, {"id": "b"}, b"broken\n")
    tasks = iter(Dataset(path))
    assert [next(tasks).id, next(tasks).id] == ["a", "b"]
    with pytest.raises(ConfigError, match="line 3"):
        next(tasks)
    assert len(list(Dataset(path, limit=2))) == 2


def test_parquet_gives_the_tasks_that_jsonl_gives(tmp_path: Path) -> None:
    rows = [
        {"id": f"r{n}", "prompt": f"Go {n}.", "data": {"answer": n}, "budget": {"max_turns": n + 1}} for n in range(600)
    ]
    lines, columns = write(tmp_path, *rows), as_parquet(tmp_path, rows)
    assert list(Dataset(columns)) == list(Dataset(lines))
    assert Dataset(columns).known_length == 600
    assert Dataset(columns, limit=5).known_length == 5
    assert Dataset(lines).known_length is None
    assert [t.id for t in Dataset(columns, shuffle=3)] == [t.id for t in Dataset(lines, shuffle=3)]
    assert [t.data for t in Dataset(columns, shuffle=3, limit=4)] == [
        t.data for t in Dataset(lines, shuffle=3, limit=4)
    ]


def test_columns_that_are_null_are_fields_that_are_not_given(tmp_path: Path) -> None:
    rows = [
        {
            "id": "a",
            "prompt": "Go.",
            "messages": None,
            "budget": {"max_turns": 3, "tool_s": None},
            "data": {"x": None, "y": 1},
        },
        {
            "id": "b",
            "prompt": None,
            "messages": [{"role": "user", "content": "Go.", "name": None}],
            "budget": None,
            "data": None,
        },
        {"id": None, "prompt": "c", "messages": None, "budget": None, "data": None},
    ]
    first, second, third = Dataset(as_parquet(tmp_path, rows))
    assert first == Task("a", "Go.", {"x": None, "y": 1}, {"max_turns": 3})
    assert second == Task("b", "Go.")
    assert third.id.startswith("row2-")


def test_columns_may_hold_json_in_text(tmp_path: Path) -> None:
    rows = [{"prompt": "Go.", "overrides": '{"env": {"seed": null}}', "data": '{"x": [1, "a"]}'}]
    (task,) = Dataset(as_parquet(tmp_path, rows))
    assert task.metadata == {"overrides": {"env": {"seed": None}}}
    assert task.data == {"x": [1, "a"]}
    assert "row 1: data is no JSON" in fault(as_parquet(tmp_path, [{"prompt": "a", "data": "{"}]))


def test_what_is_wrong_with_a_record_is_told_by_its_number(tmp_path: Path) -> None:
    assert fault(as_parquet(tmp_path, [{"id": 1.5, "prompt": "a"}])).startswith(
        "tasks.parquet, row 1: id must be a text"
    )
    assert "tasks.parquet, row 2: id 'a' is that of row 1 too" in fault(
        as_parquet(tmp_path, [{"id": "a"}, {"id": "a"}])
    )


def test_a_damaged_file_is_the_callers_error(tmp_path: Path) -> None:
    path = as_parquet(tmp_path, [{"prompt": "a" * 1000}] * 50)
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot read the dataset" in fault(path)
    packed = tmp_path / "tasks.gz"
    packed.write_bytes(gzip.compress(json.dumps({"id": "a"}).encode() * 100)[:-10])
    assert "cannot be read" in fault(packed)
    assert "cannot read the dataset" in fault(tmp_path / "absent.jsonl")
    assert "cannot read the dataset" in fault(tmp_path)
    assert "cannot read the dataset" in fault(write(tmp_path, {"id": "a"}), format="parquet")


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["x"]), pa.array(["y"])], names=["id", "prompt", "prompt"])
    pq.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(ConfigError, match="it has the column 'prompt' twice"):
        list(Dataset(tmp_path / "twice.parquet"))


def test_a_pipe_is_no_dataset_that_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no regular file"):
        list(Dataset(tmp_path / "pipe"))


def test_a_survey_counts_and_lists_the_faults_of_all_rows(tmp_path: Path) -> None:
    path = write(tmp_path, *ROWS)
    survey = Dataset(path).survey()
    assert survey.tasks == 4
    assert survey.sha256 == Dataset(path).sha256()
    assert Dataset(path, limit=2).survey().tasks == 2
    path = write(tmp_path, {"id": "a"}, {"id": 1.5}, {"id": "b"}, b"{\n", {"id": "a"}, {"id": "c"})
    with pytest.raises(ConfigError) as caught:
        Dataset(path).survey(lambda task: "is c" if task.id == "c" else None)
    lines = str(caught.value).splitlines()
    assert [line.strip().removeprefix(f"{path}, ")[:7] for line in lines] == [
        "rows ar",
        "line 2:",
        "line 4:",
        "line 5:",
        "line 6:",
    ]
    assert lines[-1].endswith("line 6: is c")


def test_a_survey_stops_after_so_many_faults(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Dataset(write(tmp_path, *[b"{\n"] * 1000)).survey()
    assert len(str(caught.value).splitlines()) == 22
    assert "the rest was not looked at" in str(caught.value)


def test_a_dataset_without_rows_is_an_error_of_the_survey(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no row in it"):
        Dataset(write(tmp_path, b"\n\n")).survey()


def test_the_digest_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = write(tmp_path, *ROWS), write(tmp_path / "other", *ROWS, name="renamed")
    assert Dataset(one).sha256() == Dataset(two).sha256()
    assert Dataset(write(tmp_path, *ROWS[:3])).sha256() != Dataset(two).sha256()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"limit": 0}, "dataset.limit must be a whole number >= 1, found 0"),
        ({"limit": True}, "dataset.limit must be a whole number >= 1, found True"),
        ({"shuffle": "x"}, "dataset.shuffle must be a seed"),
        ({"shuffle": True}, "dataset.shuffle must be a seed"),
        ({"format": "csv"}, "dataset.format must be one of auto, jsonl, parquet, found 'csv'"),
        ({"extra": "drop"}, "dataset.extra must be one of error, data"),
        ({"id_field": "prompt"}, "dataset.id_field must differ from prompt_field"),
    ],
)
def test_options_are_checked(options: dict, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Dataset("x", **options)
    assert told in str(caught.value)


def test_no_file_stays_open(tmp_path: Path) -> None:
    lines, columns = write(tmp_path, *ROWS), as_parquet(tmp_path, [{"prompt": f"{n}"} for n in range(300)])
    before = len(os.listdir("/proc/self/fd"))
    for path in (lines, columns):
        for shuffle in (None, 1):
            tasks = iter(Dataset(path, shuffle=shuffle))
            next(tasks)
            tasks.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_parquet_is_read_in_batches(tmp_path: Path) -> None:
    path = as_parquet(tmp_path, [{"prompt": f"{n}"} for n in range(1000)])
    taken = [number for number, _ in zip(parquet.rows_of(path, shuffle=None), range(3), strict=False)]
    assert [number for number, _ in taken] == [0, 1, 2]
