"""`agentkit inspect RUN [ROLLOUT]`: what a run has recorded, finished or not."""

import argparse
import os
import shutil
import sys
from difflib import get_close_matches
from typing import Any

from agentkit.cli.rollout_view import Decode, render_trajectory, render_unfinished
from agentkit.cli.run_view import render_run
from agentkit.cli.terminal import escape
from agentkit.errors import ConfigError
from agentkit.journal import JournalReader

__all__ = ["Decode", "add_parser", "render_run", "render_trajectory", "render_unfinished", "run"]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `inspect`."""
    parser = subparsers.add_parser(
        "inspect",
        help="show a run, or one rollout of it",
        description="Shows the rollouts of a run, or one rollout turn by turn. Works while the run is going on, too.",
    )
    parser.add_argument("journal", metavar="RUN", help="the folder of the run, or its journal.sqlite")
    parser.add_argument("rollout", metavar="ROLLOUT", nargs="?", help="TASK#INDEX, or TASK where it has one rollout")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the run or the rollout.

    Raises:
        ConfigError: there is no such rollout; names the nearest.
        JournalError: the journal cannot be read.
    """
    terminal = sys.stdout.isatty()
    color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size((100, 24)).columns if terminal else None
    with JournalReader.open(args.journal) as reader:
        if args.rollout is None:
            text = render_run(reader, color=color, width=width)
        else:
            text = _render_rollout(reader, args.rollout, color=color, width=width)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0


def _render_rollout(reader: JournalReader, name: str, *, color: bool, width: int | None) -> str:
    unfinished = {f"{each.key.task_id}#{each.key.index}": each for each in reader.unfinished()}
    sealed = {f"{task_id}#{index}": (task_id, index) for task_id, index in reader.sealed()}
    known = list({**sealed, **unfinished})  # a rollout that is run again is both: its newest attempt is shown
    # what is on the screen can be typed: names match in their escaped form, too
    exact = [each for each in known if name in (each, escape(each))]
    matches = exact or [each for each in known if name in (each.rpartition("#")[0], escape(each.rpartition("#")[0]))]
    if len(matches) != 1:
        nearest = sorted(matches) or get_close_matches(name, known, n=5, cutoff=0.4) or sorted(known)[:5]
        said = f"{len(matches)} rollouts are named {name!r}" if matches else f"no rollout {name!r}"
        shown = ", ".join(map(repr, nearest[:5])) or "none"
        raise ConfigError(f"{said} in {str(reader.path)!r}: the nearest are {shown}")
    (match,) = matches
    if match in unfinished:
        return render_unfinished(unfinished[match], color=color, width=width)
    trajectory = reader.trajectory(*sealed[match])
    if trajectory is None:
        raise ConfigError(f"rollout {name!r} has left {str(reader.path)!r}")
    return render_trajectory(trajectory, color=color, width=width)
