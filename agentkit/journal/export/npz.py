"""Flat numpy arrays with offsets: what a training script wants, loaded by `numpy.load(path)` without pickle.

Ragged things are one flat array and its offsets: item i is `flat[offsets[i]:offsets[i + 1]]`.

schema_version                    1
token_ids int32, response_mask uint8, loss_mask uint8, logprobs float32, token_rewards float32
                                  all tokens of all chains, one after another. The loss mask is the response mask where
                                  the outcome is `train`, else 0. Token rewards are there only if a reward gave some,
                                  0 where it gave none
chain_offsets int64 [C+1]         chain c is tokens chain_offsets[c]:chain_offsets[c + 1]
chain_rollout int64 [C]           the rollout it belongs to; its chains follow one another in order
chain_parent int32 [C], chain_prefix int64 [C]
                                  of a fork, which chain of its rollout it was forked from and the length that they
                                  share (mask 0 here); else -1 and 0
chain_weight float64 [C]          what each token with loss mask 1 counts in the loss (see `agentkit.tokens.weights`)
span_offsets int64 [C+1], span_start, span_stop int64, span_kind uint8, span_turn int32, span_version int64
                                  spans of each chain, from its own token 0 on; a version that is not known is -1.
                                  `span_kind_names` has the names of the kinds
rollout_group int64 [R], rollout_index int64 [R], rollout_attempt int64 [R]
                                  its task, and its number among the rollouts of that task
rollout_parent int64 [R]          -1; of a sub-agent, the rollout that it belongs to, which comes before it
score float64 [R]                 nan where there is none
exit_reason, blame, grade, outcome int8 [R]
                                  places in `exit_reason_names` and so on; -1 for none
turns, policy_version_min, policy_version_max int64 [R]
                                  -1 where no version is known
seconds float64 [R, 6]            queued, setup, generation, tool, reward, total
turn_reward_offsets int64 [R+1], turn_rewards float64
                                  the parts that a reward gave to turns, none where it gave none
group_id_offsets int64 [G+1], group_ids uint8
                                  the id of each task, in UTF-8; a lone surrogate is U+FFFD

Rows are rollouts, in the order sealed, each followed by its sub-agents depth first. While it is written, each array is
a file of its own in a temporary folder beside it, so memory stays bounded; the result is compressed.
"""

import os
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from agentkit.extras import require
from agentkit.journal.export.files import appearing
from agentkit.journal.export.selection import Exported, Selection, Tally
from agentkit.journal.export.text import clean
from agentkit.journal.reader import JournalReader
from agentkit.protocols import Blame, Chain, ExitReason, GradeStatus, Outcome, SpanKind, Trajectory
from agentkit.tokens.weights import WeightScheme, chain_weights

NPZ_VERSION = 1

_COPY_BYTES = 1 << 20
_COMPRESSION = 1  # higher levels gain a few percent on tokens and cost several times the CPU
_NAMES: "dict[str, tuple[str, ...]]" = {
    "exit_reason_names": tuple(ExitReason),
    "blame_names": tuple(Blame),
    "grade_names": tuple(GradeStatus),
    "outcome_names": tuple(Outcome),
    "span_kind_names": tuple(SpanKind),
}


def export_npz(
    run: "str | os.PathLike[str]",
    out: "str | os.PathLike[str]",
    *,
    select: Selection | None = None,
    weights: WeightScheme = "session-balanced",
    force: bool = False,
) -> Exported:
    """The trajectories of `run` as arrays in `out`, in the order sealed; blocks, one of them in memory at a time.

    `weights` is the scheme of `chain_weight`.

    Raises:
        MissingExtraError: numpy is not installed.
        ConfigError: `out` exists and `force` is not given, it cannot be written, or there is no such scheme of weights.
        JournalError: the journal cannot be read or a record is damaged.
    """
    numpy = require("numpy", extra="npz", purpose="exporting to npz")
    tally, written = Tally(), 0
    with JournalReader.open(run) as reader, appearing(out, force=force) as path, ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent))
        columns = _Columns(Path(folder), stack)
        for trajectory in tally.selected(reader, select or Selection()):
            columns.add(trajectory, iter(chain_weights(trajectory, weights)), parent=-1)
            written += 1
        columns.write(path, numpy)
        unfinished = len(reader.unfinished_keys())
    return Exported(Path(out), written, dict(tally.left_out), unfinished)


class _Column:
    """A flat array that grows in a file."""

    def __init__(self, path: Path, code: str, stack: ExitStack) -> None:
        self.code = code
        self.count = 0
        self._file = stack.enter_context(path.open("w+b"))

    def extend(self, values: Iterable[Any]) -> None:
        self.extend_bytes(array(self.code, values).tobytes())

    def extend_bytes(self, data: bytes) -> None:
        self._file.write(data)
        self.count += len(data) // array(self.code).itemsize

    def pad(self, count: int) -> None:
        """Zeros, as a hole in the file, until there are `count`."""
        if count > self.count:
            self._file.truncate(count * array(self.code).itemsize)
            self._file.seek(0, os.SEEK_END)
            self.count = count

    def copy_to(self, file: IO[bytes]) -> None:
        self._file.seek(0)
        while data := self._file.read(_COPY_BYTES):
            file.write(data)


