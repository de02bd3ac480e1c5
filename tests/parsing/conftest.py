"""The tools of the cases, and calls rendered as the families' templates render them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentkit.protocols import ToolSpec

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "cases.json").read_text("utf-8"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that takes `case` every case there is."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES["cases"], ids=[case["id"] for case in CASES["cases"]])


@pytest.fixture(scope="session")
def toolsets() -> dict[str, tuple[ToolSpec, ...]]:
    """Tools by the name of their set."""
    return {
        name: tuple(ToolSpec(tool["name"], tool["name"], tool["parameters"]) for tool in tools)
        for name, tools in CASES["tools"].items()
    }


@pytest.fixture(scope="session")
def tools(toolsets: dict[str, tuple[ToolSpec, ...]]) -> tuple[ToolSpec, ...]:
    """The tools that most cases use."""
    return toolsets["many"]


Render = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]


@pytest.fixture(scope="session")
def render() -> dict[str, Render]:
    """What each family's template writes for a list of (name, arguments)."""
    return {"hermes": _hermes, "qwen3_coder": _qwen3_coder}


def _hermes(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    return "\n".join(
        "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"
        for name, arguments in calls
    )


def _qwen3_coder(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    blocks = []
    for name, arguments in calls:
        lines = [f"<tool_call>\n<function={name}>\n"]
        for key, value in arguments.items():
            written = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
            lines.append(f"<parameter={key}>\n{written}\n</parameter>\n")
        blocks.append("".join(lines) + "</function>\n</tool_call>")
    return "\n".join(blocks)
