"""`agentkit run CONFIG.yaml`: a whole run, from a file."""

import argparse
from pathlib import Path
from typing import Any

from agentkit.cli.sitting import add_flags, sit
from agentkit.runs import Origin, RunConfig, RunFolder, execute, load_config


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `run`."""
    parser = subparsers.add_parser(
        "run",
        help="run what a YAML file describes",
        description="Runs the tasks of a dataset with the agent that a YAML file describes, many at once, and keeps "
        "every trajectory in a run folder.",
    )
    parser.add_argument("config", metavar="CONFIG.yaml", type=Path, help="the run; `agentkit init` writes one")
    parser.add_argument("--out", metavar="DIR", help="where the run is kept (default: runs/NAME-1, -2, ...)")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N tasks: --set dataset.limit=N")
    parser.add_argument("--dry-run", action="store_true", help="check everything, show the run, start nothing")
    add_flags(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs it, and says what became of it.

    Raises:
        ConfigError: the file or a task is at fault, or the folder is taken.
        AgentkitError: the run could not go on.
    """
    changes = [*args.set, *([] if args.limit is None else [f"dataset.limit={args.limit}"])]
    if args.out is not None:
        RunFolder(args.out).check_new()
    origin = Origin.read(args.config, changes)
    config = load_config(args.config, changes=changes)
    if args.dry_run:
        return _show(config)
    return sit(
        args,
        config,
        lambda stop, on_begin, on_progress: execute(
            config, args.out, origin=origin, stop=stop, on_begin=on_begin, on_progress=on_progress
        ),
    )


def _show(config: RunConfig) -> int:
    print(config.to_yaml(defaults=True))
    survey, pool = config.survey(), config.pool
    total = survey.tasks * pool.group_size
    print(f"# {survey.tasks} tasks × {pool.group_size} = {total} rollouts, {pool.max_rollouts} at a time; not started")
    return 0
