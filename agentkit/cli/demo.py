"""`agentkit demo`: real bug-fixing tasks in sandboxes, run by a scripted policy, to see the whole library work."""

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from agentkit.cli.program import program
from agentkit.cli.terminal import escape
from agentkit.errors import ConfigError
from agentkit.protocols import GradeStatus, SandboxBackend, Trajectory
from agentkit.runs.demo import run_demo
from agentkit.sandbox import BwrapBackend, HostBackend

_BANNER = """\
!!! --sandbox host: NO ISOLATION. The commands of the demo's policy, and the programs it edits, run as you, on this
!!! machine, with your files and your network. Use bubblewrap where you can.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="fix bugs in small repositories, many at once, in sandboxes",
        description="Runs bug-fixing tasks concurrently in sandboxes, with a scripted policy instead of a language "
        "model, grades them by hidden tests, and keeps every trajectory in a journal.",
    )
    parser.add_argument("--tasks", type=_positive, default=36, metavar="N", help="how many tasks (default 36)")
    parser.add_argument(
        "--concurrency",
        type=_positive,
        default=_at_once(len(os.sched_getaffinity(0))),
        metavar="N",
        help="rollouts at once (default: 4 for each core, at most 16)",
    )
    parser.add_argument("--seed", type=int, default=0, help="which tasks (default 0)")
    parser.add_argument("--sandbox", choices=("bwrap", "host"), default="bwrap", help="bwrap isolates, host does not")
    parser.add_argument("--out", metavar="RUN_DIR", help="where the run is kept (default: a new temporary folder)")
    return parser


def _at_once(cores: int) -> int:
    """How many rollouts at once: each runs unit tests, which take longer than they may where too many share a core."""
    return min(16, 4 * cores)


def run(args: argparse.Namespace) -> int:
    """Runs the demo and prints what became of it.

    Raises:
        ConfigError: there is no sandbox to run in, `RUN_DIR` is no folder, cannot be made or holds files already, or
            there are not so many tasks.
        JournalError: the run cannot be written.
    """
    backend = _backend(args.sandbox)
    out = _empty_folder(args.out)
    live = _Live(args.tasks)
    print(f"{args.tasks} tasks, {args.concurrency} at a time, sandbox {args.sandbox}, scripted policy ScriptedBugFixer")
    started = time.monotonic()

    async def go() -> tuple[Trajectory, ...]:
        return await run_demo(
            backend,
            out,
            tasks=args.tasks,
            concurrency=args.concurrency,
            seed=args.seed,
            on_trajectory=live.show,
        )

    try:
        ended = anyio.run(go)
    finally:
        live.close()
    print(summary(ended, seconds=time.monotonic() - started))
    print(f"\nThe run is kept in {out}\nLook at it: {program()} inspect {shlex.quote(str(out))}")
    return 0 if all(trajectory.grade is not None for trajectory in ended) else 1


def summary(trajectories: Sequence[Trajectory], *, seconds: float) -> str:
    """A table by exit reason and a line of totals."""
    rows = [("exit reason", "rollouts", "solved", "turns")]
    counts = Counter(trajectory.exit_reason for trajectory in trajectories)
    for reason, count in counts.most_common():
        those = [trajectory for trajectory in trajectories if trajectory.exit_reason is reason]
        turns = sum(len(trajectory.turns) for trajectory in those) / count
        rows.append((reason.value, str(count), str(sum(map(_is_solved, those))), f"{turns:.1f}"))
    lines = [f"{row[0]:<20}{row[1]:>10}{row[2]:>10}{row[3]:>10}" for row in rows]
    solved = sum(map(_is_solved, trajectories))
    tokens = sum(len(chain.mask_bytes) for trajectory in trajectories for chain in trajectory.chains)
    sampled = sum(sum(chain.mask_bytes) for trajectory in trajectories for chain in trajectory.chains)
    ungraded = sum(t.grade is None or t.grade.status is not GradeStatus.OK for t in trajectories)
    total = f"solved {solved} of {len(trajectories)}; {tokens:,} tokens, {sampled:,} of them sampled; {seconds:.1f} s"
    return "\n".join(["", *lines, "", total, *([f"without a score: {ungraded}"] if ungraded else [])])


class _Live:
    """A line for each trajectory; on a terminal the last line also says how far the run is."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._ended = 0
        self._solved = 0
        self._terminal = sys.stdout.isatty()

    def show(self, trajectory: Trajectory) -> None:
        self._ended += 1
        self._solved += _is_solved(trajectory)
        verdict = "no score" if trajectory.score is None else "solved" if _is_solved(trajectory) else "not solved"
        line = (
            f"{escape(str(trajectory.key)):<20}{trajectory.exit_reason.value:<20}{verdict:<12}"
            f"{len(trajectory.turns):>3} turns{trajectory.timings.total_s:>7.1f} s"
        )
        if not self._terminal:
            print(line, flush=True)
            return
        progress = f"{self._ended}/{self._tasks} ended, {self._solved} solved"
        print(f"\r\x1b[K{line}\n{progress}", end="", flush=True)

    def close(self) -> None:
        if self._terminal and self._ended:
            print()


def _is_solved(trajectory: Trajectory) -> bool:
    return trajectory.score == 1.0


def _empty_folder(name: str | None) -> Path:
    """The folder for a run: `name`, made if need be, or a new temporary one."""
    out = Path(name or tempfile.mkdtemp(prefix="agentkit-demo-"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = any(out.iterdir())
    except OSError as error:
        raise ConfigError(f"--out must name a new or an empty folder, found {str(out)!r}: {error.strerror}") from error
    if files:
        raise ConfigError(f"--out must name a new or an empty folder, found files in {str(out)!r}")
    return out


def _backend(name: str) -> SandboxBackend:
    if name == "host":
        print(_BANNER, file=sys.stderr, flush=True)
        return HostBackend()
    bwrap = BwrapBackend()
    if reason := bwrap.available():
        raise ConfigError(
            f"the demo needs bubblewrap, and it cannot be used: {reason}. Install it (apt install bubblewrap, dnf "
            "install bubblewrap, pacman -S bubblewrap), or run without isolation with --sandbox host"
        )
    return bwrap


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return number
