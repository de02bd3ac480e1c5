"""What every benchmark prints: the machine, the commit, and medians with their spread."""

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def machine() -> str:
    """The processor, the cores that this process may use, the memory, the load and the Python, in one line."""
    model = platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"{model}, {cores} cores, {int(memory) / 2**20:.0f} GiB, load {load:.1f}, {python}, Linux {platform.release()}"
    )


def commit() -> str:
    """The short hash of HEAD, with `+changes` if tracked files differ from it; `unknown` outside git."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def heading(title: str) -> None:
    """Prints the title, the machine and the commit."""
    print(f"{title}\n  machine  {machine()}\n  commit   {commit()}")


def spread(samples: Sequence[float], unit: str) -> str:
    """The median of the samples, with the quartiles, the extremes and the count."""
    ordered = sorted(samples)
    low, high = ordered[0], ordered[-1]
    q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else (low,) * 3
    return (
        f"{_digits(median)} {unit}  (quartiles {_digits(q1)} to {_digits(q3)}, "
        f"all {_digits(low)} to {_digits(high)}, n={len(ordered)})"
    )


def row(name: str, samples: Sequence[float], unit: str) -> None:
    """Prints one measured quantity."""
    print(f"  {name:<44} {spread(samples, unit)}")


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
