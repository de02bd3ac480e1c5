"""The figures of a run of verl, out of what its console logger printed: means over the steps behind the first two.

python -m recipes.gpu_check.figures check.log
"""

import argparse
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

# What the documentation says of a machine, and under which name verl logs it.
FIGURES: Final[Mapping[str, str]] = {
    "seconds a step": "timing_s/step",
    "seconds sampling": "timing_s/gen",
    "seconds updating": "timing_s/update_actor",
    "seconds exchanging weights": "timing_s/update_weights",
    "tokens a second and GPU": "perf/throughput",
    "score": "critic/score/mean",
    "response tokens": "response_length/mean",
    "sampled and trained probabilities differ, mean": "training/rollout_probs_diff_mean",
    "sampled and trained probabilities differ, most": "training/rollout_probs_diff_max",
}
WARM_UP: Final = 2  # steps that compile and fill caches

_STEP: Final = re.compile(r"\bstep:(\d+) - (.*)$", re.MULTILINE)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER: Final = re.compile(r"(?:np\.\w+\()?([^()]+)\)?")


def steps_of(log: str) -> list[dict[str, float]]:
    """The metrics of each step, in the order in which they were printed."""
    found: list[dict[str, float]] = []
    for _, line in _STEP.findall(_COLOURS.sub("", log)):
        metrics: dict[str, float] = {}
        for part in line.split(" - "):
            name, _, value = part.rpartition(":")
            number = _NUMBER.fullmatch(value.strip())
            try:
                metrics[name] = float(number[1]) if number else math.nan
            except ValueError:
                continue
        found.append(metrics)
    return found


def table(steps: Sequence[Mapping[str, float]]) -> str:
    """The figures as a Markdown table, and those under `agent/` behind them; `(n)` steps stand behind each mean."""
    counted = steps[WARM_UP:]
    names = dict(FIGURES) | {name: name for step in counted for name in step if name.startswith("agent/")}
    lines = ["| figure | mean | lowest | highest |", "|---|---|---|---|"]
    for shown, name in names.items():
        values = [step[name] for step in counted if math.isfinite(step.get(name, math.nan))]
        if values:
            numbers = (statistics.fmean(values), min(values), max(values))
            lines.append(f"| {shown} ({len(values)}) | {' | '.join(f'{number:.4g}' for number in numbers)} |")
        else:
            lines.append(f"| {shown} (0) | not logged | | |")
    return "\n".join(lines)


def machine() -> str:
    """What it ran on, in one line."""
    parts = [f"{name} {_version(name)}" for name in ("verl", "vllm", "torch", "transformers", "agentkit-rl")]
    try:
        torch = import_module("torch")
        parts += [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    except ImportError:
        parts.append("no torch here")
    return ", ".join(parts)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="figures of a run of verl, from its log")
    parser.add_argument("log", type=Path)
    steps = steps_of(parser.parse_args().log.read_text(encoding="utf-8", errors="replace"))
    if len(steps) <= WARM_UP:
        raise SystemExit(f"there must be more than {WARM_UP} steps in the log, found {len(steps)}")
    print(f"{machine()}; {len(steps)} steps, the first {WARM_UP} left out\n\n{table(steps)}")  # noqa: T201  # its answer


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(none)"


if __name__ == "__main__":
    main()
