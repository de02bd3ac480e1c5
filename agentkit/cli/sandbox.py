"""`agentkit sandbox ...`: which sandboxes run here, what was left behind, and serving them to other machines."""

import argparse
import time
from typing import Any

import anyio

from agentkit.cli import sandbox_serve
from agentkit.cli.terminal import escape
from agentkit.errors import ConfigError
from agentkit.protocols import Capabilities
from agentkit.sandbox import Collected, Registry, collect
from agentkit.sandbox.config import backend_types
from agentkit.sandbox.doctor import Health, examine
from agentkit.sandbox.leaks import is_dead

_DOCTOR = """\
exit status: 0 where every TYPE named, or without names any isolated one, can be started here; else 1.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `sandbox`, with one for each of its own commands."""
    parser = subparsers.add_parser(
        "sandbox",
        help="check, list and remove sandboxes, or serve them",
        description="Which sandboxes run on this machine, what is registered, what killed processes left behind.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    doctor = commands.add_parser(
        "doctor",
        help="say which types of sandboxes run here, and what to do about the others",
        description="Tries every type of sandbox that is installed, and says what it cannot give here, with the cure.",
        epilog=_DOCTOR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("types", metavar="TYPE", nargs="*", help="only these (default: all that are installed)")
    doctor.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the one TYPE that is named, as in YAML; may be repeated",
    )
    doctor.set_defaults(run_sandbox=_doctor)
    gc = commands.add_parser(
        "gc",
        help="remove what processes that were killed left behind",
        description="Removes the sandboxes, processes and directories of owners that have ended, and nothing else. "
        "Safe to run at any time. The exit status is 1 where something could not be removed.",
    )
    gc.set_defaults(run_sandbox=_gc)
    listing = commands.add_parser(
        "list",
        help="show the sandboxes outside of our processes: containers, those in clouds",
        description="Shows what is registered: each is written down before it is made, until it is known to be gone.",
    )
    listing.set_defaults(run_sandbox=_list)
    sandbox_serve.add_parser(commands).set_defaults(run_sandbox=sandbox_serve.run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command of `sandbox` that was named.

    Raises:
        ConfigError: there is no such type of sandbox.
    """
    return int(args.run_sandbox(args))


def _doctor(args: argparse.Namespace) -> int:
    types = tuple(args.types) or backend_types()
    options = sandbox_serve.options_of(args.set)
    if options and len(args.types) != 1:
        raise ConfigError(f"--set goes with one TYPE, found {len(args.types)}")
    found = [examine(kind, options) for kind in types]
    width = max(len(health.type) for health in found)
    for health in found:
        first, *others = _told(health)
        print(f"{escape(health.type):<{width}}  {first}")
        for line in others:
            print(f"{'':<{width}}  {line}")
    runs = [health for health in found if health.reason is None]
    if args.types:
        return 0 if len(runs) == len(found) else 1
    return 0 if any(health.capabilities is not None and health.capabilities.isolated for health in runs) else 1


def _told(health: Health) -> list[str]:
    if health.reason is not None:
        first, *others = health.reason.splitlines() or ["it does not say why"]
        lines = [f"{'?' if health.unchecked else 'no:'} {escape(first)}", *(f"    {escape(line)}" for line in others)]
    else:
        lines = ["yes" + ("" if health.capabilities is None else f": {_can(health.capabilities)}")]
    for shortcoming in health.shortcomings:
        first, *others = shortcoming.splitlines() or [""]
        lines += [f"  - {escape(first)}", *(f"    {escape(line)}" for line in others)]
    return lines


def _can(capabilities: Capabilities) -> str:
    parts = ["isolated" if capabilities.isolated else "NO ISOLATION"]
    parts += [name for name in ("image", "rootfs", "snapshots", "terminal") if getattr(capabilities, name)]
    parts.append("network " + "/".join(sorted(capabilities.networks)))
    if capabilities.limits:
        parts.append("limits " + "/".join(sorted(capabilities.limits)))
    return ", ".join(parts)


def _gc(_args: argparse.Namespace) -> int:
    found: Collected = anyio.run(collect)
    for path in found.directories:
        print(f"removed directory {escape(path)}")
    for pid in found.pids:
        print(f"killed process {pid}")
    for name in found.removed:
        print(f"removed {escape(name)}")
    for name, why in found.failed:
        print(f"could not remove {escape(name)}: {escape(why)}")
    if not (found.directories or found.pids or found.removed or found.failed):
        print("nothing was left behind")
    return 1 if found.failed else 0


def _list(_args: argparse.Namespace) -> int:
    entries = list(Registry().entries())
    for entry in entries:
        whose = "its owner has ended" if is_dead(entry.owner) else f"owner {entry.owner.split('.')[1]}"
        left = "" if entry.deadline is None else f", {max(0.0, entry.deadline - time.time()):.0f} s left"
        print(f"{escape(entry.type)}  {escape(entry.name)}  {escape(whose)}{left}")
    if not entries:
        print("no sandbox is registered")
    return 0
