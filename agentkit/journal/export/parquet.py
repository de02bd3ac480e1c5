"""One row a trajectory, for pandas, polars and datasets; sub-agents are rows of their own, with a `depth` above 0.

A row a trajectory, not a row a chain: a mean over rows is then a mean over rollouts, and message-level models, which
have no chains, are there too. The first chain is `row["token_ids"][0]`; explode the lists for a row a chain. What each
trained token of chain c counts in the loss is `row["chain_weights"][c]` (see `agentkit.tokens.weights`).

The columns are those of `parquet_schema()`. Text that JSON alone can hold (task_data, task_metadata, metrics, and the
arguments of calls) is JSON. The metadata of the schema has `agentkit.schema_version`. In text, a lone surrogate is
U+FFFD. Row groups hold about 32 MiB of data, or 4,096 rows.
"""

import os
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from agentkit.extras import require
from agentkit.journal.export.conversation import conversation
from agentkit.journal.export.files import appearing
from agentkit.journal.export.selection import Exported, Selection, Tally
from agentkit.journal.export.text import clean, numbers, tagged, to_json
from agentkit.journal.reader import JournalReader
from agentkit.protocols import Chain, Trajectory
from agentkit.tokens.weights import WeightScheme, chain_weights

PARQUET_VERSION = 1

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 4096
_TOKEN_BYTES = 9
_TURN_BYTES = 2000  # of the small things of a turn, as Python objects


def export_parquet(
    run: "str | os.PathLike[str]",
    out: "str | os.PathLike[str]",
    *,
    select: Selection | None = None,
    weights: WeightScheme = "session-balanced",
    force: bool = False,
) -> Exported:
    """The trajectories of `run` as a Parquet file `out`, in the order sealed; blocks, a row group in memory at a time.

    `weights` is the scheme of `chain_weights`.

    Raises:
        MissingExtraError: pyarrow is not installed.
        ConfigError: `out` exists and `force` is not given, it cannot be written, or there is no such scheme of weights.
        JournalError: the journal cannot be read or a record is damaged.
    """
    pyarrow = require("pyarrow", extra="parquet", purpose="exporting to parquet")
    parquet = require("pyarrow.parquet", extra="parquet", purpose="exporting to parquet")
    schema, tally, written = parquet_schema(), Tally(), 0
    group, number = _Group(pyarrow, schema), 0
    with JournalReader.open(run) as reader, appearing(out, force=force) as path:
        with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for trajectory in tally.selected(reader, select or Selection()):
                weight = iter(chain_weights(trajectory, weights))
                for each, parent, depth in _family(trajectory, number):
                    group.add(each, number, parent, depth, list(islice(weight, len(each.chains))))
                    number += 1
                    if group.is_full:
                        writer.write_table(group.table())
                        group = _Group(pyarrow, schema)
                written += 1
            if group.rows:
                writer.write_table(group.table())
        unfinished = len(reader.unfinished_keys())
    return Exported(Path(out), written, dict(tally.left_out), unfinished)


def parquet_schema() -> Any:
    """The pyarrow schema of what `export_parquet` writes.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    pa = require("pyarrow", extra="parquet", purpose="exporting to parquet")
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    call = pa.struct({"id": text, "name": text, "arguments": text})
    message = pa.struct(
        {
            "role": text,
            "content": text,
            "reasoning_content": text,
            "tool_calls": pa.list_(call),
            "tool_call_id": text,
            "name": text,
        }
    )
    span = pa.struct({"start": whole, "stop": whole, "kind": text, "turn": whole, "policy_version": whole})
    columns = {
        "row": whole,
        "parent": whole,
        "depth": pa.int32(),
        "task_id": text,
        "index": whole,
        "attempt": whole,
        "exit_reason": text,
        "blame": text,
        "outcome": text,
        "score": real,
        "grade_status": text,
        "grade_blame": text,
        "grade_error": text,
        "metrics": text,
        "turn_rewards": pa.list_(real),
        "turns": whole,
        "tokens": whole,
        "sampled_tokens": whole,
        "policy_version_min": whole,
        "policy_version_max": whole,
        "queued_s": real,
        "setup_s": real,
        "generation_s": real,
        "tool_s": real,
        "reward_s": real,
        "total_s": real,
        "given_up_attempts": whole,
        "stuck": pa.list_(text),
        "error": text,
        "replaces": whole,
        "task_data": text,
        "task_metadata": text,
        "messages": pa.list_(message),
        "gaps": pa.list_(text),
        "token_ids": pa.list_(pa.list_(pa.int32())),
        "response_mask": pa.list_(pa.list_(pa.uint8())),
        "logprobs": pa.list_(pa.list_(pa.float32())),
        "chain_weights": pa.list_(real),
        "spans": pa.list_(pa.list_(span)),
    }
    return pa.schema(columns, metadata={"agentkit.schema_version": str(PARQUET_VERSION)})


def _family(
    trajectory: Trajectory, number: int, parent: int | None = None, depth: int = 0
) -> "Iterator[tuple[Trajectory, int | None, int]]":
    """A trajectory and its sub-agents, depth first, as rows from `number` on, each with its parent's row and depth."""
    yield trajectory, parent, depth
    place = number + 1
    for child in trajectory.children:
        yield from _family(child, place, number, depth + 1)
        place += sum(1 for _ in child.walk())


