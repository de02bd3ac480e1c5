"""One battery of shell behaviour, every case on every back end."""

import json
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from agentkit.protocols import SandboxBackend, SandboxSpec

CASES = json.loads(Path(__file__).with_name("cases.json").read_text())

pytestmark = pytest.mark.slow


def _expand(text: str) -> str:
    return re.sub(r"@(\w+)\*(\d+)@", lambda found: found[1] * int(found[2]), text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"].replace(" ", "-"))
async def test_case(case: dict[str, Any], backend: SandboxBackend) -> None:
    sandbox = await backend.start(SandboxSpec())
    try:
        for step in case["steps"]:
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            result = await sandbox.run(_expand(step["run"]), timeout_s=step.get("timeout_s", 5.0))
            for field in ("exit_code", "total_bytes", "truncated"):
                if field in step:
                    assert getattr(result, field) == step[field], (field, result)
            assert result.timed_out == step.get("timed_out", False) or "vim" in step["run"], result
            if "died" in step or not result.timed_out:
                assert result.died == step.get("died", False), result
            if "output" in step:
                assert result.text == step["output"]
            if "output_re" in step:
                assert re.fullmatch(step["output_re"], result.text), result.text
            assert step.get("contains", "") in result.text
            assert result.text.startswith(step.get("starts", ""))
            assert not step.get("nonzero") or result.exit_code != 0
            assert len(result.output) <= step.get("max_output", 1 << 30)
            assert step.get("min_s", 0.0) <= result.duration_s <= step.get("max_s", 6.0) + 1.0  # a busy machine
            growth_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss) / 1024
            assert growth_mb <= step.get("max_rss_growth_mb", 1 << 30)
        probe = await sandbox.run("echo probe", timeout_s=5.0)
        assert (probe.exit_code, probe.died, probe.timed_out) == (0, False, False)
        assert probe.text == "probe\n" or (case.get("probe_contains") and "probe\n" in probe.text)
    finally:
        await sandbox.close()
