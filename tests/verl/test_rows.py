"""Rows as verl's own dataset, collation and batches hand them to an agent loop, and the tasks that they become."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agentkit_verl.parquet import write_parquet
from agentkit_verl.tasks import TaskDefaults, task_of

from agentkit import Message, Task, ToolCall
from agentkit.runs.dataset import Dataset

TASKS = (
    Task("sum", "2 + 2", {"ground_truth": "4", "data_source": "sums", "tests": {"a": [1, None], "b": 0.1}}),
    Task("opened", (), {"n": 2**60}, {"max_turns": 3}, {"overrides": {"params": {"stop": None}}, "level": "ä\u2028"}),
    Task(
        "history",
        (
            Message("system", "be brief"),
            Message("assistant", "", (ToolCall("c1", "add", {"a": [1, {"b": None}]}),), reasoning="so"),
            Message("tool", "3", tool_call_id="c1", name="add"),
            Message("user", "and <image> is no image"),
        ),
        budget={"tool_s": 1.5},
    ),
)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`dataset(path)`: verl's `RLHFDataset` of a file, with what it caches in a folder of the test."""
    import datasets
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")

    def make(path: Path) -> Any:
        config = OmegaConf.create({"cache_dir": str(tmp_path / "cache"), "filter_overlong_prompts": False})
        return RLHFDataset([str(path)], tokenizer=None, config=config)

    return make


def batched(dataset: Any) -> dict[str, Any]:
    from verl.utils.dataset.rl_dataset import collate_fn

    return collate_fn([dataset[number] for number in range(len(dataset))])  # type: ignore[no-any-return]


def handed_on_by_v1(dataset: Any) -> list[dict[str, Any]]:
    """What `AgentLoopWorkerTQ.generate_sequences` makes of a chunk of a batch, for the first session of each."""
    import numpy as np
    import torch
    from tensordict import NonTensorData, NonTensorStack
    from verl.utils import tensordict_utils

    batch_dict = batched(dataset)
    count = len(batch_dict["raw_prompt"])
    batch_dict["uid"] = np.array([f"uid-{number}" for number in range(count)], dtype=object)
    whole = tensordict_utils.get_tensordict(batch_dict)
    tensordict_utils.assign_non_tensor_data(whole, "global_steps", 5)
    rows: list[dict[str, Any]] = []
    for chunk in whole.chunk(2):
        for number in range(len(chunk)):
            row: dict[str, Any] = {"session_id": 0}
            for key, value in chunk.items():
                if isinstance(value, torch.Tensor):
                    row[key] = value[number]
                elif isinstance(value, NonTensorStack):
                    row[key] = value[number].data
                else:
                    assert isinstance(value, NonTensorData)
                    row[key] = value.data
            rows.append(row)
    return rows


def handed_on_by_v0(dataset: Any, repeated: int) -> list[dict[str, Any]]:
    """What `AgentLoopWorker.generate_sequences` makes of a batch of which every row is there several times."""
    import numpy as np
    from verl import DataProto

    batch = DataProto.from_single_dict(batched(dataset))
    batch.non_tensor_batch["uid"] = np.array([f"uid-{number}" for number in range(len(batch))], dtype=object)
    batch = batch.repeat(repeat_times=repeated, interleave=True)
    batch.non_tensor_batch["priority"] = np.arange(len(batch))
    return [{key: value[number] for key, value in batch.non_tensor_batch.items()} for number in range(len(batch))]


def as_in_file(task: Task) -> Task:
    """The task without what verl says of its row."""
    verl: Any = task.metadata["verl"]
    return Task(
        verl["task"], task.messages, task.data, task.budget, {k: v for k, v in task.metadata.items() if k != "verl"}
    )


def test_tasks_come_through_verls_dataset_as_they_were(tmp_path: Path, dataset: Callable[..., Any]) -> None:
    write_parquet(TASKS, tmp_path / "tasks.parquet", agent_name="solver")
    rows = dataset(tmp_path / "tasks.parquet")
    assert [task_of(rows[number]) for number in range(len(rows))] == list(TASKS)
    v1 = [task_of(row) for row in handed_on_by_v1(rows)]
    assert [as_in_file(task) for task in v1] == list(TASKS)
    assert [task.id for task in v1] == ["uid-0", "uid-1", "uid-2"]
    assert [task.metadata["verl"]["step"] for task in v1] == [5] * 3  # type: ignore[index]
    v0 = [task_of(row) for row in handed_on_by_v0(rows, repeated=2)]
    assert [as_in_file(task) for task in v0[::2]] == list(TASKS)
    assert v0[::2] == v0[1::2]


def test_one_file_serves_a_run_and_verl(tmp_path: Path, dataset: Callable[..., Any]) -> None:
    rows: Sequence[object] = [
        {"id": "a", "prompt": "x", "data": {"k": {"z": None}}, "budget": {"max_turns": 2}, "overrides": {"params": {}}},
        {"prompt": [{"role": "user", "content": "y"}]},
    ]
    source = tmp_path / "tasks.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    write_parquet(Dataset(source), tmp_path / "tasks.parquet", agent_name="solver")
    delivered = dataset(tmp_path / "tasks.parquet")
    assert [task_of(delivered[number]) for number in range(2)] == list(Dataset(source))


def test_structs_that_differ_give_each_row_its_own(tmp_path: Path, dataset: Callable[..., Any]) -> None:
    import pandas as pd

    prompt = [{"role": "user", "content": "2 + 2"}]
    calc = {"calc": {"create_kwargs": {"ground_truth": "4"}}}
    search = {"search": {"create_kwargs": {"top": 3}}, "budget": {"max_turns": 2}}
    frame = pd.DataFrame(
        {
            "data_source": ["sums", "webs"],
            "prompt": [prompt, prompt],
            "ability": ["math", None],
            "reward_model": [{"style": "rule", "ground_truth": "4"}, {"style": "rule", "ground_truth": "5"}],
            "extra_info": [
                {"index": 3, "tools_kwargs": calc, "tags": ["a"]},
                {"index": 4, "tools_kwargs": search, "tags": []},
            ],
        }
    )
    frame.to_parquet(tmp_path / "stock.parquet")
    defaults = TaskDefaults(tools_kwargs={"calc": {"create_kwargs": {"digits": 2}}})
    for rows in (handed_on_by_v1, lambda each: handed_on_by_v0(each, 1)):
        first, second = (task_of(row, defaults=defaults) for row in rows(dataset(tmp_path / "stock.parquet")))
        assert first.messages == second.messages == (Message("user", "2 + 2"),)
        assert first.data["tools_kwargs"] == {"calc": {"create_kwargs": {"digits": 2, "ground_truth": "4"}}}
        assert second.data["tools_kwargs"] == {
            "calc": {"create_kwargs": {"digits": 2}},
            "search": {"create_kwargs": {"top": 3}},
        }
        assert (first.budget, second.budget) == ({}, {"max_turns": 2})
        assert (first.data["ground_truth"], first.data["ability"], first.data["index"]) == ("4", "math", 3)
        assert "ability" not in second.data
        assert first.data["extra_info"]["tags"] == ["a"]  # type: ignore[index]
        assert "dummy_tensor" not in first.data
