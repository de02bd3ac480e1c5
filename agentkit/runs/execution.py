"""A whole run: its model entered, its journal open, its tasks fed to a pool, and noted how it ended."""

import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Container
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import anyio
from anyio import to_thread
from attrs import evolve, frozen

from agentkit.actors import Pool, Run
from agentkit.errors import AgentkitError
from agentkit.journal import Journal
from agentkit.logs import RedactingSink, Redactor
from agentkit.protocols import ExitReason
from agentkit.runs.changes import check_unchanged
from agentkit.runs.config import RunConfig
from agentkit.runs.dataset import Survey
from agentkit.runs.folder import RunFolder
from agentkit.runs.info import RunInfo, SittingEnd, now
from agentkit.runs.origin import Origin
from agentkit.runs.progress import Meter, MeteredSink, Progress
from agentkit.runs.stop import Stop, StopLevel

logger = logging.getLogger(__name__)

DEFAULT_PARENT = "runs"
PROGRESS_S = 0.2

OnProgress = Callable[[Progress], None]
WriterKind = Literal["thread", "inline"]


class NotBegun(AgentkitError):
    """The run was stopped before its first rollout, so there is nothing to report; a new run has left no folder."""


@frozen(kw_only=True)
class RunResult:
    """How a sitting ended. `progress` is the run as it stands; `stuck` is what could not be ended or closed."""

    folder: Path
    why: SittingEnd
    progress: Progress
    stuck: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether every rollout of the run is sealed for good; otherwise `resume` goes on with it."""
        return self.why is SittingEnd.FINISHED


async def execute(
    config: RunConfig,
    folder: "str | os.PathLike[str] | None" = None,
    *,
    origin: Origin | None = None,
    stop: Stop | None = None,
    on_begin: Callable[[RunFolder], None] | None = None,
    on_progress: OnProgress | None = None,
    writer: WriterKind = "thread",
) -> RunResult:
    """A new run, from its first rollout to its last, kept in `folder` or the next free `runs/<name>-<n>`.

    A model that is an async context manager is entered first. Nothing is left on disk where the model cannot be
    entered or a task is at fault. `origin` is where the config came from, so that `agentkit resume` can go on with it;
    `stop` ends the run early. `on_progress` is called several times a second. `writer` is that of `Journal.open`.

    Raises:
        ConfigError: `folder` is a run already or holds files, or a task is at fault.
        NotBegun: it was stopped before its first rollout.
        JournalError: the run cannot be written.
    Cancellation: every rollout is sealed as `cancelled`, every env closed, and the run can be resumed.
    """
    if folder is not None:
        RunFolder(folder).check_new()
    sitting = _Sitting(config, stop or Stop(), on_begin, on_progress)
    async with sitting.stoppable(), AsyncExitStack() as stack:
        await stack.enter_async_context(_entered(config.agent.model))
        survey = await _survey(config, writer)
        await sitting.last_chance()
        info = RunInfo(
            name=config.name,
            created=now(),
            group_size=config.pool.group_size,
            tasks=survey.tasks,
            dataset_sha256=survey.sha256,
            base=None if origin is None else origin.base,
            changes=() if origin is None else origin.changes,
            config_sha256=None if origin is None else origin.sha256,
        )
        text = None if origin is None else origin.text
        if folder is None:
            made = RunFolder.create_next(DEFAULT_PARENT, info, config=text)
        else:
            made = RunFolder.create(folder, info, config=text)
        journal = await stack.enter_async_context(Journal.open(made.path, writer=writer))
        return await sitting.run(made, made.info(), journal, done_before=0)
    raise NotBegun(f"run {config.name!r} was stopped before its first rollout: nothing was written")


async def resume(
    config: RunConfig,
    folder: "str | os.PathLike[str]",
    *,
    force: bool = False,
    repeat: Collection[ExitReason] = (),
    origin: Origin | None = None,
    stop: Stop | None = None,
    on_begin: Callable[[RunFolder], None] | None = None,
    on_progress: OnProgress | None = None,
    writer: WriterKind = "thread",
) -> RunResult:
    """The rest of a run: what never began, was cut off by a crash, or was sealed as `cancelled`.

    A rollout with an exit reason in `repeat` is made again, too. A run that is through already is left as it is.
    Another dataset or another group size than the run began with is an error that says what differs, unless `force`.

    Raises:
        ConfigError: there is no run in `folder`, a task is at fault, or what is asked has changed.
        NotBegun: it was stopped before it could go on.
        JournalError: another process is at work on the run, or it cannot be written.
    Cancellation: every rollout is sealed as `cancelled`, every env closed, and the run can be resumed.
    """
    found = RunFolder(folder)
    info = found.info()
    sitting = _Sitting(config, stop or Stop(), on_begin, on_progress)
    async with sitting.stoppable(), AsyncExitStack() as stack:
        repeated = frozenset({ExitReason.CANCELLED, *repeat})
        opened = Journal.open(found.path, writer=writer, repeat=repeated)
        journal = await stack.enter_async_context(opened)  # first of all: it says whether another process is at work
        survey = await _survey(config, writer)
        if not force:
            check_unchanged(info, config, survey, journal.reader, origin)
        info = evolve(info, group_size=config.pool.group_size, tasks=survey.tasks, dataset_sha256=survey.sha256)
        if origin is not None:
            info = evolve(info, changes=origin.changes, config_sha256=origin.sha256)
        done = _count_done(config, journal.sealed())
        if done == info.expected and not _has_open_replacements(info, journal):
            return sitting.nothing_left(found, info, journal)
        await stack.enter_async_context(_entered(config.agent.model))
        await sitting.last_chance()
        return await sitting.run(found, info, journal, done_before=done)
    raise NotBegun(f"run {str(found.path)!r} was stopped before it could go on: nothing was begun")


class _Sitting:
    """One process's share of a run, and what ends it early."""

    def __init__(
        self,
        config: RunConfig,
        stop: Stop,
        on_begin: Callable[[RunFolder], None] | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._config = config
        self._stop = stop
        self._on_begin = on_begin
        self._on_progress = on_progress
        self._scope = anyio.CancelScope()
        self._run: Run | None = None
        self._meter: Meter | None = None

    @asynccontextmanager
    async def stoppable(self) -> AsyncIterator[None]:
        """Within, `stop` ends what is going on: before the first rollout everything, later as it was asked."""
        with self._scope, self._stop.heard_by(self._hear):
            yield

    async def last_chance(self) -> None:
        """Where it was stopped by now, it ends here, before it has left a trace."""
        await anyio.lowlevel.checkpoint()

    def _hear(self, level: StopLevel) -> None:
        if self._run is None:
            self._scope.cancel()
            return
        self._run.drain()
        if level is StopLevel.CANCEL:
            self._scope.cancel()
        if self._meter is not None:
            self._meter.stopping = level
            self._tell(self._meter)

    async def run(self, folder: RunFolder, info: RunInfo, journal: Journal, *, done_before: int) -> RunResult:
        """Every rollout that `journal` does not hold, and how it ended."""
        config, why = self._config, SittingEnd.CANCELLED
        info = info.begin_sitting(version=_version())
        folder.write_info(info)
        if self._on_begin is not None:
            self._on_begin(folder)
        meter = self._meter = _meter(info, journal, done_before=done_before)
        pool = Pool(
            config.agent,
            agent_of=config.agent_of,
            max_rollouts=config.pool.max_rollouts,
            max_starts=config.pool.max_starts,
            max_generations=config.pool.max_generations,
            group_size=config.pool.group_size,
            sink=MeteredSink(RedactingSink(journal, Redactor(config.secrets)), journal, meter),
        )
        try:
            with anyio.CancelScope() as self._scope:
                async with pool:
                    pool.spawn(self._keep_telling, meter, name="progress of a run")
                    run = self._run = pool.run(config.tasks())
                    async for _ in run:
                        pass  # it is in the journal
                    finished = run.exhausted or meter.read().done == info.expected
                    why = SittingEnd.FINISHED if finished else SittingEnd.DRAINED
            if self._scope.cancelled_caught:
                why = SittingEnd.CANCELLED
        except anyio.get_cancelled_exc_class():
            why = SittingEnd.CANCELLED
            raise
        except BaseException:
            why = SittingEnd.FAILED
            raise
        finally:
            folder.write_info(info.end_sitting(why))
            self._tell(meter)
        return RunResult(folder=folder.path, why=why, progress=meter.read(), stuck=pool.stuck)

    def nothing_left(self, folder: RunFolder, info: RunInfo, journal: Journal) -> RunResult:
        """The result of a run that was through before."""
        meter = _meter(info, journal, done_before=info.expected or 0)
        return RunResult(folder=folder.path, why=SittingEnd.FINISHED, progress=meter.read())

    async def _keep_telling(self, meter: Meter) -> None:
        while self._on_progress is not None:
            self._tell(meter)
            await anyio.sleep(PROGRESS_S)

    def _tell(self, meter: Meter) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(meter.read())
        except Exception:  # a closed terminal, say: the run is worth more than its progress
            self._on_progress = None
            logger.warning("progress is shown no longer", exc_info=True)


def _meter(info: RunInfo, journal: Journal, *, done_before: int) -> Meter:
    sealed = journal.sealed()
    before = (each for each in journal.reader.summaries() if (each.key.task_id, each.key.index) in sealed)
    return Meter(info.expected, group_size=info.group_size, done_before=done_before, before=before)


def _count_done(config: RunConfig, sealed: Container[tuple[str, int]]) -> int:
    indices = range(config.pool.group_size)
    return sum((task.id, index) in sealed for task in config.tasks() for index in indices)


def _has_open_replacements(info: RunInfo, journal: Journal) -> bool:
    """Whether a replacement, which no task's group counts, was begun and is not done."""
    open_keys = {(each.key.task_id, each.key.index) for each in journal.reader.unfinished()}
    open_keys |= journal.reader.sealed() - journal.sealed()
    return any(index >= info.group_size for _, index in open_keys)


async def _survey(config: RunConfig, writer: WriterKind) -> Survey:
    if writer == "inline":  # as virtual time needs it
        return config.survey()
    return await to_thread.run_sync(config.survey, abandon_on_cancel=True)


@asynccontextmanager
async def _entered(model: object) -> AsyncIterator[None]:
    """A model that holds a connection or a process has it inside this block."""
    if isinstance(model, AbstractAsyncContextManager):
        async with model:
            yield
    else:
        yield


def _version() -> str:
    try:
        return version("agentkit-rl")
    except PackageNotFoundError:  # run from its sources
        return ""
