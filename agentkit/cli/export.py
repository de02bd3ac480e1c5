"""`agentkit export RUN --format ...`: a run's trajectories for scripts, trainers and tables."""

import argparse
import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentkit.cli.terminal import escape
from agentkit.errors import ConfigError
from agentkit.journal import journal_path
from agentkit.journal.export import (
    SUCCESSES,
    Exported,
    Selection,
    export_jsonl,
    export_npz,
    export_parquet,
    export_sft,
)
from agentkit.protocols import ExitReason, Outcome

_NAMES = {
    "jsonl": "trajectories.jsonl",
    "npz": "trajectories.npz",
    "parquet": "trajectories.parquet",
    "sft": "sft.jsonl",
}

_ABOUT = """\
jsonl     one trajectory a line with all that is known of it: messages, turns, grade, timings, and each chain's
          token_ids, response_mask, logprobs and spans
npz       flat numpy arrays with offsets: ids, masks, log-probabilities, rewards, groups, versions (needs numpy)
parquet   one row a trajectory, for pandas, polars and datasets (needs pyarrow)
sft       {"messages": [...]} a line, to fine-tune on; only whole conversations of rollouts with a score of 1 or more,
          unless --min-score or --outcome says otherwise

The columns and fields are described in agentkit.journal.export.jsonl, .npz, .parquet and .sft. Works while the run is
going on, too: what is sealed by then is exported.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `export`."""
    parser = subparsers.add_parser(
        "export",
        help="write a run's trajectories as JSON lines, numpy, Parquet or SFT data",
        description="Writes the trajectories of a run to a file for other programs.",
        epilog=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("journal", metavar="RUN", help="the folder of the run, or its journal.sqlite")
    parser.add_argument("--format", required=True, choices=tuple(_NAMES), help="see below")
    parser.add_argument("--out", metavar="FILE", help="where to (default: in the run's folder, named by the format)")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument("--only", metavar="REASON,...", help="only rollouts that ended for one of these exit reasons")
    parser.add_argument("--outcome", metavar="OUTCOME,...", help="only rollouts with one of these outcomes, as train")
    parser.add_argument("--min-score", type=float, metavar="X", help="only graded rollouts with a score of X or more")
    sft = parser.add_argument_group("sft")
    sft.add_argument("--tools", metavar="FILE", help="a JSON list of the tools in OpenAI form, to put in every line")
    sft.add_argument(
        "--reasoning",
        choices=("field", "inline", "drop"),
        help="keep it as reasoning_content (field, the default), in <think> tags in the content, or drop it",
    )
    sft.add_argument(
        "--arguments",
        choices=("string", "object"),
        help="arguments of calls as JSON text, as the OpenAI API has it (default), or as an object",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Writes the file and says what is in it.

    Raises:
        ConfigError: an option does not fit, the file exists, or it cannot be written.
        MissingExtraError: the format needs a package that is not installed.
        JournalError: the journal cannot be read.
    """
    select = Selection(
        exit_reasons=_members(ExitReason, "--only", args.only),
        outcomes=_members(Outcome, "--outcome", args.outcome),
        min_score=args.min_score,
    )
    out = journal_path(args.journal).parent / _NAMES[args.format] if args.out is None else Path(args.out)
    print(summary(_export(args, select, out)))
    return 0


def summary(done: Exported) -> str:
    """What was written, and what was left out and why."""
    lines = [f"{done.written} {'trajectory' if done.written == 1 else 'trajectories'} written to {done.path}"]
    if done.left_out:
        ordered = sorted(done.left_out.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(f"{count} {reason}" for reason, count in ordered)
        lines.append(f"{sum(done.left_out.values())} left out: {reasons}")
    if done.unfinished:
        lines.append(f"{done.unfinished} not there yet: the run has begun and not sealed them")
    return "\n".join(escape(line) for line in lines)


def _export(args: argparse.Namespace, select: Selection, out: Path) -> Exported:
    if args.format == "sft":
        if select.min_score is None and select.outcomes is None:
            select = Selection(exit_reasons=select.exit_reasons, min_score=SUCCESSES.min_score)
        return export_sft(
            args.journal,
            out,
            select=select,
            tools=_tools(args.tools),
            reasoning=args.reasoning or "field",
            arguments=args.arguments or "string",
            force=args.force,
        )
    for option in ("tools", "reasoning", "arguments"):
        if getattr(args, option) is not None:
            raise ConfigError(f"--{option} goes with --format sft only, found --format {args.format}")
    export = {"jsonl": export_jsonl, "npz": export_npz, "parquet": export_parquet}[args.format]
    return export(args.journal, out, select=select, force=args.force)


def _members(kind: "type[StrEnum]", option: str, given: str | None) -> "frozenset[Any] | None":
    if given is None:
        return None
    try:
        return frozenset(kind(name.strip()) for name in given.split(","))
    except ValueError as error:
        raise ConfigError(f"{option} takes a list of {', '.join(kind)}, found {given!r}") from error


def _tools(name: str | None) -> "list[Any]":
    if name is None:
        return []
    try:
        tools: object = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read --tools {name!r}: {error}") from error
    if not isinstance(tools, list) or not tools:
        raise ConfigError(f"--tools must be a JSON list with at least one tool in OpenAI form, found {name!r}")
    return tools
