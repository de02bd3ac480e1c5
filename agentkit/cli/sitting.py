"""What `run` and `resume` share: flags, signals, logs, progress, and what is said at the end."""

import argparse
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import anyio
from attrs import evolve

from agentkit.cli.program import program
from agentkit.cli.progress_view import ProgressView, duration
from agentkit.cli.streams import tell
from agentkit.cli.terminal import escape
from agentkit.errors import AgentkitError
from agentkit.extras import require
from agentkit.logs import Redactor, configure, environment_secrets
from agentkit.runs import NotBegun, OnProgress, Progress, RunConfig, RunFolder, RunResult, SittingEnd, Stop

INTERRUPTED = 130
_CAUSES = 3

EXIT_CODES = """\
exit status: 0 every rollout of the run is sealed; 1 an error; 2 wrong usage; 130 interrupted, and the run can be
resumed. The first Ctrl-C (or SIGTERM) begins no more rollouts and lets those under way end; the second seals them as
cancelled; the third kills the process. After each of them, and after a kill -9, `agentkit resume` goes on.
"""


Start: TypeAlias = Callable[[Stop, Callable[[RunFolder], None], OnProgress], Awaitable[RunResult]]
"""Starts a run or goes on with one, given what stops it and what hears of its folder and its progress."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of both commands."""
    parser.epilog = EXIT_CODES
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change the configuration: --set agent.budget.max_turns=5; may be repeated",
    )
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio", help="the event loop")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error", "critical"),
        help="what is shown on stderr (default: warning); logs/run.log in the run folder has all from info on",
    )
    parser.add_argument("--log-json", action="store_true", help="log JSON lines instead of readable ones")
    parser.add_argument(
        "--log-rollouts", action="store_true", help="write a readable file for each rollout to logs/rollouts"
    )


def sit(args: argparse.Namespace, config: RunConfig, start: Start) -> int:
    """Runs what `start` starts, with everything around it; the exit status.

    Raises:
        AgentkitError: the run could not begin or go on.
    """
    if args.backend == "trio":
        require("trio", extra="trio", purpose="--backend trio")
    view = ProgressView(sys.stderr, quiet=args.quiet)
    redactor = Redactor(config.secrets | environment_secrets(_without_places(os.environ)))
    level = logging.getLevelNamesMapping()[(args.log_level or config.logs.level).upper()]
    as_json, per_rollout = args.log_json or config.logs.json, args.log_rollouts or config.logs.per_rollout
    begun: list[RunFolder] = []

    with ExitStack() as stack:
        stack.enter_context(configure(level=level, to=view.stream, json=as_json, run=config.name, redactor=redactor))

        def on_begin(folder: RunFolder) -> None:
            begun.append(folder)
            view.resume_line = resume_line(folder.path)
            view.say(_opening(config, folder))
            if config.spells_out_secrets:
                folder.config_path.chmod(0o600)
                view.say(f"{escape(str(folder.config_path))} spells out a secret: write ${{NAME}} instead.")
            stack.enter_context(
                configure(
                    level=min(logging.INFO, level),
                    to=folder.logs_path / "run.log",
                    json=as_json,
                    run=config.name,
                    per_rollout=folder.logs_path / "rollouts" if per_rollout else None,
                    redactor=redactor,
                )
            )

        async def main() -> RunResult:
            stop = Stop()
            with stop.on_signals():
                return await start(stop, on_begin, view.show)

        try:
            result = anyio.run(main, backend=args.backend)
        except NotBegun as error:
            view.say(f"agentkit: {escape(str(error))}")
            return INTERRUPTED
        except Exception as error:  # what goes on from here is shown, and nobody else would take secrets out of it
            if begun:
                view.say(f"The run can be resumed: {resume_line(begun[0].path)}")
            if isinstance(error, AgentkitError):
                raise AgentkitError(redactor(config.hide_variables(str(error)))) from None
            view.say(escape(redactor(traceback.format_exc()), lines=True))
            return 1
        finally:
            view.close()
    if not begun:
        tell("Nothing is left to do.")
    tell(closing(evolve(result, stuck=tuple(map(redactor, result.stuck)))))
    return 0 if result.finished else INTERRUPTED


def _without_places(environ: Mapping[str, str]) -> Mapping[str, str]:
    """`environ` without the folders that a shell keeps there: PWD reads like a password."""
    return {name: value for name, value in environ.items() if name not in ("PWD", "OLDPWD")}


def resume_line(path: Path) -> str:
    """What to type to go on with the run in `path`."""
    return f"{program()} resume {shlex.quote(str(path))}"


def _opening(config: RunConfig, folder: RunFolder) -> str:
    info = folder.info()
    rollouts = "" if info.expected is None else f"{info.tasks} tasks × {info.group_size} = {info.expected} rollouts, "
    again = f", sitting {len(info.sittings)}" if len(info.sittings) > 1 else ""
    limit = config.pool.max_rollouts
    return f"run {escape(config.name)}: {rollouts}{limit} at a time, kept in {escape(str(folder.path))}{again}"


def closing(result: RunResult) -> str:
    """What became of a run, in a few lines."""
    progress, path = result.progress, result.folder
    lines = [_count(progress), *_causes(progress)]
    lines += [f"left behind: {escape(name)}" for name in result.stuck[:10]]
    if len(result.stuck) > 10:
        lines.append(f"left behind: {len(result.stuck) - 10} more")
    if result.finished:
        lines.append(f"Look at it: {program()} report {shlex.quote(str(path))}")
    else:
        why = "cancelled" if result.why is SittingEnd.CANCELLED else "stopped"
        lines.append(f"The run was {why}. Go on with it: {resume_line(path)}")
    return "\n".join(lines)


def _causes(progress: Progress) -> list[str]:
    """What failed most often, a line each."""
    ordered = sorted(progress.causes.items(), key=lambda each: (-each[1], each[0]))
    lines = [f"  {count} × {escape(cause)}" for cause, count in ordered[:_CAUSES]]
    return [*lines, f"  and {len(ordered) - _CAUSES} other errors"] if len(ordered) > _CAUSES else lines


def _count(progress: Progress) -> str:
    of = "" if progress.expected is None else f" of {progress.expected}"
    reasons = sorted(progress.reasons.items(), key=lambda each: (-each[1], each[0]))
    parts = ", ".join(f"{count} {reason.value}" for reason, count in reasons)
    text = f"{progress.done}{of} rollouts done in {duration(progress.elapsed_s)}" + (f": {parts}" if parts else "")
    if progress.mean_score is not None:
        text += f"; mean score {progress.mean_score:.4g} of {progress.graded} graded"
    return text
