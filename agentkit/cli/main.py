"""The command `agentkit`: one module per subcommand."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from agentkit.cli import check_template, demo, export, init, inspect, report, resume, run, sandbox
from agentkit.cli.streams import fill_standard_streams, lose
from agentkit.cli.terminal import escape
from agentkit.errors import AgentkitError


class Command(Protocol):
    """The shape of a subcommand's module."""

    def add_parser(self, subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]", /) -> Any:
        """Add the subcommand's parser, whose `run` default is the module's own `run`."""
        ...

    def run(self, args: argparse.Namespace, /) -> int:
        """Do it; the result is the exit status."""
        ...


COMMANDS: tuple[Command, ...] = (init, run, resume, inspect, report, export, check_template, sandbox, demo)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand named by `argv` and gives the exit status: 0, 1 for an error of ours, 2 for wrong usage."""
    fill_standard_streams()
    parser = argparse.ArgumentParser(prog="agentkit", description="Agentic RL: rollouts, trajectories, budgets.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers).set_defaults(run=command.run)
    args = parser.parse_args(argv)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
    except AgentkitError as error:
        first, *others = escape(str(error), lines=True).splitlines() or [""]
        print(f"agentkit: {first}", *(f"  {line.strip()}" for line in others), sep="\n", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `agentkit inspect ... | head`
        lose(sys.stdout)
        return 1
    except KeyboardInterrupt:
        return 130
    return status
