"""Files of tasks as verl reads them: `python -m agentkit_verl.parquet tasks.jsonl tasks.parquet --agent NAME`.

A column of structs has a null for every key that any other row has, and one type for each key. Tasks have neither, so a
task goes as JSON in one text, and beside it stand the columns that verl itself looks at.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from agentkit.errors import AgentkitError, ConfigError
from agentkit.extras import require
from agentkit.protocols import Message, Task
from agentkit.runs.dataset import Dataset
from agentkit_verl.tasks import CARRIED

_BATCH_ROWS = 1024


def to_verl_rows(tasks: Iterable[Task], *, agent_name: str) -> Iterator[dict[str, Any]]:
    """The rows of verl that carry `tasks`, as they are asked for.

    `agent_name` is the name of the entry in verl's `agent_loop_config_path`. `data_source` and `ground_truth` of a
    task's data are put where verl's own metrics and rewards look for them.

    Raises:
        ConfigError: while iterating: a task cannot be written as JSON; the message names it and the field.
    """
    for index, task in enumerate(tasks):
        try:
            yield _row(task, index, agent_name)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"task {task.id!r} cannot be written for verl: {error}") from None


def write_parquet(tasks: Iterable[Task], path: str | os.PathLike[str], *, agent_name: str) -> int:
    """Write `tasks`, a `Dataset` for one, to a Parquet file for verl's `data.train_files`; how many there were.

    The file is there whole or not at all; one that is there already is replaced.

    Raises:
        ConfigError: there is no task, one cannot be written, or the file cannot.
        MissingExtraError: the extra `parquet` is not installed.
    """
    arrow = require("pyarrow", extra="parquet", purpose="writing a Parquet file")
    parquet = require("pyarrow.parquet", extra="parquet", purpose="writing a Parquet file")
    schema = _schema(arrow)
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    rows = to_verl_rows(tasks, agent_name=agent_name)
    written = 0
    try:
        with parquet.ParquetWriter(partial, schema) as writer:
            while batch := list(islice(rows, _BATCH_ROWS)):
                writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
                written += len(batch)
        if not written:
            raise ConfigError("there is no task to write for verl")
        partial.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: writes a file of tasks for verl. 0 if it is there, 2 if something is wrong with it."""
    parser = argparse.ArgumentParser(
        prog="python -m agentkit_verl.parquet", description="Write tasks as verl reads them."
    )
    parser.add_argument("tasks", type=Path, help="a file of tasks, as `agentkit run` takes it: JSONL or Parquet")
    parser.add_argument("out", type=Path, help="the Parquet file for verl's data.train_files or data.val_files")
    parser.add_argument("--agent", required=True, help="the name of the entry in verl's agent_loop_config_path")
    parser.add_argument("--limit", type=int, help="how many tasks at most")
    parser.add_argument(
        "--extra", choices=("error", "data"), default="error", help="as in the dataset section of a run"
    )
    asked = parser.parse_args(arguments)
    try:
        dataset = Dataset(asked.tasks, limit=asked.limit, extra=asked.extra)
        written = write_parquet(dataset, asked.out, agent_name=asked.agent)
    except AgentkitError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{written} tasks written to {asked.out}\n")
    return 0


def _row(task: Task, index: int, agent_name: str) -> dict[str, Any]:
    source = task.data.get("data_source")
    ground_truth = task.data.get("ground_truth", "")
    carried: dict[str, Any] = {
        "id": task.id,
        "data": task.data,
        "budget": task.budget,
        "metadata": task.metadata,
    }
    if not task.messages or any(not _is_plain(message) for message in task.messages):
        carried["messages"] = [_written(message) for message in task.messages]
    opening = [{"role": message.role, "content": message.content} for message in task.messages]
    row = {
        "data_source": source if isinstance(source, str) else "agentkit",
        "prompt": opening or [{"role": "user", "content": ""}],  # the env opens it; verl renders one to know its length
        "reward_model": {
            "style": "rule",
            "ground_truth": ground_truth if isinstance(ground_truth, str) else _json(ground_truth),
        },
        "extra_info": {"index": index, CARRIED: _json(carried)},
        "agent_name": agent_name,
    }
    for message in opening:
        message["content"].encode()  # a lone surrogate is no text for Parquet
    return row


def _is_plain(message: Message) -> bool:
    return message == Message(message.role, message.content)


def _written(message: Message) -> dict[str, Any]:
    if message.parts:
        raise ValueError(
            "it shows media: give verl a Parquet file with a column of images, and <image> where they stand"
        )
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    rest = {"tool_call_id": message.tool_call_id, "name": message.name, "reasoning": message.reasoning}
    given = {key: value for key, value in rest.items() if value is not None}
    return {"role": message.role, "content": message.content, **given, **({"tool_calls": calls} if calls else {})}


def _json(value: object) -> str:
    _check_keys(value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_json)
    text.encode()
    return text


def _check_keys(value: object) -> None:
    """JSON makes texts of keys that are numbers: a task would come back as another one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r:.40} is no text")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def _as_json(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    return arrow.schema(
        {
            "data_source": text,
            "prompt": arrow.list_(arrow.struct({"role": text, "content": text})),
            "reward_model": arrow.struct({"style": text, "ground_truth": text}),
            "extra_info": arrow.struct({"index": arrow.int64(), CARRIED: text}),
            "agent_name": text,
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())
