"""One battery of shell behaviour, every case on every back end, several at a time."""

import json
import re
import resource
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentkit.protocols import ExecResult, Sandbox, SandboxBackend, SandboxSpec

CASES = json.loads(Path(__file__).with_name("cases.json").read_text())
SLACK_S = 1.5  # a busy machine

pytestmark = pytest.mark.slow


def _expand(text: str) -> str:
    return re.sub(r"@(\w+)\*(\d+)@", lambda found: found[1] * int(found[2]), text)


def _complaints(step: dict[str, Any], result: ExecResult) -> list[str]:
    same = {
        "exit_code": result.exit_code,
        "total_bytes": result.total_bytes,
        "truncated": result.truncated,
        "timed_out": result.timed_out,
        "died": result.died,
        "output": result.text,
    }
    defaults = {} if step.get("may_time_out") else {"timed_out": False, "died": False}
    wanted = defaults | {key: step[key] for key in same if key in step}
    found = [f"{key} is {same[key]!r}, not {value!r}" for key, value in wanted.items() if same[key] != value]
    checks = {
        "output_re": re.fullmatch(step.get("output_re", r"(?s:.*)"), result.text) is not None,
        "contains": step.get("contains", "") in result.text,
        "starts": result.text.startswith(step.get("starts", "")),
        "nonzero": not step.get("nonzero") or result.exit_code != 0,
        "max_output": len(result.output) <= step.get("max_output", 1 << 30),
        "min_s": result.duration_s >= step.get("min_s", 0.0),
        "max_s": result.duration_s <= step.get("max_s", 6.0) + SLACK_S,
    }
    return found + [f"{name} does not hold for {result}" for name, holds in checks.items() if not holds]


async def _play(case: dict[str, Any], sandbox: Sandbox) -> list[str]:
    found: list[str] = []
    for step in case["steps"]:
        result = await sandbox.run(_expand(step["run"]), timeout_s=step.get("timeout_s", 5.0))
        found += _complaints(step, result)
    probe = await sandbox.run("echo probe", timeout_s=5.0)
    if (probe.exit_code, probe.died, probe.timed_out) != (0, False, False):
        found.append(f"the next command did not work: {probe}")
    if probe.text != "probe\n" and not (case.get("probe_contains") and "probe\n" in probe.text):
        found.append(f"the next command printed {probe.text!r}")
    return [f"{case['name']}: {complaint}" for complaint in found]


async def test_every_case_holds(backend: SandboxBackend) -> None:
    found: list[str] = []
    slots = anyio.Semaphore(6)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def play(case: dict[str, Any]) -> None:
        async with slots:
            sandbox = await backend.start(SandboxSpec())
            try:
                found.extend(await _play(case, sandbox))
            finally:
                await sandbox.close()

    async with anyio.create_task_group() as group:
        for case in CASES:
            group.start_soon(play, case)
    assert found == []
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < 60  # gigabytes of output went by