class _Group:
    """The rows of a row group. Tokens stay bytes: as Python numbers they would take five times the room and time."""

    def __init__(self, pyarrow: Any, schema: Any) -> None:
        self._pyarrow = pyarrow
        self._schema = schema
        self.rows: list[dict[str, Any]] = []
        self._chains: list[tuple[Chain, ...]] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size >= _GROUP_BYTES or len(self.rows) >= _GROUP_ROWS

    def add(self, trajectory: Trajectory, number: int, parent: int | None, depth: int, weights: list[float]) -> None:
        row = _row(trajectory, number, parent, depth)
        row["chain_weights"] = weights
        self.rows.append(row)
        self._chains.append(trajectory.chains)
        self._size += row["tokens"] * _TOKEN_BYTES + len(trajectory.turns) * _TURN_BYTES + len(row["task_data"])
        self._size += sum(len(message["content"]) for message in row["messages"])

    def table(self) -> Any:
        pa, schema = self._pyarrow, self._schema
        tokens = {
            "token_ids": (pa.int32(), [chain.id_bytes for row in self._chains for chain in row]),
            "response_mask": (pa.uint8(), [chain.mask_bytes for row in self._chains for chain in row]),
            "logprobs": (pa.float32(), [chain.logprob_bytes for row in self._chains for chain in row]),
        }
        of_chains = [0, *accumulate(len(chain) for row in self._chains for chain in row)]
        of_rows = [0, *accumulate(map(len, self._chains))]
        columns = []
        for field in schema:
            if field.name in tokens:
                kind, parts = tokens[field.name]
                flat = pa.Array.from_buffers(kind, of_chains[-1], [None, pa.py_buffer(b"".join(parts))])
                chains = pa.ListArray.from_arrays(pa.array(of_chains, pa.int32()), flat)
                columns.append(pa.ListArray.from_arrays(pa.array(of_rows, pa.int32()), chains))
            else:
                columns.append(pa.array([row[field.name] for row in self.rows], field.type))
        return pa.Table.from_arrays(columns, schema=schema)


def _row(trajectory: Trajectory, number: int, parent: int | None, depth: int) -> dict[str, Any]:
    talk, grade, timings = conversation(trajectory), trajectory.grade, trajectory.timings
    score = None if grade is None else grade.score
    versions = trajectory.policy_versions() or (None, None)
    return {
        "row": number,
        "parent": parent,
        "depth": depth,
        "task_id": clean(trajectory.task_id),
        "index": trajectory.key.index,
        "attempt": trajectory.key.attempt,
        "exit_reason": trajectory.exit_reason.value,
        "blame": _value(trajectory.blame),
        "outcome": trajectory.outcome.value,
        "score": trajectory.score,
        "grade_status": None if grade is None else grade.status.value,
        "grade_blame": None if grade is None else _value(grade.blame),
        "grade_error": None if grade is None or grade.error is None else clean(grade.error),
        "metrics": to_json({name: numbers([value])[0] for name, value in (score.metrics if score else {}).items()}),
        "turn_rewards": None if score is None or score.turns is None else list(score.turns),
        "turns": len(trajectory.turns),
        "tokens": sum(map(len, trajectory.chains)),
        "sampled_tokens": sum(chain.mask_bytes.count(1) for chain in trajectory.chains),
        "policy_version_min": versions[0],
        "policy_version_max": versions[1],
        "queued_s": timings.queued_s,
        "setup_s": timings.setup_s,
        "generation_s": timings.generation_s,
        "tool_s": timings.tool_s,
        "reward_s": timings.reward_s,
        "total_s": timings.total_s,
        "given_up_attempts": len(trajectory.attempts),
        "stuck": [clean(name) for name in trajectory.stuck],
        "error": None if trajectory.error is None else clean(trajectory.error),
        "replaces": trajectory.replaces,
        "task_data": to_json(tagged(trajectory.task.data)),
        "task_metadata": to_json(tagged(trajectory.task.metadata)),
        "messages": [_message(message) for message in talk.messages],
        "gaps": list(talk.gaps),
        "spans": [_spans(chain) for chain in trajectory.chains],
    }


def _message(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {
        **message,
        "tool_calls": None if calls is None else [{"id": call["id"], **call["function"]} for call in calls],
    }


def _spans(chain: Chain) -> list[dict[str, Any]]:
    return [
        {
            "start": span.start,
            "stop": span.stop,
            "kind": span.kind.value,
            "turn": span.turn,
            "policy_version": span.policy_version,
        }
        for span in chain.spans
    ]


def _value(member: Any) -> str | None:
    return None if member is None else member.value
