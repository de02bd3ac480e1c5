"""Rows of a public dataset, from a file that is already here, as tasks: Parquet for verl, JSONL for `agentkit run`."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentkit_verl.parquet import write_parquet

from agentkit import Task
from agentkit.errors import ConfigError
from agentkit.extras import require


def prepare(task_of: Callable[[Mapping[str, Any]], Task | None], description: str) -> None:
    """The command line of a `prepare_data.py`: each row of the input becomes the task `task_of` makes of it, or none.

    Raises:
        ConfigError: a row is at fault, two have the same id, or none is left.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("input", type=Path, help="a Parquet or JSONL file of the dataset")
    parser.add_argument("output", type=Path, help="*.parquet for verl, *.jsonl for agentkit run")
    parser.add_argument("--limit", type=int, default=None, help="at most so many tasks")
    parser.add_argument("--agent", default="agentkit", help="the name of the entry in agent.yaml (default: agentkit)")
    given = parser.parse_args()
    if given.output.suffix not in {".parquet", ".jsonl"}:
        parser.error(f"output must end in .parquet or .jsonl, found {given.output.name!r}")
    tasks = tasks_of(given.input, task_of, limit=given.limit)
    if not tasks:
        raise ConfigError(f"{given.input}: no task is left of its rows")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    if given.output.suffix == ".parquet":
        write_parquet(tasks, given.output, agent_name=given.agent)
    else:
        given.output.write_text("".join(f"{json.dumps(line_of(task), ensure_ascii=False)}\n" for task in tasks))
    print(f"{given.output}: {len(tasks)} tasks")  # noqa: T201  # a command's answer


def tasks_of(
    path: Path, task_of: Callable[[Mapping[str, Any]], Task | None], *, limit: int | None = None
) -> list[Task]:
    """The tasks of the rows of `path`, in order, the first `limit`.

    Raises:
        ConfigError: a row is at fault, or two have the same id; the message names the row, from 0.
    """
    tasks: dict[str, Task] = {}
    for number, row in enumerate(_rows(path)):
        if limit is not None and len(tasks) >= limit:
            break
        try:
            task = task_of(row)
        except KeyError as error:
            raise ConfigError(f"{path}, row {number}: the column {error} is missing: found {sorted(row)}") from None
        except (ConfigError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}, row {number}: {error}") from error
        if task is None:
            continue
        if task.id in tasks:
            raise ConfigError(f"{path}, row {number}: the id {task.id!r} is there already")
        tasks[task.id] = task
    return list(tasks.values())


def line_of(task: Task) -> dict[str, object]:
    """`task` as a line of a file that `agentkit run` reads."""
    messages = [{"role": message.role, "content": message.content} for message in task.messages]
    row = {"id": task.id, "messages": messages, "data": task.data, "budget": task.budget, "metadata": task.metadata}
    return {name: value for name, value in row.items() if value}


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        parquet = require("pyarrow.parquet", extra="parquet", purpose=f"reading {path.name}")
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    elif path.suffix in {".jsonl", ".json"}:
        with path.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())
    else:
        raise ConfigError(f"{path} must end in .parquet, .jsonl or .json (one row a line)")
