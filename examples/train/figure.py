"""The points of all runs: as a file, as a figure, in words."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt
from matplotlib import ticker

EDGE = 5  # steps that the beginning and the end of a run are averaged over
STYLES = {"grpo": ("GRPO", "#1668a8"), "shuffled": ("control: shuffled rewards", "#b3541e")}


@attrs.frozen
class Point:
    """One step of one run. `total_seconds` are the run's, warm-up and start of verl included."""

    run: str
    seed: int
    step: int
    success: float
    step_seconds: float
    total_seconds: float


def write_points(points: Iterable[Point], path: Path) -> None:
    """A CSV file with a line for each."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in attrs.fields(Point))
        for point in points:
            numbers = (point.success, point.step_seconds, point.total_seconds)
            writer.writerow((point.run, point.seed, point.step, *(f"{number:.4f}" for number in numbers)))


def read_points(path: Path) -> list[Point]:
    """What `write_points` wrote."""
    kinds = [field.type for field in attrs.fields(Point)]
    with path.open(newline="") as file:
        return [
            Point(*(kind(text) for kind, text in zip(kinds, row.values(), strict=True))) for row in csv.DictReader(file)
        ]


def draw(points: Sequence[Point], path: Path) -> None:
    """Success by step: a thin line for each seed, a bold one for their mean."""
    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=150)
    for run, (label, colour) in STYLES.items():
        curves = [curve(points, run, seed) for seed in seeds(points, run)]
        for each in curves:
            axes.plot(range(1, len(each) + 1), each, color=colour, alpha=0.35, linewidth=1)
        if curves:
            mean = [sum(column) / len(column) for column in zip(*curves, strict=True)]
            many = f", mean of {len(curves)} seeds" if len(curves) > 1 else ""
            axes.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=2.2, label=label + many)
    axes.set(xlabel="step", ylabel="rollouts that succeed", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def summary(points: Sequence[Point]) -> str:
    """A line for each run: success in its first and its last steps, and how long all of it took."""
    lines = []
    for run in STYLES:
        for seed in seeds(points, run):
            each = curve(points, run, seed)
            edge = min(EDGE, len(each) // 2) or 1
            first, last = sum(each[:edge]) / edge, sum(each[-edge:]) / edge
            minutes = next(point.total_seconds for point in points if (point.run, point.seed) == (run, seed)) / 60
            lines.append(f"{run:8} seed {seed}: {first:6.1%} -> {last:6.1%} in {len(each)} steps, {minutes:.1f} min")
    return "\n".join(lines)


def seeds(points: Iterable[Point], run: str) -> list[int]:
    """Of this kind of run, in order."""
    return sorted({point.seed for point in points if point.run == run})


def curve(points: Iterable[Point], run: str, seed: int) -> list[float]:
    """Success of each step of one run."""
    found = sorted((point for point in points if (point.run, point.seed) == (run, seed)), key=lambda point: point.step)
    return [point.success for point in found]
