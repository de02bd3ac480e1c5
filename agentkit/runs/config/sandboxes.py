"""Sandboxes from mappings with a `type`, as `sandbox_from` makes them, with the paths and rules of a configuration."""

import re
from collections.abc import Iterator, Mapping

from agentkit.errors import ConfigError
from agentkit.runs.config.problems import Problem, Problems
from agentkit.runs.config.references import Importer
from agentkit.runs.config.variables import plain
from agentkit.sandbox import SandboxConfig, sandbox_from

_TOP = "sandbox"
_LINE = re.compile(rf"{_TOP}(?P<steps>(?:\.[^\s.\[:]+|\[\d+\])*):? (?P<text>.*)", re.DOTALL)
_STEP = re.compile(r"\.([^\s.\[:]+)|\[(\d+)\]")


def structure_sandbox(value: object, importer: Importer) -> SandboxConfig:
    """The back end and spec that a mapping stands for; nothing is started.

    Raises:
        Problems: all there are, with their paths below this value.
    """
    config = plain(value)
    kind = config.get("type") if isinstance(config, Mapping) else None
    if isinstance(kind, str):
        try:
            importer.find(kind, "sandboxes")  # a row of a dataset may not name any module it likes
        except Problems as error:
            raise error.under("type") from None
    try:
        return sandbox_from(config, path=_TOP)  # type: ignore[arg-type]  # whatever was written: it says what is wrong
    except ConfigError as error:
        raise Problems(_problems(str(error))) from None


def _problems(text: str) -> Iterator[Problem]:
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            yield Problem((), f"is not accepted: {line}")
            continue
        steps = (int(index) if index else name for name, index in _STEP.findall(found["steps"]))
        yield Problem(tuple(steps), found["text"])
