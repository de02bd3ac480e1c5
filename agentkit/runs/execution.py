"""A whole run: its model entered, its journal open, its tasks fed to a pool, and noted how it ended."""

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Literal

import anyio
from attrs import evolve, frozen

from agentkit.actors import Pool, Run
from agentkit.errors import AgentkitError, ConfigError, ModelError
from agentkit.journal import Journal
from agentkit.logs import RedactingSink, Redactor
from agentkit.protocols import ExitReason, Outcome
from agentkit.runs.changes import check_unchanged
from agentkit.runs.config import RunConfig
from agentkit.runs.config.references import what_failed
from agentkit.runs.dataset import Survey
from agentkit.runs.folder import RunFolder
from agentkit.runs.info import RunInfo, SittingEnd, now
from agentkit.runs.origin import Origin
from agentkit.runs.progress import Meter, MeteredSink, Progress
from agentkit.runs.stop import Stop, StopLevel
from agentkit.tools.threads import run_in_thread

logger = logging.getLogger(__name__)

DEFAULT_PARENT = "runs"
PROGRESS_S = 0.2
CLOSE_S = 60.0
"""For as long a model may close; it may hold a server that takes its time."""

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
        ModelError: the model could not be entered. One that cannot be left is named in the result's `stuck`.
        NotBegun: it was stopped before its first rollout.
        JournalError: the run cannot be written.
    Cancellation: every rollout is sealed as `cancelled`, every env closed, and the run can be resumed.
    """
    if folder is not None:
        RunFolder(folder).check_new()
    sitting = _Sitting(config, stop or Stop(), on_begin, on_progress)
    async with sitting.stoppable(), AsyncExitStack() as stack:
        await stack.enter_async_context(sitting.model())
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
        await sitting.run(made, made.info(), journal, done_before=0)
    return sitting.result(f"run {config.name!r} was stopped before its first rollout: nothing was written")


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
        ModelError: the model could not be entered.
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
        done, owed = _count_done(config, journal)
        if done == info.expected and not owed:
            sitting.nothing_left(found, info, journal)
        else:
            await stack.enter_async_context(sitting.model())
            await sitting.last_chance()
            await sitting.run(found, info, journal, done_before=done)
    return sitting.result(f"run {str(found.path)!r} was stopped before it could go on: nothing was begun")


class _Sitting:
    """One process's share of a run, and what ends it early."""

    def __init__(
        self,
        config: RunConfig,
        stop: Stop,
        on_begin: Callable[[RunFolder], None] | None,
        on_progress: OnProgress | None,
    ) -> None:
        given: object = config
        if not isinstance(given, RunConfig):
            raise ConfigError(f"a run needs a RunConfig, found {type(given).__name__}: load_config(path) makes one")
        self._config = config
        self._stop = stop
        self._on_begin = on_begin
        self._on_progress = on_progress
        self._scope = anyio.CancelScope()
        self._begun = False
        self._run: Run | None = None
        self._meter: Meter | None = None
        self._closing: anyio.CancelScope | None = None
        self._left_open: tuple[str, ...] = ()
        self._result: RunResult | None = None

    @asynccontextmanager
    async def stoppable(self) -> AsyncIterator[None]:
        """Within, `stop` ends what is going on: before the first rollout everything, later as it was asked."""
        with self._scope, self._stop.heard_by(self._hear):
            yield

    async def last_chance(self) -> None:
        """Where it was stopped by now, it ends here, before it has left a trace."""
        await anyio.lowlevel.checkpoint()
        self._begun = True

    def result(self, not_begun: str) -> RunResult:
        """How it ended.

        Raises:
            NotBegun: it was stopped before it began.
        """
        if self._result is None:
            raise NotBegun(not_begun)
        return evolve(self._result, stuck=(*self._result.stuck, *self._left_open))

    def _hear(self, level: StopLevel) -> None:
        if self._closing is not None and level is StopLevel.CANCEL:
            self._closing.cancel()
        if not self._begun:
            self._scope.cancel()
        if self._run is None:
            return  # where it has begun, what was asked is looked at when there is something to end
        self._run.drain()
        if level is StopLevel.CANCEL:
            self._scope.cancel()
        if self._meter is not None:
            self._meter.stopping = level
            self._tell(self._meter)

    @asynccontextmanager
    async def model(self) -> AsyncIterator[None]:
        """Within, a model that holds a connection or a process has it."""
        model = self._config.agent.model
        if not isinstance(model, AbstractAsyncContextManager):
            yield
            return
        try:
            await model.__aenter__()
        except AgentkitError:
            raise
        except (Exception, SystemExit) as error:
            told = Redactor(self._config.secrets)(what_failed(error))
            raise ModelError(f"the model could not be opened: {told}") from error
        try:
            yield
        except BaseException as error:
            await self._close(model, error)
            raise
        await self._close(model, None)

    async def _close(self, model: "AbstractAsyncContextManager[object]", error: BaseException | None) -> None:
        """Leave the model: in peace, also where all else was cancelled, but not for ever; what it raises is noted."""
        told = ""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSE_S) as self._closing:
            try:
                await model.__aexit__(type(error) if error is not None else None, error, _trace_of(error))
            except (Exception, SystemExit) as failed:
                told = "" if failed is error else f"the model, which could not be closed: {what_failed(failed)}"
        if self._closing.cancelled_caught:
            told = "the model, which did not close in time"
        if told:
            told = Redactor(self._config.secrets)(told)
            self._left_open += (told,)
            logger.warning("left behind: %s", told)

    async def run(self, folder: RunFolder, info: RunInfo, journal: Journal, *, done_before: int) -> None:
        """Every rollout that `journal` does not hold, and how it ended."""
        config, why = self._config, SittingEnd.CANCELLED
        info = info.begin_sitting(version=_version())
        folder.write_info(info)
        if self._on_begin is not None:
            self._on_begin(folder)
        meter = self._meter = _meter(info, journal, done_before=done_before, redact=Redactor(config.secrets))
        pool = Pool(
            config.agent,
            agent_of=config.agent_of,
            max_rollouts=config.pool.max_rollouts,
            max_starts=config.pool.max_starts,
            max_generations=config.pool.max_generations,
            group_size=config.pool.group_size,
            sink=MeteredSink(RedactingSink(journal, Redactor(config.secrets)), journal, meter, _replaced(journal)),
        )
        try:
            with anyio.CancelScope() as self._scope:
                async with pool:
                    pool.spawn(self._keep_telling, meter, name="progress of a run")
                    run = self._run = pool.run(config.tasks())
                    if self._stop.level:
                        self._hear(self._stop.level)
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
            self._note_end(folder, info, why)
            self._tell(meter)
        self._result = RunResult(folder=folder.path, why=why, progress=meter.read(), stuck=pool.stuck)

    def _note_end(self, folder: RunFolder, info: RunInfo, why: SittingEnd) -> None:
        try:
            folder.write_info(info.end_sitting(why))
        except ConfigError as error:  # a full disk: what ended the run says more, and a sitting without an end is none
            logger.warning("the end of the sitting is not noted: %s", error)

    def nothing_left(self, folder: RunFolder, info: RunInfo, journal: Journal) -> None:
        """Have the result of a run that was through before."""
        meter = _meter(info, journal, done_before=info.expected or 0)
        self._result = RunResult(folder=folder.path, why=SittingEnd.FINISHED, progress=meter.read())

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