_COLUMNS = {
    "token_ids": "i",
    "response_mask": "B",
    "loss_mask": "B",
    "logprobs": "f",
    "token_rewards": "f",
    "chain_offsets": "q",
    "chain_rollout": "q",
    "chain_parent": "i",
    "chain_prefix": "q",
    "chain_weight": "d",
    "span_offsets": "q",
    "span_start": "q",
    "span_stop": "q",
    "span_kind": "B",
    "span_turn": "i",
    "span_version": "q",
    "rollout_group": "q",
    "rollout_index": "q",
    "rollout_attempt": "q",
    "rollout_parent": "q",
    "score": "d",
    "exit_reason": "b",
    "blame": "b",
    "grade": "b",
    "outcome": "b",
    "turns": "q",
    "policy_version_min": "q",
    "policy_version_max": "q",
    "seconds": "d",
    "turn_reward_offsets": "q",
    "turn_rewards": "d",
    "group_id_offsets": "q",
    "group_ids": "B",
}
_WIDTHS = {"seconds": 6}


class _Columns:
    """All arrays of an export."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._columns = {name: _Column(folder / name, code, stack) for name, code in _COLUMNS.items()}
        self._groups: dict[str, int] = {}
        self._rollouts = 0
        for name in ("chain_offsets", "span_offsets", "turn_reward_offsets", "group_id_offsets"):
            self._put(name, 0)

    def add(self, trajectory: Trajectory, weights: Iterator[float], *, parent: int) -> None:
        row, self._rollouts = self._rollouts, self._rollouts + 1
        grade, timings = trajectory.grade, trajectory.timings
        versions = trajectory.policy_versions() or (-1, -1)
        self._put("rollout_group", self._group(trajectory.task_id))
        self._put("rollout_index", trajectory.key.index)
        self._put("rollout_attempt", trajectory.key.attempt)
        self._put("rollout_parent", parent)
        self._put("score", float("nan") if trajectory.score is None else trajectory.score)
        self._put("exit_reason", _place(ExitReason, trajectory.exit_reason))
        self._put("blame", _place(Blame, trajectory.blame))
        self._put("grade", _place(GradeStatus, None if grade is None else grade.status))
        self._put("outcome", _place(Outcome, trajectory.outcome))
        self._put("turns", len(trajectory.turns))
        self._put("policy_version_min", versions[0])
        self._put("policy_version_max", versions[1])
        stages = (timings.queued_s, timings.setup_s, timings.generation_s, timings.tool_s, timings.reward_s)
        self._put("seconds", *stages, timings.total_s)
        score = None if grade is None else grade.score
        self._put("turn_rewards", *((score.turns if score else None) or ()))
        self._put("turn_reward_offsets", self._columns["turn_rewards"].count)
        rewards = (score.tokens if score else None) or {}
        for number, chain in enumerate(trajectory.chains):
            self._chain(chain, row, trajectory.loss_mask(number), rewards.get(number))
            self._put("chain_weight", next(weights))
        for child in trajectory.children:
            self.add(child, weights, parent=row)

    def _chain(self, chain: Chain, row: int, loss_mask: bytes, rewards: Sequence[float] | None) -> None:
        columns = self._columns
        before = columns["token_ids"].count
        columns["token_ids"].extend_bytes(chain.id_bytes)
        columns["response_mask"].extend_bytes(chain.mask_bytes)
        columns["loss_mask"].extend_bytes(loss_mask)
        columns["logprobs"].extend_bytes(chain.logprob_bytes)
        if rewards is not None:
            columns["token_rewards"].pad(before)
            columns["token_rewards"].extend(rewards)
        self._put("chain_offsets", columns["token_ids"].count)
        self._put("chain_rollout", row)
        parent, prefix = chain.parent or (-1, 0)
        self._put("chain_parent", parent)
        self._put("chain_prefix", prefix)
        for span in chain.spans:
            self._put("span_start", span.start)
            self._put("span_stop", span.stop)
            self._put("span_kind", _place(SpanKind, span.kind))
            self._put("span_turn", span.turn)
            self._put("span_version", -1 if span.policy_version is None else span.policy_version)
        self._put("span_offsets", columns["span_start"].count)

    def _group(self, task_id: str) -> int:
        number = self._groups.get(task_id)
        if number is None:
            number = self._groups[task_id] = len(self._groups)
            self._columns["group_ids"].extend_bytes(clean(task_id).encode())
            self._put("group_id_offsets", self._columns["group_ids"].count)
        return number

    def _put(self, name: str, *values: float) -> None:
        self._columns[name].extend(values)

    def write(self, path: Path, numpy: Any) -> None:
        rewards = self._columns["token_rewards"]
        if rewards.count:
            rewards.pad(self._columns["token_ids"].count)
        else:
            del self._columns["token_rewards"]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
            for name, value in {"schema_version": numpy.int32(NPZ_VERSION), **_NAMES}.items():
                with archive.open(f"{name}.npy", "w") as member:
                    numpy.lib.format.write_array(member, numpy.asarray(value), allow_pickle=False)
            for name, column in self._columns.items():
                width = _WIDTHS.get(name)
                shape = (column.count,) if width is None else (column.count // width, width)
                header = {"descr": numpy.dtype(column.code).str, "fortran_order": False, "shape": shape}
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    numpy.lib.format.write_array_header_1_0(member, header)
                    column.copy_to(member)


def _place(kind: Any, member: Any) -> int:
    return -1 if member is None else list(kind).index(member)
