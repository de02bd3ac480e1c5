"""The shell battery: what a session does with commands that have hung, confused or ended other harnesses.

`cases.json` has them. A case is a list of steps, commands of one session; a step says what its result must be. After
each case the session must still answer a plain command at once.
"""

import json
import re
from importlib.resources import files
from typing import Any

from attrs import frozen

from agentkit.protocols import ExecResult, Sandbox

_ALWAYS = {"run", "timeout_s", "may_time_out", "noisy"}
_SAME = ("exit_code", "total_bytes", "truncated", "timed_out", "died", "output")


@frozen
class Case:
    """One case. `needs` are programs it runs beside a shell and the usual small ones."""

    name: str
    steps: tuple[dict[str, Any], ...]
    needs: frozenset[str] = frozenset()
    probe_contains: bool = False
    """Whether what an earlier job prints may come with the last answer."""

    async def play(self, sandbox: Sandbox, *, slack_s: float) -> list[str]:
        """What does not hold, each in a sentence; each may take `slack_s` seconds longer than the case says."""
        found: list[str] = []
        for step in self.steps:
            result = await sandbox.run(_expand(step["run"]), timeout_s=step.get("timeout_s", 5.0 + slack_s))
            found += complaints(step, result, slack_s=slack_s)
        probe = await sandbox.run("echo probe", timeout_s=5.0 + slack_s)
        if (probe.exit_code, probe.died, probe.timed_out) != (0, False, False) or probe.duration_s > 1.0 + slack_s:
            found.append(f"the next command did not work, or not at once: {probe}")
        if probe.text != "probe\n" and not (self.probe_contains and "probe\n" in probe.text):
            found.append(f"the next command printed {probe.text!r}")
        return [f"{self.name}: {complaint}" for complaint in found]


def cases() -> tuple[Case, ...]:
    """All of them."""
    read = json.loads(files("agentkit.testing.sandboxes").joinpath("cases.json").read_text())
    return tuple(
        Case(one["name"], tuple(one["steps"]), frozenset(one.get("needs", ())), one.get("probe_contains", False))
        for one in read
    )


def complaints(step: dict[str, Any], result: ExecResult, *, slack_s: float) -> list[str]:
    """What of `step` does not hold for `result`."""
    is_ = {name: getattr(result, name) for name in _SAME} | {"output": result.text}
    defaults = {} if step.get("may_time_out") else {"timed_out": False, "died": False}
    wanted = defaults | {key: step[key] for key in _SAME if key in step}
    found = [f"{key} is {is_[key]!r}, not {value!r}" for key, value in wanted.items() if is_[key] != value]
    checks = {
        "output_re": re.fullmatch(step.get("output_re", r"(?s:.*)"), result.text) is not None,
        # what a job prints in between may push the word into the part that is left out
        "contains": step.get("contains", "") in result.text or (step.get("noisy", False) and result.truncated),
        "starts": result.text.startswith(step.get("starts", "")),
        "nonzero": not step.get("nonzero") or result.exit_code != 0,
        "max_output": len(result.output) <= step.get("max_output", 1 << 30),
        "min_s": result.duration_s >= step.get("min_s", 0.0),
        "max_s": result.duration_s <= step.get("max_s", 6.0) + slack_s,
    }
    unknown = step.keys() - checks.keys() - _ALWAYS - set(_SAME)
    found += [f"{name} is nothing that a step can say" for name in sorted(unknown)]
    return found + [f"{name} does not hold for {result}" for name, holds in checks.items() if not holds]


def _expand(text: str) -> str:
    """`@a*5@` is `aaaaa`."""
    return re.sub(r"@(\w+)\*(\d+)@", lambda found: found[1] * int(found[2]), text)
