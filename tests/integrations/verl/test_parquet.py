"""One file of tasks for `agentkit run` and for verl."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agentkit_verl.parquet import main, to_verl_rows, write_parquet
from agentkit_verl.tasks import TaskDefaults, task_of
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit import Message, Task, ToolCall
from agentkit.errors import ConfigError
from agentkit.protocols import image, user
from agentkit.runs.dataset import Dataset

parquet: Any = pytest.importorskip("pyarrow.parquet")

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
CALLS = st.builds(ToolCall, TEXTS, TEXTS, OBJECTS)
MESSAGES = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), TEXTS),
    st.builds(
        Message,
        st.just("assistant"),
        TEXTS,
        st.lists(CALLS, min_size=1, max_size=2).map(tuple),
        reasoning=st.none() | TEXTS,
    ),
    st.builds(Message, st.just("tool"), TEXTS, tool_call_id=st.none() | TEXTS, name=st.none() | TEXTS),
)
KNOWN = st.fixed_dictionaries(
    {}, optional={"data_source": VALUES, "ground_truth": VALUES, "tools_kwargs": OBJECTS, "index": VALUES}
)
BUDGETS: st.SearchStrategy[dict[str, float]] = st.fixed_dictionaries(
    {}, optional={"max_turns": st.integers(1, 9), "tool_s": st.floats(0.5, 99)}
)
OVERRIDES = st.fixed_dictionaries({}, optional={"overrides": OBJECTS.filter(bool)})


@st.composite
def a_task(draw: st.DrawFn) -> Task:
    data = {**draw(OBJECTS), **draw(KNOWN)}
    metadata = {**draw(OBJECTS.filter(lambda each: not {"overrides", "verl"} & set(each))), **draw(OVERRIDES)}
    return Task(draw(TEXTS.filter(bool)), draw(st.lists(MESSAGES, max_size=4)), data, draw(BUDGETS), metadata)


TASKS = a_task()


def delivered(path: Path) -> list[dict[str, Any]]:
    """The rows of a file as verl's dataset hands them on (`tests/verl/test_rows.py` asks verl's own)."""
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    for each in rows:
        extra_info = each["extra_info"] or {}
        each["raw_prompt"] = each["prompt"]
        each |= {name: extra_info.get(name, default) for name, default in (("index", 0), ("tools_kwargs", {}))}
        each["interaction_kwargs"] = extra_info.get("interaction_kwargs", {})
        each["dummy_tensor"] = object()
    return rows


@settings(max_examples=60)
@given(tasks=st.lists(TASKS, min_size=1, max_size=5))
def test_tasks_come_back_from_verls_rows_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[Task]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "tasks.parquet"
    assert write_parquet(tasks, path, agent_name="solver") == len(tasks)
    assert [task_of(row) for row in delivered(path)] == tasks


@given(tasks=st.lists(TASKS, min_size=1, max_size=3))
def test_tasks_come_back_from_rows_in_memory(tasks: list[Task]) -> None:
    rows = [{**each, "raw_prompt": each["prompt"]} for each in to_verl_rows(tasks, agent_name="solver")]
    assert [task_of(row) for row in rows] == tasks


def in_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [
    {"id": "sum", "prompt": "2 + 2", "data": {"ground_truth": "4", "data_source": "sums"}, "budget": {"max_turns": 3}},
    {"id": 7, "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]},
    {"prompt": "z", "overrides": {"params": {"temperature": 0.0, "stop": None}}, "data": {"tests": {"a": None}}},
    {"id": "opened by the env", "data": {"tools_kwargs": {"budget": {"max_turns": 2}}}},
]


def test_a_file_of_agentkit_is_the_same_tasks_in_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = in_jsonl(tmp_path / "tasks.jsonl", ROWS), tmp_path / "tasks.parquet"
    assert main([str(source), str(target), "--agent", "solver"]) == 0
    assert capsys.readouterr().out == f"4 tasks written to {target}\n"
    rows = delivered(target)
    tasks = list(Dataset(source))
    assert [task_of(row) for row in rows] == tasks
    assert [row["agent_name"] for row in rows] == ["solver"] * 4
    assert [row["data_source"] for row in rows] == ["sums", "agentkit", "agentkit", "agentkit"]
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["4", "", "", ""]
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert rows[3]["prompt"] == [{"role": "user", "content": ""}]  # verl renders it to know its length
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["tasks.jsonl", "tasks.parquet"]


def test_verls_uid_names_the_group_and_the_files_id_stays_known(tmp_path: Path) -> None:
    write_parquet(Dataset(in_jsonl(tmp_path / "tasks.jsonl", ROWS)), tmp_path / "t.parquet", agent_name="solver")
    row = {**delivered(tmp_path / "t.parquet")[0], "uid": "5b0c", "session_id": 1, "global_steps": 2}
    bare = task_of({key: value for key, value in row.items() if key not in ("uid", "global_steps")})
    assert task_of(row) == evolve(bare, id="5b0c", metadata={"verl": {"task": "sum", "step": 2}})


def test_what_holds_for_all_is_laid_under_carried_tasks(tmp_path: Path) -> None:
    defaults = TaskDefaults(
        tools_kwargs={
            "calc": {"a": 1},
            "agent": {"params": {"top_p": 0.5, "temperature": 1.0}},
            "budget": {"max_turns": 9},
        }
    )
    write_parquet(Dataset(in_jsonl(tmp_path / "tasks.jsonl", ROWS)), tmp_path / "t.parquet", agent_name="solver")
    tasks = [task_of(row, defaults=defaults) for row in delivered(tmp_path / "t.parquet")]
    assert [dict(task.budget) for task in tasks] == [{"max_turns": each} for each in (3, 9, 9, 9)]
    assert tasks[2].metadata["overrides"] == {"params": {"top_p": 0.5, "temperature": 0.0, "stop": None}}
    assert tasks[3].data["tools_kwargs"] == {"calc": {"a": 1}, "budget": {"max_turns": 2}}


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Task("a", "x", {"n": float("nan")}), "task 'a' cannot be written for verl: Out of range float"),
        (Task("a", "x", {"o": object()}), "a object is no JSON value"),
        (Task("a", "x", {"o": [{1: 2}]}), "the key 1 is no text"),
        (Task("a", "x\ud800"), "surrogates not allowed"),
        (Task("a", "x", {"o": "\ud800"}), "surrogates not allowed"),
        (Task("a", (user("x", image(b"\x89PNG\r\n\x1a\n")),)), "it shows media"),
    ],
)
def test_a_task_that_would_not_come_back_is_not_written(tmp_path: Path, task: Task, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        write_parquet([Task("fine", "x"), task], tmp_path / "t.parquet", agent_name="solver")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    target = tmp_path / "t.parquet"
    target.write_text("before")
    with pytest.raises(ConfigError, match="there is no task"):
        write_parquet([], target, agent_name="solver")
    assert target.read_text() == "before"
    with pytest.raises(ConfigError, match="cannot write"):
        write_parquet([Task("a", "x")], tmp_path / "missing" / "t.parquet", agent_name="solver")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = in_jsonl(tmp_path / "tasks.jsonl", [{"id": "a", "promt": "x"}])
    assert main([str(source), str(tmp_path / "t.parquet"), "--agent", "solver"]) == 2
    assert "did you mean 'prompt'?" in capsys.readouterr().err
    assert main([str(source), str(tmp_path / "t.parquet"), "--agent", "solver", "--extra", "data"]) == 0
