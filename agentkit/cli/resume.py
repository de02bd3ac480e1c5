"""`agentkit resume RUN`: the rest of a run that was interrupted or killed."""

import argparse
from typing import Any

from attrs import evolve

from agentkit.cli.sitting import add_flags, sit
from agentkit.errors import ConfigError
from agentkit.protocols import ExitReason
from agentkit.runs import Origin, RunFolder, load_config, resume

_REPEATABLE = [reason.value for reason in ExitReason if reason is not ExitReason.CANCELLED]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `resume`."""
    parser = subparsers.add_parser(
        "resume",
        help="go on with a run that was interrupted",
        description="Runs what is left of a run: rollouts that never began, were cut off, or were cancelled. What is "
        "sealed stays. A run that is through already is left alone.",
    )
    parser.add_argument("run_folder", metavar="RUN", help="the folder of the run")
    parser.add_argument("--force", action="store_true", help="go on even if the dataset or the config has changed")
    parser.add_argument(
        "--repeat",
        action="append",
        default=[],
        choices=_REPEATABLE,
        metavar="REASON",
        help=f"run rollouts with this exit reason again, too; may be repeated: {', '.join(_REPEATABLE)}",
    )
    add_flags(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Goes on with it, and says what became of it.

    Raises:
        ConfigError: there is no run, or it is not what it was when it began.
        AgentkitError: the run could not go on.
    """
    folder = RunFolder(args.run_folder)
    info = folder.info()
    if folder.config() is None:
        raise ConfigError(
            f"run {str(folder.path)!r} was composed in Python and has no config.yaml: go on with it by "
            "`await agentkit.runs.resume(config, folder)`"
        )
    changes = [*info.changes, *args.set]
    origin = Origin.read(folder.config_path, changes)
    config = evolve(load_config(folder.config_path, base=folder.base(), changes=changes), name=info.name)
    repeat = [ExitReason(reason) for reason in args.repeat]
    return sit(
        args,
        config,
        lambda stop, on_begin, on_progress: resume(
            config,
            folder.path,
            force=args.force,
            repeat=repeat,
            origin=origin,
            stop=stop,
            on_begin=on_begin,
            on_progress=on_progress,
        ),
    )
