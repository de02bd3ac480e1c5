"""How long `import agentkit` takes in a fresh interpreter, against the 150 ms that it may; exits 1 beyond them."""

import argparse
import re
import statistics
import subprocess
import sys

from _report import heading, row

LIMIT_MS = 150.0
PROBE = "import time; start = time.perf_counter(); import {module}; print((time.perf_counter() - start) * 1000)"


def import_ms(module: str) -> float:
    """Milliseconds of one import, without the start of the interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(module=module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def costly_ms(module: str, shown: int) -> list[tuple[float, str]]:
    """The modules that cost most by themselves in one import, the dearest first."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr, re.MULTILINE)
    return sorted(((int(own_us) / 1000, name) for own_us, name in found), reverse=True)[:shown]


def main() -> int:
    """The exit code: 1 if the median is past the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    repeats = parser.parse_args().repeats
    heading("import time, fresh interpreters")
    medians = {}
    for module in ("anyio", "cattrs", "agentkit"):
        import_ms(module)  # writes the .pyc files
        samples = [import_ms(module) for _ in range(repeats)]
        medians[module] = statistics.median(samples)
        row(f"import {module}", samples, "ms")
    for own_ms, name in costly_ms("agentkit", 8):
        print(f"    {own_ms:6.1f} ms  {name}")
    within = medians["agentkit"] < LIMIT_MS
    print(f"  limit {LIMIT_MS:.0f} ms: {'kept' if within else 'EXCEEDED'}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
