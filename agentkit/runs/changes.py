"""Whether a run that goes on still asks what it asked before."""

from collections.abc import Iterable, Sequence

from agentkit.errors import ConfigError
from agentkit.journal import Codec, JournalReader
from agentkit.protocols import Task
from agentkit.runs.config import RunConfig
from agentkit.runs.dataset import Survey
from agentkit.runs.info import RunInfo
from agentkit.runs.origin import Origin

_COMPARED = 2000
_NAMED = 5


def check_unchanged(
    info: RunInfo, config: RunConfig, survey: Survey, reader: JournalReader, origin: Origin | None
) -> None:
    """Check that dataset, group size and configuration file are those that the run began with.

    Raises:
        ConfigError: says what has changed, and which tasks as far as the journal knows them.
    """
    problems = []
    if info.dataset_sha256 is not None and survey.sha256 != info.dataset_sha256:
        problems.append(describe_change(info, survey, reader, config.tasks()))
    if config.pool.group_size != info.group_size:
        problems.append(f"pool.group_size is {config.pool.group_size}, it was {info.group_size}")
    if origin is not None and info.config_sha256 not in (None, origin.sha256):
        problems.append("its config.yaml was edited")
    if problems:
        raise ConfigError(
            f"run {info.name!r} is not what it began as: {'; '.join(problems)}. Go on all the same with --force "
            "(force=True): what is sealed stays as it is"
        )


def describe_change(info: RunInfo, survey: Survey, reader: JournalReader, tasks: Iterable[Task]) -> str:
    """How the dataset differs: how many tasks it has, and which of those that are sealed are gone or ask otherwise."""
    sealed = dict(sorted(reader.sealed(), reverse=True))  # of each task that has one, its first rollout
    now = {task.id: _asked(task) for task in tasks}
    gone = sorted(task_id for task_id in sealed if task_id not in now)
    changed = []
    for task_id in sorted(set(sealed) & set(now))[:_COMPARED]:
        trajectory = reader.trajectory(task_id, sealed[task_id])
        if trajectory is not None and _asked(trajectory.task) != now[task_id]:
            changed.append(task_id)
    said = f"its dataset has changed ({info.tasks} tasks then, {survey.tasks} now"
    if gone:
        said += f"; gone: {_names(gone)}"
    if changed:
        said += f"; asking something else: {_names(changed)}"
    return said + ")"


def _asked(task: Task) -> tuple[bytes, str]:
    return Codec().task_digest(task), repr(task.metadata.get("overrides"))


def _names(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(map(repr, ids[:_NAMED])) + more
