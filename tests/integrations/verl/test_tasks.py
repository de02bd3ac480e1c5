"""Rows of verl as tasks: what columns say, what a carried task says, and what is refused by name."""

from typing import Any

import pytest
from agentkit_verl.tasks import TaskDefaults, task_of

from agentkit import Message, Task, ToolCall
from agentkit.errors import ConfigError
from agentkit.protocols import Medium, image

PIXEL = image(b"\x89PNG\r\n\x1a\n-one")
OTHER = image(b"\x89PNG\r\n\x1a\n-two")


def row(**columns: Any) -> dict[str, Any]:
    """A row as the worker of V1 passes it on, of a file that knows nothing of agentkit."""
    opening = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2"}]
    return {
        "raw_prompt": opening,
        "prompt": opening,
        "agent_name": "solver",
        "data_source": "sums",
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 7, "split": "train", "tools_kwargs": {}},
        "index": 7,
        "tools_kwargs": {},
        "interaction_kwargs": {},
        "uid": "5b0c",
        "session_id": 2,
        "global_steps": 3,
        **columns,
    }


def without(name: str, **columns: Any) -> dict[str, Any]:
    return {key: value for key, value in row(**columns).items() if key != name}


def test_a_row_becomes_the_task_that_its_columns_say() -> None:
    task = task_of(row())
    assert task == Task(
        "5b0c",
        (Message("system", "be brief"), Message("user", "2 + 2")),
        data={
            "data_source": "sums",
            "ability": "math",
            "index": 7,
            "ground_truth": "4",
            "reward_model": {"style": "rule", "ground_truth": "4"},
            "extra_info": {"index": 7, "split": "train", "tools_kwargs": {}},
        },
        metadata={"verl": {"task": task.metadata["verl"]["task"], "step": 3}},  # type: ignore[index]
    )


def test_numpys_values_are_pythons_in_a_task() -> None:
    numpy = pytest.importorskip("numpy")
    task = task_of(
        row(
            index=numpy.int64(7),
            priority=numpy.int64(0),
            global_steps=numpy.int64(3),
            extra_info={"index": numpy.int64(7), "tests": numpy.array(["a", "b"], dtype=object)},
            raw_prompt=numpy.array([{"role": "user", "content": "hi"}], dtype=object),
        )
    )
    assert task.messages == (Message("user", "hi"),)
    assert task.data["extra_info"] == {"index": 7, "tests": ["a", "b"]}
    assert type(task.data["index"]) is int
    assert task.metadata["verl"]["step"] == 3  # type: ignore[index]


def test_sessions_of_a_prompt_have_one_task_and_validation_says_so() -> None:
    first, second = (task_of(row(session_id=number), validate=True) for number in (0, 1))
    assert first == second
    assert first.metadata["verl"]["validate"] is True  # type: ignore[index]
    assert "validate" not in task_of(row()).metadata["verl"]  # type: ignore[operator]


def test_without_a_uid_equal_rows_share_an_id_and_different_ones_do_not() -> None:
    task = task_of(without("uid"))
    assert task.id == task_of(without("uid")).id == task_of(row()).metadata["verl"]["task"]  # type: ignore[index]
    assert task.id.startswith("sums-7-")
    others = [
        without("uid", index=8),
        without("uid", data_source="products"),
        without("uid", raw_prompt=[{"role": "user", "content": "2 + 3"}]),  # files without an index: all have 0
        without("uid", reward_model={"ground_truth": "5"}),
    ]
    assert len({task.id, *(task_of(other).id for other in others)}) == 5


def test_histories_keep_calls_answers_and_reasoning() -> None:
    opening = [
        {"role": "user", "content": "2 + 2", "tool_calls": None},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "sum",
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "4"}], "name": "add", "tool_call_id": None},
        {"role": "assistant", "content": "4", "tool_calls": []},
    ]
    assert task_of(row(raw_prompt=opening)).messages == (
        Message("user", "2 + 2"),
        Message("assistant", "", (ToolCall("call00100", "add", {"a": 2}),), reasoning="sum"),
        Message("tool", "4", name="add"),
        Message("assistant", "4"),
    )


