"""`agentkit init [DIR]`: a small working project to start from."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from agentkit.cli.terminal import escape
from agentkit.runs.init import write_project


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `init`."""
    parser = subparsers.add_parser(
        "init",
        help="write a small project to start from",
        description="Writes an agent, its tasks, a run that works at once without a language model, and tests. "
        "No file is ever overwritten.",
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", default=".", help="where (default: here)")
    parser.add_argument("--name", help="the name of the run (default: that of the folder)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Writes the project and says what to type next.

    Raises:
        ConfigError: a file is there already, or the folder cannot be written.
    """
    for path in write_project(args.folder, name=args.name):
        print(f"wrote {escape(str(path))}")
    here = Path(args.folder).resolve() == Path.cwd()
    print("\nNext:" if here else f"\nNext: cd {shlex.quote(args.folder)}, then")
    print("  agentkit run run.yaml")
    print("  pytest                    (its tests; needs the extra `testing`)")
    return 0