def _meter(info: RunInfo, journal: Journal, *, done_before: int, redact: Callable[[str], str] = str) -> Meter:
    sealed = journal.sealed()
    before = (each for each in journal.reader.summaries() if (each.key.task_id, each.key.index) in sealed)
    return Meter(info.expected, group_size=info.group_size, done_before=done_before, before=before, redact=redact)


def _count_done(config: RunConfig, journal: Journal) -> tuple[int, bool]:
    """How many rollouts of the tasks' groups are done, and whether replacements are missing, which no group counts."""
    sealed, replaced, size = journal.sealed(), _replaced(journal), config.pool.group_size
    done, owed = 0, False
    for task in config.tasks():
        done += sum((task.id, index) in sealed for index in range(size))
        if task.id in replaced:
            due = min(replaced[task.id], config.agent_of(task).outcomes.replacements)
            owed = owed or any((task.id, size + number) not in sealed for number in range(due))
    return done, owed


def _replaced(journal: Journal) -> Mapping[str, int]:
    """Of each task that has some, the rollouts that are sealed and were to be replaced."""
    sealed = journal.sealed()
    return Counter(
        each.key.task_id
        for each in journal.reader.summaries()
        if each.outcome == Outcome.REPLACE and (each.key.task_id, each.key.index) in sealed
    )


async def _survey(config: RunConfig, writer: WriterKind) -> Survey:
    if writer == "inline":  # as virtual time needs it
        return config.survey()
    return await run_in_thread(config.survey, name="survey of a dataset")  # may be left: a process ends all the same


def _trace_of(error: BaseException | None) -> TracebackType | None:
    return None if error is None else error.__traceback__


def _version() -> str:
    try:
        return version("agentkit-rl")
    except PackageNotFoundError:  # run from its sources
        return ""