@pytest.mark.parametrize(
    ("opening", "told"),
    [
        ("hi", "raw_prompt must be a list of messages, found 'hi'"),
        (["hi"], r"raw_prompt\[0\] must be an object with role and content, found 'hi'"),
        ([{"role": "wizard", "content": "x"}], r"raw_prompt\[0\].*wizard"),
        ([{"role": "user"}], r"raw_prompt\[0\]\.content is missing"),
        ([{"role": "user", "content": 3}], r"raw_prompt\[0\]\.content must be text, found 3"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], r"raw_prompt\[1\]\.role must be text"),
        ([{"role": "user", "content": "x", "mood": "gay"}], r"raw_prompt\[0\] has the unknown fields 'mood'"),
        ([{"role": "user", "content": [{"type": "video"}]}], r"raw_prompt\[0\]\.content\[0\] .* the type 'video'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"raw_prompt\[0\]\.content\[0\] .* the type 'text'"),
        ([{"role": "user", "content": [3]}], r"raw_prompt\[0\]\.content\[0\] must be a text or an object"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}], r"raw_prompt\[0\]\.tool_calls\[0\]"),
    ],
)
def test_what_is_no_message_is_named_with_its_row(opening: object, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^the row of data source 'sums', index 7: {told}"):
        task_of(row(raw_prompt=opening))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"extra_info": "x"}, "extra_info must be an object, found 'x'"),
        ({"extra_info": {"a": b"x"}}, r"extra_info\.a must be a plain value, found bytes"),
        ({"reward_model": [1]}, "reward_model must be an object"),
        ({"tools_kwargs": [1]}, "tools_kwargs must be an object"),
        ({"tools_kwargs": {"agent": 3}}, r"tools_kwargs\.agent must be an object, found 3"),
        ({"extra_info": {"budget": {"turns": 3}}}, "turns"),
        ({"extra_info": {"budget": {"max_turns": 2.5}}}, r"budget\.max_turns must be a whole number"),
        ({"extra_info": {"agentkit_task": {"id": "a"}}}, r"extra_info\.agentkit_task must be JSON in text"),
        ({"extra_info": {"agentkit_task": "{"}}, r"extra_info\.agentkit_task is no JSON"),
        ({"extra_info": {"agentkit_task": '{"data": {}}'}}, r"extra_info\.agentkit_task has no id"),
        ({"extra_info": {"agentkit_task": '{"id": "a", "data": 3}'}}, r"extra_info\.agentkit_task\.data must be"),
        ({"extra_info": {"agentkit_task": '{"id": "a", "dta": {}}'}}, "unknown fields 'dta'"),
    ],
)
def test_what_is_wrong_with_a_column_is_named(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        task_of(row(**columns))


def test_a_row_without_a_prompt_says_which_setting_gives_it() -> None:
    with pytest.raises(ConfigError, match=r"raw_prompt is missing: see data\.return_raw_chat"):
        task_of(without("raw_prompt"))


def test_columns_that_hold_no_plain_values_are_left_out() -> None:
    task = task_of(row(dummy_tensor=object(), picture=b"x", __rollout_n__=4, nothing=None, tags=["a"]))
    assert task.data["tags"] == ["a"]
    assert not {"dummy_tensor", "picture", "__rollout_n__", "nothing", "session_id", "prompt"} & set(task.data)
    custom = without("prompt", question=row()["prompt"])
    assert "question" not in task_of(custom, defaults=TaskDefaults(prompt_key="question")).data


def test_arguments_of_tools_are_laid_over_those_for_all() -> None:
    defaults = TaskDefaults(
        tools_kwargs={
            "calc": {"create_kwargs": {"digits": 3, "units": ["m"]}},
            "agent": {"params": {"temperature": 1.0}, "max_depth": 2},
            "budget": {"max_turns": 9, "max_tokens": 100},
        }
    )
    own = {
        "calc": {"create_kwargs": {"digits": 5, "answer": "4", "units": None}},
        "search": None,  # what some other row has
        "agent": {"params": {"top_p": 0.9}},
        "budget": {"max_turns": 4, "max_tokens": None},
    }
    task = task_of(row(tools_kwargs=own), defaults=defaults)
    assert task.data["tools_kwargs"] == {"calc": {"create_kwargs": {"digits": 5, "units": ["m"], "answer": "4"}}}
    assert task.metadata["overrides"] == {"params": {"temperature": 1.0, "top_p": 0.9}, "max_depth": 2}
    assert task.budget == {"max_turns": 4, "max_tokens": 100}
    assert own["agent"] == {"params": {"top_p": 0.9}}
    assert dict(defaults.tools_kwargs)["budget"] == {"max_turns": 9, "max_tokens": 100}


def test_a_budget_in_extra_info_is_nearest_to_the_row() -> None:
    defaults = TaskDefaults(tools_kwargs={"budget": {"max_turns": 9}})
    extra_info = {"index": 7, "budget": {"max_turns": 2, "max_tokens": None}}
    assert task_of(row(extra_info=extra_info), defaults=defaults).budget == {"max_turns": 2}


def test_arguments_of_tools_are_found_where_only_extra_info_has_them() -> None:
    extra_info = {"index": 7, "tools_kwargs": {"calc": {"create_kwargs": {"a": 1}}}}
    for tools_kwargs in (None, {"calc": {"create_kwargs": {"a": 1}}}):
        task = task_of(row(extra_info=extra_info, tools_kwargs=tools_kwargs))
        assert task.data["tools_kwargs"] == {"calc": {"create_kwargs": {"a": 1}}}


def test_defaults_must_be_plain() -> None:
    with pytest.raises(ConfigError, match=r"tools_kwargs\.calc must be a plain value"):
        TaskDefaults(tools_kwargs={"calc": object()})


SHOWN: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "image", "image": "…"}, {"type": "text", "text": "what is "}, "this?"]},
    {"role": "assistant", "content": "a cat"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "and this?", "image": None}, {"type": "image", "image": "…"}],
    },
]


def test_images_stand_where_the_prompt_shows_them() -> None:
    first, said, second = task_of(row(raw_prompt=SHOWN), media=(PIXEL, OTHER)).messages
    assert first == Message("user", "what is this?", parts=(PIXEL, "what is ", "this?"))
    assert said == Message("assistant", "a cat")
    assert second == Message("user", "and this?", parts=("and this?", OTHER))


@pytest.mark.parametrize("media", [(), (PIXEL,), (PIXEL, OTHER, PIXEL)])
def test_a_prompt_wants_an_image_for_each_place(media: tuple[Medium, ...]) -> None:
    with pytest.raises(ConfigError, match=f"raw_prompt shows 2 images, found {len(media)}"):
        task_of(row(raw_prompt=SHOWN), media=media)
